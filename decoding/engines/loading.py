"""Loads a model from a folder of weights: checks, dtype, threads, engine."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError, readable
from ..records.machine import describe_machine
from ..records.trace import Machine, ModelInfo
from ..records.weights import fingerprint
from .base import CachedModel
from .checks import check_config, check_index, stored_dtype
from .choosing import fastest, general_format
from .cuda import CudaModel
from .formats import WeightFormat
from .kept_trials import usual_threads
from .lean import LeanModel
from .projections import read_projections
from .slim import read_head_ids, read_screen
from .threads import TARGET_ROWS, thread_choices
from .transformers_engine import TransformersModel, check_rewindable, has_window

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})  # that the lean engine can run


@dataclass(slots=True)
class LocalModel:
    """A model on this machine.

    ``source``: where it came from, without this machine's paths. ``mark``: its fingerprint, if known without hashing
    the folder. ``gguf()``: the file that it was unpacked from, fetched again if necessary.
    """

    folder: Path
    name: str
    source: str
    mark: str = ""
    gguf: Callable[[], Path] | None = None


def is_lean(config: Any) -> bool:
    """Whether the lean engine can run a model with this transformers config."""
    if config.model_type not in FAMILIES or config.hidden_act != "silu" or has_window(config):
        return False
    rope = config.rope_parameters or {}
    return rope.get("rope_type") != "longrope"  # whose angles depend on the length of the text


def choose_device(device: str) -> str:
    """ "auto" is CUDA if available. Raises UserError if the named device does not exist."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    named = re.fullmatch(r"cpu|cuda(?::(0|[1-9][0-9]{0,2}))?", device)
    if named is None:
        raise UserError(f"The device must be auto, cpu, cuda, or one GPU such as cuda:1, not {device[:40]}.")
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError("There is no CUDA device here: run on the CPU (device cpu), or on a machine that has one.")
    last = torch.cuda.device_count() - 1
    if int(named[1] or 0) > max(0, last):
        raise UserError(f"There is no device {device} here: the last one is cuda:{last}.")
    return device


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises UserError if this is not a model that can be loaded."""
    folder = folder.absolute()  # "." has no name
    config = config_in(folder, folder.name)
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder.name} has no safetensors weights, the only kind that is loaded: convert them first.")
    check_index(folder)
    return config


def config_in(folder: Path, name: str) -> dict[str, Any]:
    """The config.json in ``folder`` of the model ``name``. Raises UserError for one that is broken or not a model's."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{name} has no model: its config.json cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} contains a broken model: its config.json is not JSON.") from error
    check_config(config, name)
    return config


def reads_photographs(config: dict[str, Any]) -> bool:
    """Whether this is the config.json of a text model with a vision encoder."""
    return "vision_config" in config


def load_model(
    place: LocalModel,
    name: str,
    formats: Sequence[WeightFormat],
    *,
    device: str = "cpu",
    threads: int | None = None,
    rows: tuple[int, ...] = TARGET_ROWS,
    spread: bool = False,
    state_layers: int = 0,
) -> CachedModel:
    """Loads the model at ``place`` as ``name`` on the fastest engine that supports it.

    ``formats``: those it may run in (choosing.py); of several the best for passes over ``rows`` tokens, by trying;
    ``threads``: None finds the best number for these passes; ``spread``: over all GPUs, through transformers' modules;
    ``state_layers``: of a feature draft, the number of the target's layers whose states it reads. Raises UserError.
    """
    folder = place.folder
    config = read_config(folder)
    projections = read_projections(folder) if state_layers else {}
    dtype = formats[0].compute if spread else getattr(torch, stored_dtype(config))
    hf_model = load_hf_model(folder, dtype, spread)
    lean = is_lean(hf_model.config) and not spread
    if not lean:
        formats = [general_format(formats)]
        hf_model = hf_model if spread else hf_model.to(device, formats[0].compute)
    head_ids, screen = read_head_ids(folder), read_screen(folder)
    info = describe_model(hf_model, name, place.source, place.mark or fingerprint(folder))
    if head_ids is not None and int(head_ids[-1]) >= info.vocab_size:
        raise UserError(f"{name} proposes tokens beyond its vocabulary of {info.vocab_size:,}: fetch the draft again.")
    info.engine, info.device = "lean" if lean else "transformers", device
    info.threads = threads or torch.get_num_threads()
    if lean:
        choices = thread_choices() if threads is None else (threads,)
        formats = [fastest(formats, hf_model, info, rows, choices, head_ids, screen)]
    weights = info.dtype = formats[0].name
    info.parameters += sum(weight.numel() for name, weight in projections.items() if name.endswith("weight"))
    model: CudaModel | TransformersModel | LeanModel
    if not lean:
        model = TransformersModel(hf_model, info)
    elif device != "cpu":
        model = CudaModel(hf_model, info, weights, device, head_ids=head_ids)
    else:
        model = LeanModel(hf_model, info, weights, head_ids=head_ids, screen=screen)
    if projections:
        model.take_projections(projections, state_layers)
    if device == "cpu" and not spread:
        model.set_threads(threads or usual_threads(model, rows))
    if not isinstance(model, CudaModel):
        check_numbers(model.prefill([0]), name)
    return model


