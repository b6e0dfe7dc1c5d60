"""The benchmark: contenders interleaved on the same prompts, and the ratios between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from ..comparison.costs import measure_costs
from ..comparison.prepare import load_heads_of
from ..lookahead.lanes import parse_lane
from .contenders import Contender, GenerateContender, LaneContender, Reading, assisted_settings, never_ending
from .floor import PassTime, measure_bandwidth, pass_times

if TYPE_CHECKING:
    from ..engines.pair import Pair

PLAIN, STATIC = "autoregressive", "static:5"
GENERATE, ASSISTED, ASSISTED_DEFAULTS = "hf generate", "hf assisted 5", "hf assisted"
POLICIES = ("heuristic", "confidence:0.4")  # dynamic policies that need no fitting
GROWTH_SHORT, GROWTH_LONG, GROWTH_TOKENS = 100, 900, 48

Progress = Callable[[str, float | None], None]


@dataclass(slots=True)
class Figure:
    """One contender: tokens/s over all prompts and repeats, and its shares of the time (sum 1)."""

    name: str
    tokens_per_s: float
    low: float
    high: float
    end_to_end: float
    threads: int
    shares: list[float] | None = None


@dataclass(slots=True)
class Ratio:
    """``ours`` over ``theirs``: median, minimum and maximum of the ratios within a prompt and repeat."""

    ours: str
    theirs: str
    median: float
    low: float
    high: float


@dataclass(slots=True)
class Growth:
    """Milliseconds per iteration of ``lane`` near two context lengths, and their ratio: medians over rounds, and the
    ratio's range.
    """

    lane: str
    short_ms: float
    long_ms: float
    ratio: float
    low: float
    high: float


@dataclass(slots=True)
class Report:
    """A benchmark's results. ``same_text``: number of prompts on which all contenders wrote the same text."""

    pair: str
    dtype: str
    device: str
    figures: list[Figure]
    ratios: list[Ratio] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    n_prompts: int = 0
    same_text: int = 0
    passes: list[PassTime] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def bench_pair(
    pair: Pair,
    hf_target: Any,
    hf_draft: Any,
    prompts: list[list[int]],
    *,
    max_new_tokens: int,
    repeats: int,
    cores: int,
    progress: Progress = lambda message, fraction: None,
) -> Report:
    """Our lanes on ``pair`` against transformers on the same weights. ``prompts``: token ids each."""
    costs = measure_costs(pair, [pair.default_draft], prompts[0])
    ours: list[Contender] = [LaneContender(lane, pair, costs, pair.target.info.threads) for lane in lanes_of(pair)]
    info = pair.target.info
    on_gpu = info.device.startswith("cuda")
    offered = transformers_contenders(hf_target, hf_draft, compiled=on_gpu)
    choices = (1, cores) if cores > 1 and info.device == "cpu" else (info.threads,)
    # On a GPU try the longest text: a static cache that grows later is recompiled during a timed text.
    tried = (max(prompts, key=len), max_new_tokens) if on_gpu else (prompts[0], min(24, max_new_tokens))
    theirs, left_out = choose_able(offered, *tried, choices, progress)
    readings = interleave([*ours, *theirs], prompts, max_new_tokens, repeats, progress)
    report = Report(pair.name, info.dtype, info.device, figures_of([*ours, *theirs], readings))
    report.ratios = ratios_of(report.figures, readings)
    report.n_prompts = len(prompts)
    report.same_text = sum(_same(readings, index) for index in range(len(prompts)))
    report.passes = pass_times(pair, len(prompts[0]) + max_new_tokens // 2, measure_bandwidth(info.device))
    models = (pair.target, pair.draft())
    report.notes = [*left_out, *(model.note for model in models if model.note)]
    return report


def bench_llamacpp(
    sixteen: Pair,
    four: Pair,
    theirs: Contender,
    prompts: list[list[int]],
    *,
    max_new_tokens: int,
    repeats: int,
    progress: Progress = lambda message, fraction: None,
) -> Report:
    """Our lanes with 16-bit and with four-bit weights against llama.cpp's plain decoding of the same GGUF file."""
    ours: list[Contender] = []
    for pair, suffix in ((sixteen, ""), (four, " int4")):
        costs = measure_costs(pair, [pair.default_draft], prompts[0])
        threads = pair.target.info.threads
        ours += [LaneContender(lane, pair, costs, threads, lane + suffix) for lane in (PLAIN, STATIC)]
    info = sixteen.target.info
    readings = interleave([*ours, theirs], prompts, max_new_tokens, repeats, progress)
    report = Report(sixteen.name, info.dtype, info.device, figures_of([*ours, theirs], readings))
    report.ratios = [ratio_of(one.name, theirs.name, readings) for one in ours]
    report.ratios += [ratio_of(f"{lane} int4", lane, readings) for lane in (PLAIN, STATIC)]
    report.n_prompts = len(prompts)
    report.same_text = sum(_same(readings, index) for index in range(len(prompts)))
    return report


def lanes_of(pair: Pair) -> list[str]:
    """The plain lane, the static one, and every dynamic one that runs on this pair's default draft."""
    return [PLAIN, STATIC, *POLICIES, *load_heads_of(pair, pair.default_draft)]


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
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            sentences.append(f"Left out: {contender.name} does not run here ({why}).")
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


Readings = dict[str, list[list[Reading]]]  # contender -> prompt -> repeat


def interleave(
    contenders: list[Contender], prompts: list[list[int]], n: int, repeats: int, progress: Progress
) -> Readings:
    """Runs every contender on every prompt in turns, so that other load on the machine affects all alike."""
    for contender in contenders:
        progress(f"Warming up {contender.name}", None)
        contender.run(prompts[0], min(16, n))
    readings: Readings = {contender.name: [[] for _ in prompts] for contender in contenders}
    for index, prompt in enumerate(prompts):
        for repeat in range(repeats):
            progress(f"Prompt {index + 1} of {len(prompts)}", (index + repeat / repeats) / len(prompts))
            for contender in contenders:
                readings[contender.name][index].append(contender.run(prompt, n))
    return readings


def figures_of(contenders: list[Contender], readings: Readings) -> list[Figure]:
    """Each contender's tokens/s (median, lowest, highest) over all prompts and repeats, in the contenders' order."""
    figures = []
    for contender in contenders:
        flat = [reading for repeats in readings[contender.name] for reading in repeats]
        speeds = [reading.tokens_per_s for reading in flat]
        end_to_end = median(len(reading.output) / reading.total_s for reading in flat)
        figures.append(
            Figure(
                contender.name,
                median(speeds),
                min(speeds),
                max(speeds),
                end_to_end,
                contender.threads,
                _shares(flat),
            )
        )
    return figures


def _shares(readings: list[Reading]) -> list[float] | None:
    """Shares of draft, check, policy and rest in the total time."""
    if readings[0].shares is None:
        return None
    columns = [sum(column) for column in zip(*(reading.shares for reading in readings))]
    return [column / sum(columns) for column in columns]


def ratios_of(figures: list[Figure], readings: Readings) -> list[Ratio]:
    """The three like-for-like comparisons; the best dynamic lane is the one with the highest median."""
    speed = {figure.name: figure.tokens_per_s for figure in figures}
    dynamic = [name for name in speed if not name.startswith("hf ") and name not in (PLAIN, STATIC)]
    pairs = [(PLAIN, GENERATE), (STATIC, ASSISTED)]
    if dynamic:
        pairs.append((max(dynamic, key=speed.__getitem__), ASSISTED_DEFAULTS))
    return [ratio_of(ours, theirs, readings) for ours, theirs in pairs if ours in readings and theirs in readings]


def ratio_of(ours: str, theirs: str, readings: Readings) -> Ratio:
    """Tokens/s of ``ours`` over that of ``theirs`` on the same prompt in the same repeat: median and range."""
    ratios = [
        a.tokens_per_s / b.tokens_per_s
        for mine, other in zip(readings[ours], readings[theirs])
        for a, b in zip(mine, other)
    ]
    return Ratio(ours, theirs, median(ratios), min(ratios), max(ratios))


def _same(readings: Readings, index: int) -> bool:
    outputs = [reading.output for repeats in readings.values() for reading in repeats[index]]
    return all(output == outputs[0] for output in outputs)


def measure_growth(pair: Pair, text: list[int], repeats: int, lanes: tuple[str, ...] = (PLAIN, STATIC)) -> list[Growth]:
    """Iteration times near 100 and 900 tokens of context, interleaved; [] if the model's context is too short.

    Per iteration, because the number of accepted tokens depends on the text, not on the engine.
    """
    if pair.target.max_length < GROWTH_LONG + GROWTH_TOKENS:
        return []
    while len(text) < GROWTH_LONG:
        text = text + text
    costs = measure_costs(pair, [pair.default_draft], text[:GROWTH_SHORT])
    found = []
    for lane in lanes:
        contender = LaneContender(parse_lane(lane).text, pair, costs, pair.target.info.threads)
        times: dict[int, list[float]] = {GROWTH_SHORT: [], GROWTH_LONG: []}
        for _ in range(repeats + 1):  # the first round warms up
            for length, found_s in times.items():
                reading = contender.run(text[: length - GROWTH_TOKENS // 2], GROWTH_TOKENS)
                found_s.append(reading.decode_s / reading.n_iterations * 1e3)
        short, long = (one[1:] for one in times.values())
        ratios = [after / before for before, after in zip(short, long)]
        found.append(Growth(lane, median(short), median(long), median(ratios), min(ratios), max(ratios)))
    return found
