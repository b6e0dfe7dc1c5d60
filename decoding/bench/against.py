"""The benchmark: contenders interleaved on the same prompts, the ratios between them, and what a pass takes
beside the time in which its bytes are read; its report, also as Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ..analysis.metrics import Spread
from ..comparison.costs import measure_costs
from ..comparison.prepare import load_heads_of
from ..comparison.recorder import Recorder
from ..engines.base import CachedModel
from ..engines.cuda import CudaModel
from ..engines.formats import find_format
from ..engines.linears import FloatHead
from ..engines.pair import Pair
from ..errors import first_line
from ..loop.clock import wait_for
from ..records.text import markdown_table
from ..records.trace import Machine
from .contenders import Contender, GenerateContender, LaneContender, Reading, assisted_settings, never_ending

PLAIN, STATIC = "autoregressive", "static:5"
GENERATE, ASSISTED, ASSISTED_DEFAULTS = "hf generate", "hf assisted 5", "hf assisted"
POLICIES = ("heuristic", "confidence:0.4")  # dynamic policies that need no fitting
ROUNDS = 30  # per pass
TOGETHER = 8  # draft steps in one launch
_PROBE_BYTES = {"cpu": 2**28, "cuda": 2**31}

Progress = Callable[[str, float | None], None]
Readings = dict[str, list[list[Reading]]]  # contender -> prompt -> repeat


@dataclass(frozen=True, slots=True)
class Work:
    """What a benchmark is to do: ``limit`` prompts, ``repeats`` runs of each contender, on so many CPU ``cores``.

    ``compiled``: with transformers' compiled static cache where there is a GPU.
    """

    limit: int
    repeats: int
    max_new_tokens: int
    device: str = "cpu"
    dtype: str = "auto"
    cores: int = 1
    compiled: bool = True
    progress: Progress = lambda message, fraction: None


@dataclass(slots=True)
class Speed:
    """One contender over all prompts and repeats: tokens/s without the prompt, the median with it (``end_to_end``), and
    the shares of draft, check, policy and rest in its time (None: not known).
    """

    name: str
    tokens_per_s: Spread
    end_to_end: float
    threads: int
    shares: list[float] | None = None


@dataclass(slots=True)
class Ratio:
    """Tokens/s of ``ours`` over that of ``theirs``, within a prompt and repeat."""

    ours: str
    theirs: str
    ratio: Spread


@dataclass(slots=True)
class PassTime:
    """One pass over one token: its median time, and the time to read its weights and KV cache once."""

    name: str
    ms: float
    floor_ms: float


@dataclass(slots=True)
class Report:
    """A benchmark's results. ``same_text``: number of prompts on which all contenders wrote the same text."""

    pair: str
    dtype: str
    device: str
    figures: list[Speed] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    n_prompts: int = 0
    same_text: int = 0
    passes: list[PassTime] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def bench_pair(pair: Pair, hf_target: Any, hf_draft: Any, prompts: list[list[int]], work: Work) -> Report:
    """Our lanes on ``pair`` against transformers on the same weights. ``prompts``: token ids each."""
    info = pair.target.info
    on_gpu = info.device.startswith("cuda")
    offered = transformers_contenders(hf_target, hf_draft, compiled=on_gpu and work.compiled)
    choices = (1, work.cores) if work.cores > 1 and info.device == "cpu" else (info.threads,)
    # On a GPU try the longest text: a static cache that grows later is recompiled during a timed text.
    tried = (max(prompts, key=len), work.max_new_tokens) if on_gpu else (prompts[0], min(24, work.max_new_tokens))
    theirs, left_out = choose_able(offered, *tried, choices, work.progress)
    lanes = [PLAIN, STATIC, *POLICIES, *load_heads_of(pair, pair.default_draft)]
    report, readings = _race(pair, [*our_contenders(pair, prompts[0], lanes), *theirs], prompts, work)
    report.ratios = ratios_of(report.figures, readings)
    context = len(prompts[0]) + work.max_new_tokens // 2
    report.passes = pass_times(pair, context, measure_bandwidth(info.device))
    report.notes = [*left_out, *(model.note for model in (pair.target, pair.draft()) if model.note)]
    return report