def load_hf_model(folder: Path, dtype: torch.dtype, spread: bool = False) -> Any:
    """transformers' own module for ``folder`` in ``dtype``: safetensors only, no remote code.

    On the CPU, or ``spread`` over all GPUs by accelerate. Raises UserError.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # progress goes to the caller, not to the terminal
    if spread and importlib.util.find_spec("accelerate") is None:
        raise UserError(f"{folder.name} is too large for one GPU; to spread it over several, install accelerate.")
    options = {"device_map": "auto"} if spread else {}
    kind: Any = AutoModelForImageTextToText if reads_photographs(read_config(folder)) else AutoModelForCausalLM
    with readable(f"{folder.name} could not be loaded", "choose another model"):
        try:
            loaded: Any = kind.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # named below, in our own words
                **options,
            )
        except SafetensorError as error:
            what = f"The weights of {folder.name} are damaged or cut short ({error})"
            raise UserError(f"{what}: delete and download them again.") from error
    model, found = loaded
    _check_whole(model, found, folder)
    check_rewindable(model)
    return model.eval()


def _check_whole(model: Any, found: Mapping[str, Any], folder: Path) -> None:
    """Raises UserError where a weight was not in the files, or not as a matrix of numbers of the model's size.

    transformers would go on with random weights in its place.
    """
    sizes = [name for name, *_ in found["mismatched_keys"]]
    own = {name for name, _ in model.named_parameters()}
    integers = [name for name, dtype in _stored_dtypes(folder) if name in own and not dtype.startswith(("F", "BF"))]
    for names, what in (
        (sorted(found["missing_keys"]), "are missing from its files"),
        (sizes, "have other sizes than its config.json says"),
        (integers, "are stored as whole numbers"),
    ):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UserError(
                f"{folder.name} is an incomplete model: weights {what} ({shown[:300]}). Download or convert it again."
            )


def _stored_dtypes(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, dtype as safetensors writes it) of all tensors in a model's files."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (no dict)
                yield name, tensors.get_slice(name).get_dtype()


def check_numbers(logits: torch.Tensor, name: str) -> None:
    """Raises UserError for logits that are not numbers: there is no best token among them."""
    if bool(logits.isnan().any()) or bool((logits == torch.inf).any()):
        raise UserError(
            f"{name} gives results that are not numbers (NaN or infinite): its weights are broken, or too large for "
            "this number format. Choose float32, or another model."
        )


def describe_model(hf_model: Any, name: str, source: str, mark: str) -> ModelInfo:
    """Size and origin of a loaded model; the engine fills in its own fields."""
    config = hf_model.config.get_text_config()
    return ModelInfo(
        name=name,
        source=source,
        fingerprint=mark,
        parameters=sum(parameter.numel() for parameter in hf_model.parameters()),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=getattr(config, "vocab_size", 0),  # a draft on the target's states may have no words of its own
        engine="transformers",
        dtype="float32",
        device="cpu",
        threads=1,
    )


def machine_of(device: str) -> Machine:
    """This machine, with the GPU behind a torch device string unless that is a CPU's."""
    return describe_machine(torch.cuda.get_device_name(device) if device.startswith("cuda") else None)
