"""The form from a link and as a command line, without what is hostile in them; and what it says before a run."""

import json
import re
import subprocess
from dataclasses import asdict, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decoding.analysis.tuning import curves_here
from decoding.backends.recorded import RecordedBackend
from decoding.errors import UserError
from decoding.records.generate import ENGINE
from decoding.records.machine import describe_machine
from decoding.records.request import MAX_LANES, SETTINGS, CompareRequest
from tests.fakes import fake_pair
from tests.page_server import write_recordings
from tests.runs import HOSTILE, make_run
from viz.choices import BEST_SL, GROUPS, Example, find_examples, lane_choices, lane_lines, read_lanes
from viz.estimate import models_sentence, time_sentence
from viz.settings import command_line, form_of, form_of_run, read_form, request_of

FIRST = form_of(CompareRequest(""))
PROMPTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=60)
CHATS = st.sampled_from([(None, ""), (None, "Be kind."), (True, ""), (True, "Be kind."), (False, "")])
REQUESTS = st.builds(
    lambda asked, **settings: CompareRequest(chat=asked[0], system=asked[1], **settings),
    asked=CHATS,
    prompt=PROMPTS.filter(str.strip),
    lanes=st.lists(st.sampled_from(["autoregressive", "static:5", "ngram/static:10"]), min_size=1, unique=True),
    max_new_tokens=st.integers(1, 4096),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    rule=st.sampled_from(["coupling", "sampling"]),
    seed=st.integers(0, 2**31 - 1),
    ignore_eos=st.booleans(),
    dtype=st.sampled_from(["auto", "int4"]),
    stop=st.lists(st.sampled_from(["\t", "END", "a b"]), max_size=2),
)


@given(REQUESTS)
def test_the_form_and_a_link_give_the_request_back(request_):
    assert request_of(form_of(request_)) == request_
    values = {name: one.written(getattr(request_, name)) for name, one in SETTINGS.items()}
    restored, faults = read_form({name: str(value) for name, value in values.items()}, FIRST, "link")
    assert faults == []
    assert request_of(restored) == request_


@given(REQUESTS)
@example(CompareRequest("two\nlines, 'quoted' \\ and \u202e"))
@settings(max_examples=30)
def test_a_shell_reads_the_command_as_it_was_meant(request_):
    line = command_line(request_)
    assert "\n" not in line
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, env={"LC_ALL": "C.UTF-8"})
    read = words.stdout.decode().split("\0")[:-1]
    assert read[:4] == ["python", "-m", "decoding", "compare"]
    assert f"--prompt={request_.prompt}" in read and f"--lanes={','.join(request_.lanes)}" in read
    assert {"--chat", "--no-chat"} & {*read} == {None: set(), True: {"--chat"}, False: {"--no-chat"}}[request_.chat]
    assert [word for word in read if word.startswith("--system=")] == ["--system=Be kind."] * bool(request_.system)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_values_stay_text_or_are_left_out_with_a_sentence(text):
    read, faults = read_form(dict.fromkeys(SETTINGS, text), FIRST, "link")
    assert read["prompt"] == text
    named = " ".join(faults)
    checked = "max_new_tokens temperature rule seed repeats top_k top_p dtype weights draft_dtype ignore_eos"
    for name in checked.split():
        assert f"The link's {name} was left out" in named
        assert read[name] == FIRST[name]


UNFIT = {
    "seed": ["1e400", "nan", "-1", True],
    "temperature": ["inf", "5.5"],
    "top_p": ["2", "0"],
    "repeats": ["10"],
    "max_new_tokens": ["1.5", "9" * 5000],
    "lanes": ["", [1], ",".join(f"static:{n}" for n in range(1, 12))],
    "prompt": ["x" * 100_001, 5],
    "stop": [None],
    "ignore_eos": ["yes"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in UNFIT.items() for value in values])
def test_what_does_not_fit_is_left_out(name, value):
    read, faults = read_form({name: value}, FIRST, "link")
    assert len(faults) == 1 and faults[0].startswith(f"The link's {name} was left out: it ")
    assert read == FIRST


@pytest.mark.parametrize(
    ("query", "changes", "faults"),
    [
        ({"pair": "toy"}, {"pair": "toy"}, []),
        ({"pair": "nope"}, {}, ["The link's pair was left out: it must be one of toy, other."]),
        ({"weights": "int4"}, {"dtype": "int4"}, []),  # of an older link
        ({"__class__": "x", "theme": "y"}, {}, []),
    ],
    ids=["a pair", "a pair that is not offered", "weights are the number format", "unknown names"],
)
def test_what_is_read_of_a_link(query, changes, faults):
    assert read_form(query, FIRST, "link", ["toy", "other"]) == (FIRST | changes, faults)


