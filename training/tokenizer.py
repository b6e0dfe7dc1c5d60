"""The tokenizer: byte-level BPE trained on the corpus; round-trips any bytes and adds BOS."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from training.corpus import read_documents
from training.files import replacing_folder
from training.places import TOKENIZER

END = "<|endoftext|>"
VOCABULARY = 8192
CONTEXT = 1024


def build_tokenizer(texts: list[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE of ``vocabulary`` entries. ``END`` (id 0) starts a text and ends a document."""
    tokenizer = Tokenizer(models.BPE())
    # Digits are split; runs of spaces stay whole, because indentation is most of what code repeats.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet)
    )
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{END} $A", pair=f"{END} $A $B", special_tokens=[(END, 0)]),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def train_tokenizer(characters: int = 25_000_000) -> Path:
    """Trains on the first ``characters`` of the shuffled training documents; writes ``build/tokenizer``."""
    texts: list[str] = []
    for document in read_documents("train"):
        texts.append(document.text)
        characters -= len(document.text)
        if characters < 0:
            break
    with replacing_folder(TOKENIZER) as folder:
        build_tokenizer(texts).save_pretrained(folder)
    return TOKENIZER


def load_tokenizer() -> PreTrainedTokenizerBase:
    """The trained tokenizer; trains it first if needed. Raises UserError without a corpus."""
    if not (TOKENIZER / "tokenizer.json").is_file():
        train_tokenizer()
    return AutoTokenizer.from_pretrained(TOKENIZER)
