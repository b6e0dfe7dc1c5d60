"""What the form says before a run: the models, the seconds, and what is wrong with a typed lane."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace

import pytest

from decoding.analysis.tuning import curves_here
from decoding.backends.recorded import RecordedBackend
from decoding.records.machine import describe_machine
from viz.choices import BEST_SL, GROUPS, lane_choices, lane_lines, read_lanes
from viz.estimate import models_sentence, time_sentence

from .page_fakes import fake_pair
from .page_server import write_recordings
from .runs import make_run

LANES = ["autoregressive", "static:5", "confidence:0.5", "oracle"]
RUN = make_run(lanes=tuple(LANES))
COSTS = {"target_s": 0.05, "v": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "c": {"shallow": 0.1}, "o": 0.0, "measured": "2026"}
MODELS = {"target": {"name": "Big", "parameters": 1_700_000_000}, "draft": {"name": "Small", "parameters": 135_000_000}}


def known_pair():
    return replace(fake_pair(), curves={"shallow": {"costs": COSTS, **MODELS}})


def seconds(sentence: str) -> list[float]:
    return [float(number) for number in re.findall(r"[0-9.]+(?= to| s)", sentence)]


def test_both_models_are_named_with_their_sizes(tmp_path):
    recorded = RecordedBackend(write_recordings(tmp_path))
    assert models_sentence(known_pair(), recorded) == "Big (1.7B parameters) checks what Small (135M) guesses."
    target, draft = RUN.pair.target, RUN.pair.drafts[RUN.pair.default_draft]
    said = models_sentence(replace(fake_pair(), name=RUN.pair.name, default_draft=draft.name), recorded)
    assert f"{target.name} (" in said and f"{draft.name} (" in said and "parameters" in said
    assert "the draft shallow guesses" in models_sentence(fake_pair(), RecordedBackend(tmp_path / "none"))


def test_the_range_holds_what_the_closed_form_gives_and_grows_with_the_repeats():
    plain = time_sentence(known_pair(), ["autoregressive"], 100, 1)
    assert seconds(plain) == [5.0] and plain.startswith("Takes about 5 s here")
    low, high = seconds(time_sentence(known_pair(), ["static:5"], 100, 1))
    decoding, chains = 100 / 3 * 2 * 0.05, 100 * (1 + 20 / 3) * 0.1 * 0.05  # 3 tokens an iteration, a third misses
    assert low < decoding + chains < high
    once, thrice = (seconds(time_sentence(known_pair(), LANES, 100, repeats)) for repeats in (1, 3))
    assert len(once) == 2 and thrice[2] < once[0] + 1 and 2 * once[0] < thrice[0] < thrice[1] < 3 * once[1] + 1


@pytest.mark.parametrize(
    ("lanes", "tokens", "repeats"),
    [(["nope"], 10, 3), (["other/static:3"], 10, 3), (LANES, None, 3), (LANES, 10, None), ([], 10, 3)],
)
def test_where_nothing_is_known_nothing_is_said(lanes, tokens, repeats):
    assert time_sentence(known_pair(), lanes, tokens, repeats) == ""
    assert time_sentence(fake_pair(), LANES, 10, 3) == time_sentence(None, LANES, 10, 3) == ""


def test_the_latest_kept_curves_of_a_draft_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_COSTS", str(tmp_path))
    info = asdict(RUN.pair.target)
    for name, source, date in (("a", "toy/shallow", "2025"), ("b", "toy/shallow", "2026"), ("c", "toy/other", "2027")):
        setting = {"target": info, "draft": info | {"source": source}, "machine": asdict(describe_machine())}
        kept = {"setting": setting, "costs": COSTS | {"measured": date}}
        (tmp_path / f"{name}.json").write_text(json.dumps(kept))
    setting["machine"]["processor"] += ", as avx2"  # the same cache, another machine
    kept = {"setting": setting | {"draft": info | {"source": "elsewhere"}}, "costs": COSTS | {"measured": "2028"}}
    (tmp_path / "other.json").write_text(json.dumps(kept))
    (tmp_path / "broken.json").write_text("{")
    found = curves_here({"shallow": ("toy/shallow", "elsewhere"), "none": ("toy/none",)})
    assert set(found) == {"shallow"} and found["shallow"]["costs"]["measured"] == "2026"


def test_the_list_of_lanes_has_groups_in_a_row_and_a_line_for_each():
    choices = lane_choices([replace(fake_pair(), best_sl={fake_pair().default_draft: 2})])
    lines = lane_lines(choices)
    labels = [label.split(": ")[0] for label, _ in choices]
    assert BEST_SL in labels and set(lines) == set(labels) and all(line for _, line in lines.values())
    assert "on validation prompts" in lines[BEST_SL][1]
    groups = [lines[label][0] for label in labels]
    assert groups == sorted(groups, key=GROUPS.index)
    assert "adaptive candidate lengths" in next(line for label, (_, line) in lines.items() if "SpecDec++" in label)


@pytest.mark.parametrize(
    ("typed", "lane", "sentence"),
    [
        ("Static 7", "static:7", ""),
        ("Conf", "confidence:0.4", ""),
        ("cost-a", "costaware", ""),
        ("aware", "costaware", ""),
        ("Banana 3", None, "There is no lane “Banana 3”. There are Plain, Static,"),
        ("Static 77", None, "The SL must be a whole number"),
    ],
)
def test_a_typed_lane_is_one_of_the_list_or_refused_in_its_words(typed, lane, sentence):
    pair = replace(fake_pair(), fitted={"shallow": ["disco", "costaware"]})
    lanes, fault = read_lanes(["autoregressive", typed], lane_choices([pair]))
    assert lanes == ["autoregressive", *([lane] if lane else [])]
    assert fault.startswith(sentence) and bool(fault) == bool(sentence)