def test_weights_of_an_older_run_are_the_number_format():
    assert form_of(CompareRequest("x", weights="int4", dtype="bfloat16"))["dtype"] == "int4"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_new_tokens": None}, "whole number"),
        ({"max_new_tokens": 2.5}, "whole number"),
        ({"prompt": " "}, "prompt is empty"),
    ],
)
def test_a_form_that_cannot_run_says_why(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        request_of({**FIRST, "prompt": "x", **changes})


def test_a_run_fills_in_the_form_and_one_of_generate_all_but_its_lanes():
    run = make_run(lanes=("autoregressive", "static:7"), prompt="mine")
    assert form_of_run(run)["lanes"] == ["autoregressive", "static:7"]
    assert form_of_run(replace(run, settings=replace(run.settings, temperature=5.0)))["temperature"] == 5.0
    target = replace(run.pair.target, engine=ENGINE)
    lanes = [replace(trace, lane=lane) for trace, lane in zip(run.lanes, ("generate", "assistant/generate"))]
    watched = form_of_run(replace(run, lanes=lanes, pair=replace(run.pair, target=target)))
    assert watched["lanes"] == FIRST["lanes"] and watched["prompt"] == "mine"


# -- the models, the seconds, and what is wrong with a typed lane

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
    assert "shallow guesses, the target checks" in models_sentence(fake_pair(), RecordedBackend(tmp_path / "none"))
    lanes = ["autoregressive", "ngram/static:5", "static:3", "static:5"]
    assert models_sentence(known_pair(), recorded, lanes).endswith(" checks what ngram and Small (135M) guess.")
    assert models_sentence(known_pair(), recorded, lanes[:2]).endswith(" checks what ngram guesses.")


def test_the_range_holds_what_the_closed_form_gives_and_grows_with_the_repeats():
    plain = time_sentence(known_pair(), ["autoregressive"], 100, 1)
    assert seconds(plain) == [5.0] and plain.startswith("The timing takes about 5 s here")
    assert seconds(time_sentence(known_pair(), ["autoregressive"] * 2, 100, 1)) == [10.0]  # one after the other
    low, high = seconds(time_sentence(known_pair(), ["static:5"], 100, 1))
    assert low < 100 / 3 * 2 * 0.05 < high  # 3 tokens an iteration, a third misses
    once, thrice = (seconds(time_sentence(known_pair(), LANES, 100, repeats)) for repeats in (1, 3))
    assert len(once) == 2 and thrice[2:] == once  # each of them
    assert thrice[:2] == pytest.approx([3 * one for one in once], abs=2)  # rounded to seconds, as each is


def test_where_nothing_is_known_nothing_is_said():
    unknown = [(lanes, 10, 3) for lanes in (["nope"], ["other/static:3"], [])]
    unknown += [(LANES, tokens, 3) for tokens in (None, 0, -5, 10**6)]
    unknown += [(LANES, 10, repeats) for repeats in (None, 0, -1)]
    assert {time_sentence(known_pair(), *asked) for asked in unknown} == {""}
    assert time_sentence(known_pair(), LANES, 10, 3, ("auto", "auto")) != ""
    assert time_sentence(known_pair(), LANES, 10, 3, ("int4", "auto")) == ""  # the curves are of another format
    assert time_sentence(fake_pair(), LANES, 10, 3) == ""


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
    of_another = replace(fake_pair(), fitted={"another": ["disco"]})
    own, other = fake_pair(), replace(fake_pair(), name="other", drafts={"theirs": "x"}, default_draft="theirs")
    example = Example("An example", "text", ["theirs/static:4", "static:4"])
    offered = [{lane for _, lane in lane_choices(pairs, [example])} for pairs in ([own, other], [other, own])]
    assert ["theirs/static:4" in lanes for lanes in offered] == [False, True] and "static:4" in offered[0]
    assert any(label.startswith("DISCO") and "fit first" in label for label, _ in lane_choices([of_another]))
    assert "adaptive candidate lengths" in next(line for label, (_, line) in lines.items() if "SpecDec++" in label)


def test_a_recording_with_lanes_of_another_program_is_an_example_without_them(tmp_path):
    run = make_run(lanes=("autoregressive", "static:5"))
    run.lanes[1].lane = "assisted"  # of transformers' generate
    example, *_ = find_examples(RecordedBackend(write_recordings(tmp_path, run)))
    assert (example.recording, example.lanes) == (run.id, ["autoregressive"])
    assert lane_choices([fake_pair()], [example])


@pytest.mark.parametrize(
    ("typed", "lane", "sentence"),
    [
        ("Static 7", "static:7", ""),
        ("Conf", "confidence:0.4", ""),
        ("cost-a", "costaware", ""),
        ("aware", "costaware", ""),
        ("Banana 3", None, "There is no lane “Banana 3”. There are Plain, Static,"),
        ("STATIC:7", "static:7", ""),
        ("Static 77", None, "The SL must be a whole number"),
        ("Static 2", "static:2", ""),  # and not the one label that begins so
        ("Static", None, "The SL must be a whole number"),  # several labels begin so
        ("ngram/static:8", "ngram/static:8", ""),
        ("ngram/tree:8", None, "The lane ngram/tree:8 decides by the draft's probabilities, and ngram has none"),
    ],
)
def test_a_typed_lane_is_one_of_the_list_or_refused_in_its_words(typed, lane, sentence):
    pair = replace(fake_pair(), fitted={"shallow": ["disco", "costaware"]})
    lanes, fault = read_lanes(["autoregressive", typed], lane_choices([pair]))
    assert lanes == ["autoregressive", *([lane] if lane else [])]
    assert fault.startswith(sentence) and bool(fault) == bool(sentence)


def test_more_lanes_than_a_run_has_are_left_out_with_a_sentence():
    lanes = [f"static:{sl}" for sl in range(1, MAX_LANES + 1)]
    assert read_lanes([*lanes, "Static 1"], []) == (lanes, "")
    assert read_lanes([*lanes, "Static 20"], []) == (
        lanes,
        "A run has at most 8 lanes: remove one before you add another.",
    )


def test_all_lanes_that_cannot_be_run_are_named():
    lanes, fault = read_lanes(["Banana 3", "static:0", "Static 3", "pear"], lane_choices([fake_pair()]))
    assert lanes == ["static:3"]
    assert fault.startswith("There is no lane “Banana 3” or “pear”. There are Plain,") and "static:0 never" in fault
