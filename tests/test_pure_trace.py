"""Run files: read back equal, hostile ones refused. JSON Lines, from which work resumes. Whole texts; files written."""

import json
import math
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.errors import UserError
from decoding.files import Lines, write_whole
from decoding.records import run_file
from decoding.records.request import SETTINGS, CompareRequest, check_request, read_request, request_from_dict
from decoding.records.run_file import MAX_FILE_BYTES, load_run, run_from_json, run_to_json, save_run, to_plain
from decoding.records.text import pieces, whole_text
from decoding.records.trace import Iteration, TokenText
from tests.runs import make_run

LANES = ("autoregressive", "static:3", "heuristic", "confidence:0.4", "disco:0.5", "oracle")
CHARACTERS = st.characters(exclude_categories=("Cs",))  # the default alphabet takes seconds to be tabulated


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    n_tokens=st.integers(1, 40),
    lanes=st.sets(st.sampled_from(LANES), min_size=1),
    repeats=st.integers(1, 3),
    match=st.floats(0.6, 1.0),
    finish=st.sampled_from(["length", "eos", "stop", "context", "cancelled"]),
    texts=st.lists(st.text(CHARACTERS, max_size=20), max_size=8),
)
def test_a_run_comes_back_equal(seed, n_tokens, lanes, repeats, match, finish, texts):
    run = make_run(seed=seed, n_tokens=n_tokens, lanes=tuple(lanes), repeats=repeats, match=match, finish=finish)
    run.vocab.update({1000 + i: TokenText(text) for i, text in enumerate(texts)})
    again = run_from_json(run_to_json(run))
    assert again == run
    assert run_to_json(again) == run_to_json(run)


def test_a_file_is_written_whole_and_a_failed_write_leaves_the_old_one_and_nothing_else(tmp_path):
    run, path = make_run(hostile=True), tmp_path / "folder" / "run.json"
    save_run(run, path)
    broken = make_run()
    broken.costs.overhead = math.nan
    with pytest.raises(ValueError):
        save_run(broken, path)
    assert load_run(path) == run
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


def plain(**changes):
    """A valid run file as plain data."""
    return json.loads(run_to_json(make_run(n_tokens=12, **changes)))


def change(path: str, value):
    """The text of a valid run file with one place changed."""
    data = plain()
    place = data
    *way, last = path.split("/")
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(data)


def without_times(seconds: float) -> str:
    data = plain()
    for lane in data["lanes"]:
        for repeat in lane["repeats"]:
            repeat.update({name: [seconds] * len(times) for name, times in repeat.items() if name != "prefill_s"})
    return json.dumps(data)


def with_empty_iterations() -> str:
    data = plain(repeats=1)
    lane = data["lanes"][0]
    empty = {"start": 0, "drafted": [], "emitted": None, "stop": "policy"}
    lane["iterations"] = [empty] * 5 + lane["iterations"]
    repeat = lane["repeats"][0]
    repeat.update({name: [0.1] * 5 + times for name, times in repeat.items() if name != "prefill_s"})
    return json.dumps(data)


