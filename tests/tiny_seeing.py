"""Tiny random targets with a vision encoder, of three families, on disk."""

from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .tiny_models import byte_tokenizer

SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.6,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)
VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28)
SPECIAL = ("<end>", "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
TEMPLATE = (
    "{% for message in messages %}<end>user: {% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}answer: "
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    extra = ("image_token", "fake_image_token", "global_image_token", "end_of_utterance_token")
    made = byte_tokenizer(
        SPECIAL,
        bos_token="<end>",
        eos_token="<end>",
        pad_token="<end>",
        additional_special_tokens=[*SPECIAL[1:]],
        extra_special_tokens=dict(zip(extra, SPECIAL[1:], strict=True)),
    )
    made.chat_template = TEMPLATE
    return made


def make_llava(folder: Path) -> None:
    from transformers import CLIPImageProcessorPil, CLIPVisionConfig, LlavaConfig, LlavaProcessor

    tokenizer = make_tokenizer()
    vision = CLIPVisionConfig(**VISION, patch_size=14)
    text = LlamaConfig(vocab_size=len(tokenizer), **SIZES)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=1, image_seq_length=4)
    images = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    _save(folder, config, LlavaProcessor(images, tokenizer, 14, "default", tokenizer.chat_template, "<image>", 1))


def make_smolvlm(folder: Path) -> None:
    from transformers import Idefics3Config, Idefics3ImageProcessorPil, Idefics3Processor

    tokenizer = make_tokenizer()
    text, vision = LlamaConfig(vocab_size=len(tokenizer), **SIZES), VISION | {"patch_size": 7}
    config = Idefics3Config(image_token_id=1, vision_config=vision, text_config=text, scale_factor=2, pad_token_id=0)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    _save(folder, config, Idefics3Processor(images, tokenizer, 4, tokenizer.chat_template))


class QwenProcessor:
    """Stands in for Qwen2.5-VL's processor, which loads only beside torchvision: the same inputs of one image."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from transformers import Qwen2VLImageProcessorPil

        self.tokenizer = tokenizer
        self._images = Qwen2VLImageProcessorPil(patch_size=7, min_pixels=28 * 28, max_pixels=42 * 56)

    def apply_chat_template(self, messages, **options) -> str:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, **options)

    def __call__(self, text: str, images: list, **options) -> dict:
        read = self._images(images, return_tensors="pt")
        tokens = int(read["image_grid_thw"].prod()) // 4
        inputs = self.tokenizer(text.replace("<image>", "<image>" * tokens), **options)
        return {**inputs, **read, "mm_token_type_ids": (inputs["input_ids"] == 1).long()}

    def save_pretrained(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


def make_qwen(folder: Path) -> None:
    """Its picture tokens have positions of three axes (M-RoPE)."""
    from transformers import Qwen2_5_VLConfig

    tokenizer = make_tokenizer()
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    text = SIZES | {"vocab_size": len(tokenizer), "rope_parameters": rope}
    vision = dict(depth=2, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, patch_size=7)
    vision |= {"window_size": 28, "fullatt_block_indexes": [1]}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=1, video_token_id=2)
    _save(folder, config, QwenProcessor(tokenizer))


def _save(folder: Path, config, processor) -> None:
    """The target; and beside it, in "draft", a text model of one layer with the same tokens."""
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    draft = LlamaConfig(vocab_size=config.get_text_config().vocab_size, **SIZES | {"num_hidden_layers": 1})
    LlamaForCausalLM(draft).save_pretrained(folder / "draft")
    processor.tokenizer.save_pretrained(folder / "draft")


MAKERS = {"llava": make_llava, "smolvlm": make_smolvlm, "qwen2.5-vl": make_qwen}
