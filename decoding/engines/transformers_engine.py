"""The general engine: any full-attention causal LM through transformers' own modules."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import UserError
from ..records.trace import ModelInfo
from .base import DEFAULT_MAX_LENGTH, CachedModel, check_prompt, check_rewind, check_room
from .lean import has_window
from .threads import use_threads


def refusal(hf_model: Any) -> str | None:
    """A sentence that says why this model's cache cannot be rewound, or None."""
    config = hf_model.config
    name = config.model_type
    if getattr(hf_model, "_is_stateful", False):
        return f"The model type {name} keeps a running state that cannot be rewound: choose a full-attention model."
    if getattr(config, "is_encoder_decoder", False):
        return f"The model type {name} is an encoder-decoder: choose a decoder-only model."
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds - {"full_attention", "sliding_attention"}:
        return f"The model type {name} mixes other layers into its attention: choose a full-attention model."
    if has_window(config):
        return f"The model type {name} looks through a sliding window here: choose a full-attention model."
    return None


class TransformersModel(CachedModel):
    """A :class:`~decoding.engines.base.CachedModel` around a transformers causal LM."""

    def __init__(self, hf_model: Any, info: ModelInfo, max_length: int = DEFAULT_MAX_LENGTH) -> None:
        reason = refusal(hf_model)
        if reason:
            raise UserError(reason)
        config = hf_model.config
        self.info = info
        self.hidden_size, self.vocab_size = config.hidden_size, config.vocab_size
        self.max_length = min(max_length, getattr(config, "max_position_embeddings", None) or max_length)
        self.length = 0
        self.keep_hidden = False
        self.last_hidden: torch.Tensor | None = None
        self._model = hf_model.eval()
        self._device = hf_model.get_input_embeddings().weight.device
        self._new_cache()

    def prefill(self, ids: list[int]) -> torch.Tensor:
        """Logits after the last of ``ids``, [1, vocab]; the cache then holds only ``ids``."""
        check_prompt(ids, self.max_length)
        self.rewind(0)
        return self._forward(ids, keep=1)

    def extend(self, ids: list[int]) -> torch.Tensor:
        """Logits after each of ``ids``, [n, vocab]; appends them to the cache."""
        check_room(self.length, len(ids), self.max_length)
        return self._forward(ids, keep=len(ids))

    def rewind(self, length: int) -> None:
        """Discards everything after the first ``length`` tokens."""
        check_rewind(length, self.length)
        self.length = length
        for layer in self._layers:
            layer.keep(length)

    def _new_cache(self) -> None:
        self._layers: list[RewindableLayer] = []

        def new_layer() -> RewindableLayer:
            self._layers.append(RewindableLayer(self.max_length))
            return self._layers[-1]

        # Annotated as a class by transformers, which only calls it, once per layer.
        self._cache = Cache(layer_class_to_replicate=cast("type[RewindableLayer]", new_layer))

    @torch.inference_mode()
    def _forward(self, ids: list[int], keep: int) -> torch.Tensor:
        """One pass over ``ids``; logits of the last ``keep`` of them, [keep, vocab] float32."""
        if self._device.type == "cpu":
            use_threads(self.info.threads)
        rows = torch.tensor([ids], device=self._device)
        out = self._model(
            input_ids=rows, past_key_values=self._cache, use_cache=True, output_hidden_states=self.keep_hidden
        )
        self.length += len(ids)
        if self._cache.get_seq_length() != self.length:
            raise UserError(
                f"The model type {self._model.config.model_type} does not keep its past in the cache "
                "that it is given, so it cannot be rewound: choose another model."
            )
        self.last_hidden = out.hidden_states[-1][0, -keep:].float() if self.keep_hidden else None
        return out.logits[0, -keep:].float()


class RewindableLayer(DynamicLayer):
    """One layer's keys and values in buffers allocated once; the model sees views of the part in use.

    transformers' dynamic layer copies the whole cache at every step; its static layers cannot be cropped.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocates buffers for keys [1, heads, n, d] and values [1, heads, n, d']."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._keys, self._values = (
            one.new_zeros(*one.shape[:-2], self.capacity, one.shape[-1]) for one in (key_states, value_states)
        )
        self.is_initialized = True
        self.keep(0)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends the new states; returns views of all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[-2]
        self._keys[..., start:end, :] = key_states
        self._values[..., start:end, :] = value_states
        return self._show(end)

    def keep(self, length: int) -> None:
        """Keeps only the first ``length`` tokens."""
        self.length = length
        if self.is_initialized:
            self._show(length)

    def _show(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first ``length`` tokens' keys and values, which are those in use from now on."""
        keys, values = self._keys[..., :length, :], self._values[..., :length, :]
        self.length, self.keys, self.values = length, keys, values
        return keys, values

    def get_seq_length(self) -> int:
        return self.length