CHAIN = plain()["chains"]["shallow"]
HOSTILE_FILES = {  # and what is said of each
    "empty": (b"", "Invalid JSON: EOF"),
    "binary": (b"\x00\xff" * 50, "Invalid JSON: expected value"),
    "utf-16": ("{}".encode("utf-16"), "Invalid JSON: expected value"),
    "deep lists": ("[" * 200_000, "recursion limit"),
    "deep objects": ('{"a":' * 200_000, "recursion limit"),
    "null": ("null", "should be an object"),
    "list": ("[1, 2]", "should be an object"),
    "bare NaN": ("NaN", "should be an object"),
    "other schema": (lambda: change("schema", "speculoscope.run/999"), "at schema"),
    "unknown key": (lambda: change("surprise" * 20_000, 1), "at surprisesurprise"),
    "unknown key inside": (lambda: change("costs/surprise", 1), "at costs, surprise"),
    "NaN cost": (lambda: change("costs/o", math.nan), "at costs, o"),
    "infinite cost": (lambda: change("costs/v/1", math.inf), "at costs, v, no. 2"),
    "zero v": (lambda: change("costs/v/0", 0.0), "at costs, v, no. 1"),
    "negative c": (lambda: change("costs/c/shallow", -0.1), "at costs, c, shallow"),
    "negative id": (lambda: change("lanes/0/output/0", -1), "at lanes, no. 1, output, no. 1"),
    "huge id": (lambda: change("prompt_ids/0", 2**40), "at prompt_ids, no. 1"),
    "huge number": (lambda: change("pair/target/parameters", int("9" * 4000)), "at pair, target, parameters"),
    "too many tokens": (lambda: change("lanes/0/output", [1] * 9000), "at lanes, no. 1, output"),
    "fraction as id": (lambda: change("prompt_ids/0", 1.5), "at prompt_ids, no. 1"),
    "text as list": (lambda: change("lanes", "none"), "at lanes"),
    "no lanes": (lambda: change("lanes", []), "holds no lane"),
    "probability above one": (lambda: change("lanes/1/iterations/0/drafted/0/p_draft", 1.5), "drafted, no. 1, p_draft"),
    "negative seconds": (lambda: change("lanes/0/repeats/0/check_s/0", -1.0), "no. 1, check_s, no. 1"),
    "path as id": (lambda: change("id", "../../etc/passwd"), "at id"),
    "unknown fate": (lambda: change("lanes/1/iterations/0/drafted/0/fate", "eaten"), "drafted, no. 1, fate"),
    "emitted is a draft": (lambda: change("lanes/0/iterations/0/emitted/fate", "accepted"), "iteration 0 does not"),
    "wrong start": (lambda: change("lanes/0/iterations/3/start", 7), "iteration 3 does not"),
    "times missing": (lambda: change("lanes/0/repeats/0/rest_s", []), "its times do not match its 12 iterations"),
    "output differs": (lambda: change("lanes/0/output/3", 5000), "not what its iterations emitted"),
    "lane twice": (lambda: change("lanes/1/lane", "autoregressive"), "names a lane twice"),
    "lane without costs": (lambda: change("costs/c", {}), "Lane static:5: the costs lack its draft"),
    "tail outside": (lambda: change("chains/shallow/tails/500", CHAIN["along"]), "a tail at 500 is"),
    "scores of along alone": (lambda: change("chains/shallow/along/scores/alone", [0.5] * 12), "lack scores"),
    "negative tail": (lambda: change("chains/shallow/tails/-1", CHAIN["along"]), "tails, -1"),
    "uneven lists": (lambda: change("chains/shallow/along/p", [0.5]), "different lengths"),
    "uneven scores": (lambda: change("chains/shallow/along/scores/disco", [0.5]), "different lengths"),
    "guesses from one place only": (lambda: change("chains/shallow/starts", [CHAIN["along"]]), "1 places of 12"),
    "impossible settings": (lambda: change("settings/max_new_tokens", -3), "Max new tokens must be"),
    "number as text": (lambda: change("costs/o", "0.02"), "at costs, o"),
    "id as text": (lambda: change("prompt_ids/0", "3"), "at prompt_ids, no. 1"),
    "truth as id": (lambda: change("prompt_ids/0", True), "at prompt_ids, no. 1"),
    "truth as time": (lambda: change("lanes/0/repeats/0/check_s/0", True), "no. 1, check_s, no. 1"),
    "no time at all": (lambda: without_times(0.0), "its times are all 0"),
    "times beyond all measure": (lambda: without_times(1e308), "no. 1, draft_s, no. 1"),
    "a target that takes no time": (lambda: change("costs/target_s", 0.0), "at costs, target_s"),
    "a score beyond all measure": (lambda: change("chains/shallow/along/entropy/0", -1e308), "along, entropy, no. 1"),
    "a chain without costs": (lambda: change("chains/other", CHAIN | {"draft": "other"}), "Chain other: the costs"),
    "a chain under another name": (lambda: change("chains/shallow/draft", "other"), "the guesses of other"),
    "an iteration that emits nothing": (lambda: with_empty_iterations(), "iteration 0 emitted nothing"),
    "text too long": (lambda: change("vocab/3/text", "x" * 1000), "at vocab, 3, text"),
    "half a character": (lambda: change("settings/prompt", "\ud800"), "Invalid JSON: unexpected end of hex escape"),
}


