"""The general engine: any full-attention causal LM through transformers' own modules."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from transformers.cache_utils import Cache, DynamicLayer

from ..errors import UserError
from ..records.trace import ModelInfo
from .base import DEFAULT_MAX_LENGTH, CachedModel, check_prompt, check_rewind, check_room
from .inputs import Branches, EncodedPrompt, already_in_place, encoded
from .invariance import PARTS, keeps_bits
from .linears import DenseLinear
from .projections import HEADS_WEIGHT, ParallelHeads, Projections
from .threads import use_threads


def check_rewindable(hf_model: Any) -> None:
    """Raises UserError for a model whose cache cannot be rewound."""
    config, name = hf_model.config.get_text_config(), hf_model.config.model_type
    if getattr(hf_model, "_is_stateful", False):
        what = "keeps a running state that cannot be rewound"
    elif set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        what = "mixes other layers with attention layers"
    elif has_window(config):
        what = "uses sliding-window attention here"
    else:
        return
    raise UserError(f"The model type {name} {what}: choose a full-attention model.")


def has_window(config: Any) -> bool:
    """Whether any layer sees only a sliding window of the text."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return any(kind != "full_attention" for kind in layer_types)
    return getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)


class TransformersModel(CachedModel):
    """A :class:`~decoding.engines.base.CachedModel` around ``module``, a transformers causal LM."""

    def __init__(self, hf_model: Any, info: ModelInfo) -> None:
        config = hf_model.config.get_text_config()
        self.info = info
        self.hidden_size, self.vocab_size = config.hidden_size, config.vocab_size
        most = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)  # MPT's name
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":  # beyond it all angles change, also those of the keys in the cache
            most = rope["original_max_position_embeddings"]
        self.max_length = min(DEFAULT_MAX_LENGTH, most or DEFAULT_MAX_LENGTH)
        self.length = 0
        self._ahead = 0  # how far the next token's position is beyond its place in the cache
        self.kept_layers: tuple[int, ...] = ()
        self.last_states: tuple[torch.Tensor, ...] = ()
        self.module = hf_model.eval()
        weight = hf_model.get_input_embeddings().weight
        self._device, self._dtype = weight.device, weight.dtype
        taken = inspect.signature(hf_model.forward).parameters
        # A tree's rows share positions; models that derive them from the mask (ALiBi, as some Falcons do) cannot be
        # told so, nor those whose window counts rows (GPT-Neo).
        counts_rows = getattr(config, "alibi", False) or "local" in getattr(config, "attention_layers", ())
        self.can_branch = "position_ids" in taken and not counts_rows
        self._chooses_rows = "logits_to_keep" in taken  # else the head is computed for a whole prompt
        self._layers: list[RewindableLayer] = []

        def new_layer() -> RewindableLayer:
            self._layers.append(RewindableLayer(self.max_length))
            return self._layers[-1]

        # Annotated as a class by transformers, which only calls it, once per layer.
        self._cache = Cache(layer_class_to_replicate=cast("type[RewindableLayer]", new_layer))

    def prefill(self, prompt: list[int] | EncodedPrompt) -> torch.Tensor:
        prompt = encoded(prompt)
        check_prompt(prompt.ids, self.max_length)
        self.rewind(0)
        return self._forward(prompt.ids, 1, self._inputs(prompt))

    @torch.inference_mode()
    def extend(
        self,
        ids: list[int],
        branches: Branches | None = None,
        added: torch.Tensor | None = None,
        last: int | None = None,
    ) -> torch.Tensor:
        check_room(self.length, len(ids), self.max_length)
        inputs = self._places(len(ids)) if branches is None else self._tree(branches)
        if added is not None:
            inputs["inputs_embeds"] = self._embedded(ids) + added
        return self._forward(ids, len(ids) if last is None else last, inputs)

    def take_projections(self, weights: Mapping[str, torch.Tensor], layers: int) -> None:
        """As :meth:`.lean.LeanModel.take_projections`."""
        given = (weights, layers, self.hidden_size, self._device, self._dtype, DenseLinear)
        if HEADS_WEIGHT in weights:
            head = self.module.get_output_embeddings()
            self.parallel_heads = ParallelHeads(*given, lambda states: head(states).float())
        else:
            self.projections = Projections(*given)

    def set_threads(self, threads: int) -> None:
        """Changes the number of CPU threads and tests whether rows keep their bits. Empties the cache."""
        self.info.threads = threads
        self.note = None if keeps_bits(self) else PARTS

    def rewind(self, length: int, rows: Sequence[int] = ()) -> None:
        """Keeps the first ``length`` tokens and ``rows``."""
        check_rewind(length, self.length, rows)
        done = already_in_place(length, rows)
        for layer in self._layers:
            layer.keep(length + done, rows[done:])
        self.length = length + len(rows)
        if not self.length:  # the next text begins without a picture, unless ``prefill`` finds one in it
            self._ahead = 0

    @torch.inference_mode()
    def _inputs(self, prompt: EncodedPrompt) -> dict[str, torch.Tensor]:
        """The embeddings and positions of a prompt that is more than text; {} for any other."""
        if prompt.embeddings is None:
            return {}
        x = self._embedded(prompt.ids)
        x[0, prompt.at : prompt.at + prompt.n_placeholders] = prompt.embeddings.to(x)
        if prompt.positions is None:
            return {"inputs_embeds": x}
        known = prompt.positions[:, : len(prompt.ids)]
        self._ahead = int(known.max()) + 1 - known.shape[1]
        rest = torch.arange(known.shape[1], len(prompt.ids), device=known.device) + self._ahead
        return {"inputs_embeds": x, "position_ids": torch.cat([known, rest.expand(len(known), -1)], dim=1)[:, None]}

    def _embedded(self, ids: list[int]) -> torch.Tensor:
        return self.module.get_input_embeddings()(torch.tensor([ids], device=self._device))

    def _places(self, n: int) -> dict[str, torch.Tensor]:
        """The positions of the next ``n`` tokens, where the model would not find them itself."""
        if not self._ahead:
            return {}
        return {"position_ids": torch.arange(n, device=self._device)[None] + self.length + self._ahead}

    def _tree(self, branches: Branches) -> dict[str, torch.Tensor]:
        """Positions, and an additive mask [1, 1, n, keys] of what each node sees."""
        n = len(branches.paths)
        mask = torch.full((n, self.length + n), torch.finfo(self._dtype).min, dtype=self._dtype)
        mask[:, : branches.trunk] = 0.0
        for row, path in enumerate(branches.paths):
            mask[row, path] = 0.0
        positions = torch.tensor([branches.positions], device=self._device) + self._ahead
        return {"attention_mask": mask[None, None].to(self._device), "position_ids": positions}

    @torch.inference_mode()
    def _forward(self, ids: list[int], keep: int, inputs: dict[str, Any]) -> torch.Tensor:
        """One pass over ``ids``, or over ``inputs`` in their place; logits of the last ``keep``, [keep, vocab]
        float32.
        """
        if self._device.type == "cpu":
            use_threads(self.info.threads)
        if "inputs_embeds" not in inputs:
            inputs["input_ids"] = torch.tensor([ids], device=self._device)
        if self._chooses_rows:
            inputs["logits_to_keep"] = keep
        wants_states = bool(self.kept_layers)
        out = self.module(**inputs, past_key_values=self._cache, use_cache=True, output_hidden_states=wants_states)
        self.length += len(ids)
        if self._cache.get_seq_length() != self.length:
            raise UserError(
                f"The model type {self.module.config.model_type} does not keep its past in the cache "
                "that it is given, so it cannot be rewound: choose another model."
            )
        self.last_states = tuple(out.hidden_states[layer][0] for layer in self.kept_layers)
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

    @torch.inference_mode()
    def keep(self, length: int, rows: Sequence[int] = ()) -> None:
        """Keeps only the first ``length`` tokens, and ``rows``, which move up behind them."""
        end = length + len(rows)
        self.length = end
        if not self.is_initialized:
            return
        if rows:
            old = torch.tensor(rows, device=self._keys.device)
            for buffer in (self._keys, self._values):
                buffer[..., length:end, :] = buffer[..., old, :]
        self._show(end)

    def _show(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first ``length`` tokens' keys and values, which are those in use from now on."""
        keys, values = self._keys[..., :length, :], self._values[..., :length, :]
        self.length, self.keys, self.values = length, keys, values
        return keys, values

    def get_seq_length(self) -> int:
        return self.length
