"""A tiny random chat model of 32 words on disk: it writes prompts and answers within seconds."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from training.teacher import ChatModel

from .tiny_models import tiny_config

SPECIAL = ["<|im_start|>", "<|im_end|>"]
WORDS = [*SPECIAL, "user", "assistant", *(f"word{number}" for number in range(28))]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} {{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def make_tiny_chat(folder: Path) -> ChatModel:
    """Writes the model, two layers of random weights, and its tokenizer."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64}  # of a draft half as wide, too, four-bit weights make groups
    config = tiny_config(len(WORDS), max_position_embeddings=512, bos_token_id=0, eos_token_id=1, **sizes)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        model.get_input_embeddings().weight.mul_(1.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[4]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[1], additional_special_tokens=SPECIAL)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return ChatModel(folder, "tiny")