@pytest.mark.parametrize(("text", "words"), HOSTILE_FILES.values(), ids=HOSTILE_FILES)
def test_hostile_files_are_refused_with_a_sentence(text, words):
    with pytest.raises(UserError) as caught:
        run_from_json(text() if callable(text) else text)
    sentence = str(caught.value)
    assert words in sentence and sentence.endswith(".") and len(sentence) < 600 and "\n" not in sentence


def test_fates_out_of_order_are_refused():
    data = plain(match=0.3)
    drafted = next(it["drafted"] for it in data["lanes"][1]["iterations"] if it["drafted"][0]["fate"] == "rejected")
    drafted[0]["fate"], drafted[1]["fate"] = "dropped", "rejected"
    with pytest.raises(UserError, match="does not follow"):
        run_from_json(json.dumps(data))


def test_what_is_larger_than_a_run_file_may_be_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(UserError, match="larger than 128 MB"):
        load_run(path)
    monkeypatch.setattr(run_file, "MAX_FILE_BYTES", 2**20)
    with pytest.raises(UserError, match="larger than 1 MB"):
        run_from_json(" " * (2**20 + 1))
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        with pytest.raises(UserError, match="larger than 1 MB"):
            load_run(f"/dev/fd/{endless.stdout.fileno()}")
        endless.kill()