def bench_llamacpp(sixteen: Pair, four: Pair, theirs: Contender, prompts: list[list[int]], work: Work) -> Report:
    """Our lanes with 16-bit and with four-bit weights against llama.cpp's plain decoding of the same GGUF file."""
    lanes = (PLAIN, STATIC)
    ours = [*our_contenders(sixteen, prompts[0], lanes), *our_contenders(four, prompts[0], lanes, " int4")]
    report, readings = _race(sixteen, [*ours, theirs], prompts, work)
    report.ratios = [ratio_of(one.name, theirs.name, readings) for one in ours]
    report.ratios += [ratio_of(f"{lane} int4", lane, readings) for lane in lanes]
    return report


def bench_recorder(pair: Pair, hf_target: Any, hf_draft: Any, prompts: list[list[int]], work: Work) -> Report:
    """Plain and assisted generation (five guesses a pass) with and without the recorder: what recording costs."""
    bare = [one for one in transformers_contenders(hf_target, hf_draft) if one.name in (GENERATE, ASSISTED)]
    recorded = [replace(one, name=f"{one.name}, recorded", within=partial(Recorder, pair.tokenizer)) for one in bare]
    report, readings = _race(pair, [*bare, *recorded], prompts, work)
    report.ratios = [ratio_of(watched.name, one.name, readings) for one, watched in zip(bare, recorded)]
    return report


def _race(pair: Pair, contenders: Sequence[Contender], prompts: list[list[int]], work: Work) -> tuple[Report, Readings]:
    """The report with the contenders' speeds and how often their texts agree, and what it was made from."""
    readings = interleave(contenders, prompts, work)
    report = Report(pair.name, pair.target.info.dtype, pair.target.info.device, figures_of(contenders, readings))
    report.n_prompts = len(prompts)
    for index in range(len(prompts)):
        first, *others = [reading.output for repeats in readings.values() for reading in repeats[index]]
        report.same_text += all(output == first for output in others)
    return report, readings


def our_contenders(pair: Pair, prompt: list[int], lanes: Sequence[str], suffix: str = "") -> list[Contender]:
    """Our ``lanes`` on ``pair``, their names with a ``suffix``; costs are measured on ``prompt``."""
    costs = measure_costs(pair, [pair.default_draft], prompt)
    return [LaneContender(lane + suffix, lane, pair, costs, pair.target.info.threads) for lane in lanes]


def choose_able(
    contenders: list[GenerateContender], prompt: list[int], n: int, threads: tuple[int, ...], progress: Progress
) -> tuple[list[GenerateContender], list[str]]:
    """The contenders that run here, each with its best thread count, and a sentence for each that does not run.

    Compilation needs tools that a machine may lack (a C compiler); the other contenders must still be measured.
    """
    able, sentences = [], []
    for contender in contenders:
        progress(f"Choosing threads for {contender.name}", None)
        try:
            contender.choose_threads(prompt, n, threads)
        except RuntimeError as error:
            sentences.append(f"Left out: {contender.name} does not run here ({first_line(error)}).")
        else:
            able.append(contender)
    return able, sentences