def test_what_cannot_be_read_or_written_is_distinguished_from_faults(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="Cannot write the run file"):
        save_run(make_run(n_tokens=3), tmp_path / "file" / "run.json")
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UserError, match="Cannot read"):
            load_run(path)


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(CHARACTERS, max_size=5), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_at_any_place_is_a_run_or_a_sentence(value):
    data = to_plain(make_run(n_tokens=4, repeats=1, alternatives=1))
    for key in data:
        try:
            run_from_json(json.dumps({**data, key: value}))
        except UserError:
            pass


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"prompt": "x\ud800"}, "half of a character"),  # a run with one could be written but not read again
        ({"stop": ["\udfff"]}, "half of a character"),
        ({"system": "\ud800"}, "half of a character"),
        ({"prompt": " \n"}, "The prompt is empty: type"),
        ({"prompt": "x\0"}, "looks like a binary file"),
        ({"lanes": []}, "No lane was chosen: pick"),
        ({"lanes": ["static:3", "static:3"]}, "A lane was named twice"),
        ({"lanes": ["static:3", " static:3"]}, "A lane was named twice"),
        ({"stop": [""]}, "A stop string is empty"),
        ({"system": "x", "chat": False}, "A system message is part of a chat"),
        ({"picture": "\U0001f431", "chat": False}, "A picture is part of a chat"),
        ({"target": "x"}, "Name both a target and a draft"),
        ({"rule": "coupling", "temperature": 0.0001}, "must be 0 or at least 0.001"),
        ({"temperature": 1.0}, "The greedy rule needs temperature 0"),
        ({"rule": "sampling"}, "The sampling rule needs a temperature above 0"),
        ({"dtype": "float16", "weights": "int4"}, "Two number formats were named, float16 and int4"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        check_request(CompareRequest(**{"prompt": "x", **changes}))


NUMBERS = [name for name, one in SETTINGS.items() if one.kind in ("whole", "number")]


@pytest.mark.parametrize("beyond", [-1, 10**12])
@pytest.mark.parametrize("name", NUMBERS)
def test_the_sentence_on_a_refused_number_names_what_is_accepted(name, beyond):
    with pytest.raises(UserError) as refused:
        read_request({"prompt": "x", name: beyond})
    words = r"(from|above) ([\d,.]+) (?:to|and at most) ([\d,.]+), not"
    begins, *bounds = re.search(words, str(refused.value)).groups()
    low, high = (float(bound.replace(",", "")) for bound in bounds)
    rule = {"rule": "coupling", "temperature": 1.0} if name == "temperature" else {}
    assert getattr(read_request({"prompt": "x", **rule, name: high}), name) == high
    with pytest.raises(UserError) if begins == "above" else nullcontext():
        read_request({"prompt": "x", name: low})


def test_true_is_no_number_in_a_request_from_elsewhere():
    with pytest.raises(UserError, match="whole number"):
        request_from_dict({"prompt": "x", "repeats": True})


TURNED = "small\u202eegral"


@pytest.mark.parametrize(
    "place",
    ["pair/name", "machine/processor", "lanes/0/lane", f"costs/c/{TURNED}", "settings/pair", "settings/lanes/0"],
)
def test_a_name_does_not_turn_the_program_s_sentences_around(place):
    with pytest.raises(UserError, match=r"U\+202E"):
        run_from_json(change(place, 0.5 if place.startswith("costs") else TURNED))


# -- JSON Lines

KEY = {"target": "a", "of": 1}


def written(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_that_a_kill_cut_short_goes_and_a_process_that_is_there_still_adds(tmp_path):
    path = tmp_path / "lines.jsonl"
    first = Lines(path, KEY)
    first.add({"n": 1})
    with path.open("a") as killed:
        killed.write('{"n": 2')
    second = Lines(path, KEY)
    first.add({"n": 3})
    second.add({"n": 4})
    assert written(path) == [KEY, {"n": 1}, {"n": 3}, {"n": 4}] and second.records == [{"n": 1}, {"n": 4}]


def test_another_key_is_refused_or_begins_again(tmp_path):
    path = tmp_path / "lines.jsonl"
    Lines(path, KEY).add({"n": 1})
    with pytest.raises(UserError, match="other work .different of."):
        Lines(path, KEY | {"of": 2})
    assert written(path) == [KEY, {"n": 1}]
    assert Lines(path, KEY | {"of": 2}, stale="restart").records == []
    assert written(path) == [KEY | {"of": 2}]


def test_a_file_of_something_else_and_a_place_that_takes_none_are_refused(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# Mine\n")
    with pytest.raises(UserError, match="README.md contains other work"):
        Lines(path, KEY)
    assert path.read_text() == "# Mine\n"
    with pytest.raises(UserError, match="Cannot use"):
        Lines(path / "lines.jsonl", KEY)


# -- display text: lossless, also if characters are split over tokens


def tokens_of(chunks: list[bytes]) -> dict[int, TokenText]:
    vocab = {}
    for index, chunk in enumerate(chunks):
        try:
            vocab[index] = TokenText(chunk.decode("utf-8"))
        except UnicodeDecodeError:
            vocab[index] = TokenText("\ufffd", bytes=chunk.hex())
    return vocab


@given(st.text(CHARACTERS, max_size=60), st.lists(st.integers(0, 200), max_size=30))
def test_any_split_of_any_text_is_shown_without_loss(text, cuts):
    data = text.encode("utf-8")
    edges = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    chunks = [data[low:high] for low, high in zip(edges, edges[1:])]
    shown = pieces(range(len(chunks)), tokens_of(chunks))
    assert len(shown) == len(chunks)
    assert "".join(shown) == text


@given(st.lists(st.binary(min_size=1, max_size=4), max_size=12))
def test_any_bytes_at_all_decode_as_python_would(chunks):
    vocab = {index: TokenText("\ufffd", bytes=chunk.hex()) for index, chunk in enumerate(chunks)}
    assert whole_text(range(len(chunks)), vocab) == b"".join(chunks).decode("utf-8", "replace")


def test_a_character_stands_at_the_token_that_completes_it_and_what_is_none_is_marked():
    vocab = tokens_of([b"a", b"\xf0\x9f", b"\x98\x80", b"b"])
    assert pieces([0, 1, 2, 3], vocab) == ["a", "", "😀", "b"]
    assert pieces([0, 1, 3], vocab) == ["a", "", "\ufffdb"]
    assert pieces([0, 1], vocab) == ["a", "\ufffd"]
    # an unknown id, and bytes that are no hexadecimal number
    assert pieces([7, 0], {0: TokenText("x", bytes="zz")}) == ["\ufffd", "\ufffd"]


# -- files


def test_a_file_is_written_where_a_link_leads_and_keeps_its_permissions(tmp_path):
    (tmp_path / "there").write_text("old")
    (tmp_path / "there").chmod(0o600)
    (tmp_path / "link").symlink_to("there")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there").read_text() == "new"
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        write_whole(tmp_path / "pipe", "new")
    script = "import pathlib, sys; from decoding import files; files.write_whole(pathlib.Path(sys.argv[1]), '')"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "own")], check=True, umask=0o077)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600, "as this user's other files"


def test_a_tree_has_no_number_of_a_chain():
    """It may hold where the chain does not; files of earlier versions have that number."""
    chain = Iteration(0, [], None, "policy", holds=2)
    assert chain.holds == 2 and replace(chain, parents=[]).holds is None