def transformers_contenders(hf_target: Any, hf_draft: Any, compiled: bool = False) -> list[GenerateContender]:
    """transformers' ways to write the same text; ``compiled`` adds its static cache, which is compiled on CUDA."""
    never_ending(hf_target)
    never_ending(hf_draft)
    defaults = assisted_settings(hf_draft)
    five = {
        "num_assistant_tokens": 5,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    static = [GenerateContender("hf generate static", hf_target, options={"cache_implementation": "static"})]
    return [
        GenerateContender(GENERATE, hf_target),
        GenerateContender(ASSISTED, hf_target, hf_draft, five),
        GenerateContender(ASSISTED_DEFAULTS, hf_target, hf_draft, defaults),
        *(static if compiled else []),
    ]


def interleave(contenders: Sequence[Contender], prompts: list[list[int]], work: Work) -> Readings:
    """Runs every contender on every prompt in turns, so that other load on the machine affects all alike."""
    for contender in contenders:
        work.progress(f"Warming up {contender.name}", None)
        contender.run(prompts[0], min(16, work.max_new_tokens))
    readings: Readings = {contender.name: [[] for _ in prompts] for contender in contenders}
    for index, prompt in enumerate(prompts):
        for repeat in range(work.repeats):
            done = (index + repeat / work.repeats) / len(prompts)
            for contender in contenders:
                work.progress(f"Prompt {index + 1} of {len(prompts)}", done)
                readings[contender.name][index].append(contender.run(prompt, work.max_new_tokens))
    return readings


def figures_of(contenders: Sequence[Contender], readings: Readings) -> list[Speed]:
    """Each contender's speed, in the contenders' order."""
    figures = []
    for contender in contenders:
        flat = [reading for repeats in readings[contender.name] for reading in repeats]
        columns = [sum(column) for column in zip(*(reading.shares or () for reading in flat))]
        figures.append(
            Speed(
                contender.name,
                spread_of([reading.tokens_per_s for reading in flat]),
                median(len(reading.output) / reading.total_s for reading in flat),
                contender.threads,
                [column / sum(columns) for column in columns] or None,
            )
        )
    return figures


def spread_of(values: Sequence[float]) -> Spread:
    """The median of ``values``, which are not empty, with the smallest and the largest."""
    return Spread(median(values), min(values), max(values))


def ratios_of(figures: list[Speed], readings: Readings) -> list[Ratio]:
    """The three like-for-like comparisons; the best dynamic lane is the one with the highest median."""
    speed = {figure.name: figure.tokens_per_s.median for figure in figures}
    dynamic = [name for name in speed if not name.startswith("hf ") and name not in (PLAIN, STATIC)]
    pairs = [(PLAIN, GENERATE), (STATIC, ASSISTED)]
    if dynamic:
        pairs.append((max(dynamic, key=speed.__getitem__), ASSISTED_DEFAULTS))
    return [ratio_of(ours, theirs, readings) for ours, theirs in pairs if ours in readings and theirs in readings]


def ratio_of(ours: str, theirs: str, readings: Readings) -> Ratio:
    """Tokens/s of ``ours`` over that of ``theirs`` on the same prompt in the same repeat."""
    ratios = [
        one.tokens_per_s / other.tokens_per_s
        for mine, its in zip(readings[ours], readings[theirs])
        for one, other in zip(mine, its)
    ]
    return Ratio(ours, theirs, spread_of(ratios))


def measure_bandwidth(device: str) -> float:
    """Bytes per second that a large copy reads plus writes; the best of six."""
    kind = device.split(":")[0]
    source = torch.ones(_PROBE_BYTES[kind] // 8, dtype=torch.float32, device=device)
    copy = torch.empty_like(source)
    return 2 * source.nbytes / min(_time(lambda: copy.copy_(source), device) for _ in range(6))


def pass_times(pair: Pair, context: int, bandwidth: float) -> list[PassTime]:
    """Target and default draft, one token at context length ``context``; on CUDA also one of several
    draft steps that are planned and launched together."""
    target, draft = pair.target, pair.draft()
    wanted = [("target", target, partial(target.extend, [1]), 1), ("draft", draft, partial(draft.extend, [1]), 1)]
    if isinstance(draft, CudaModel):
        planned = partial(draft.draft_planned, [1], TOGETHER, draft.vocab_size)
        wanted.append(("planned draft", draft, planned, TOGETHER))
    return [
        PassTime(name, 1e3 * _pass_s(model, context, work, steps), floor_bytes(model, context) / bandwidth * 1e3)
        for name, model, work, steps in wanted
    ]


def floor_bytes(model: CachedModel, context: int) -> int:
    """Bytes that a pass over one token reads: its weights (one row of the embedding), keys and values."""
    info = model.info
    rows = info.vocab_size if model.tied else 0  # of the embedding, where it serves as the head, too
    if model.tied and model.head_ids is not None:
        rows = len(model.head_ids)
    parameters = info.parameters - (info.vocab_size - rows) * info.hidden_size
    head = (rows or info.vocab_size) * info.hidden_size
    held = find_format(info.dtype)
    head_bytes = held.head_bytes if model.head_ids is None else held.reduced_head_bytes
    held_head = getattr(model, "head", None)
    read = held_head.linear.numbers if isinstance(held_head, FloatHead) else head
    return int((parameters - head) * held.layer_bytes + read * head_bytes) + model.cache_bytes_per_token * context


def _pass_s(model: CachedModel, context: int, work: Callable[[], Any], steps: int) -> float:
    """Median seconds of each of the ``steps`` that ``work`` takes together, at context length ``context``."""
    text = [1] * min(context, model.max_length - steps - 1)
    model.prefill(text)
    times = []
    for _ in range(ROUNDS + 1):  # the first round records the graph
        times.append(_time(work, model.info.device) / steps)
        model.rewind(len(text))
    return median(times[1:])


def _time(work, device: str) -> float:
    wait_for(device)
    before = perf_counter()
    work()
    wait_for(device)
    return perf_counter() - before


# -- as Markdown, for a terminal and for a document ------------------------------------------------------

ReportData = dict[str, Any]
"""A report of ``bench`` as plain data."""
RATIO = "{median:.2f}× ({low:.2f} to {high:.2f})"
SPEEDS = ("", "tokens/s", "range", "with prompt", "threads", "draft", "check", "policy", "rest")


def as_document(reports: Sequence[ReportData], command: str, machine: Machine) -> str:
    """The command and the machine, then the reports."""
    made = f"`{command}` on {machine.where}; torch {machine.torch}, transformers {machine.transformers}."
    return "\n\n".join(["# Benchmark", made, *map(as_markdown, reports)]) + "\n"


def as_markdown(report: ReportData) -> str:
    """A report's speeds (median and range of tokens/s, with the time's shares), ratios, passes and notes."""
    parts = [f"## {report['pair']}, {report['dtype']}, {report['device']}"]
    if report["figures"]:
        parts.append(markdown_table(SPEEDS, map(_speed, report["figures"])))
    if report["ratios"]:
        rows = ([f"{one['ours']} / {one['theirs']}", RATIO.format(**one["ratio"])] for one in report["ratios"])
        parts.append(markdown_table(["ours / theirs", "ratio"], rows))
    lines = [
        f"- One {one['name']} pass takes {one['ms']:.3f} ms, {one['ms'] / one['floor_ms']:.2f} times its bytes' "
        f"{one['floor_ms']:.3f} ms."
        for one in report["passes"]
    ]
    if report["n_prompts"]:
        lines.append(f"- The same text from all on {report['same_text']} of {report['n_prompts']} prompts.")
    lines += [f"- {note}" for note in report["notes"]]
    return "\n\n".join([*parts, "\n".join(lines)]).rstrip()


def _speed(figure: ReportData) -> list[str]:
    speeds, shares = figure["tokens_per_s"], figure["shares"]
    return [
        figure["name"],
        f"{speeds['median']:.1f}",
        f"{speeds['low']:.1f} to {speeds['high']:.1f}",
        f"{figure['end_to_end']:.1f}",
        str(figure["threads"]),
        *([""] * 4 if shares is None else (f"{share:.1%}" for share in shares)),
    ]
