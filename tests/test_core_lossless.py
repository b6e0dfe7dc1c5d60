"""A slice of ``python -m decoding lossless`` on a tiny random pair, and that it can fail."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from decoding.bench.lossless import Counts, Text, check_lossless, checked_lanes, transformers_reference
from decoding.engines.pair import load_pair
from decoding.errors import UserError
from decoding.records.suites import Prompt

from .commands import command
from .toy import quick_run

PROMPTS = ["def f(x):\n    return", "aaaa bbbb aaaa", "é"]


@pytest.fixture(scope="module")
def pair(lively_pair):
    return load_pair(target=lively_pair[0], draft=lively_pair[1], dtype="float32", device="cpu")


def last(counts) -> Counts:
    return list(counts)[-1]


def test_every_policy_writes_the_text_of_generate(pair):
    reference = transformers_reference(pair.target_folder)
    prompts = [pair.encode_prompt(text) for text in PROMPTS]
    counts = last(check_lossless(pair, reference, prompts, 20, caps=range(1, 17, 7)))
    n_lanes = len(checked_lanes({}))
    expected = {"throughput", "bandit", "adaedl", "oracle:best", "ngram/static:{cap}", "tree:{cap}", "costtree"}
    assert expected <= set(checked_lanes({}))
    assert counts.different == [] and counts.prompts == 3
    assert counts.compared == 3 * (1 + n_lanes * 3) == counts.equal + counts.near_ties
    assert counts.near_ties <= 0.1 * counts.compared


def test_generate_writes_the_likeliest_text_whatever_its_settings_ask_for(pair, tmp_path):
    folder = Path(shutil.copytree(pair.target_folder, tmp_path / "target"))
    prompt = pair.encode_prompt(PROMPTS[0])
    expected = transformers_reference(folder)(prompt, 20)
    settings = {"eos_token_id": 256, "repetition_penalty": 9.0, "suppress_tokens": expected.tokens}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    assert transformers_reference(folder)(prompt, 20).tokens == expected.tokens


def test_a_draft_without_the_prompts_tokens_is_refused(pair, monkeypatch):
    monkeypatch.setattr(pair.draft(), "vocab_size", 16)
    prompts = [pair.encode_prompt(PROMPTS[0])]
    with pytest.raises(UserError, match="has 16 tokens, and the target needs others for this text"):
        last(check_lossless(pair, lambda *of: Text([], []), prompts, 4))


def test_the_slice_means_something(pair):
    """Its text is varied, and its draft is sometimes right and sometimes wrong."""
    trace = quick_run(["static:4"], pair, PROMPTS[0]).lanes[0]
    fates = [token.fate for it in trace.iterations for token in it.drafted]
    assert len(set(trace.output)) > 10 and "accepted" in fates and "rejected" in fates


def test_a_wrong_acceptance_is_counted_with_its_place(pair, monkeypatch):
    reference = transformers_reference(pair.target_folder)
    all_hold = "decoding.loop.acceptance.follow"
    monkeypatch.setattr(all_hold, lambda choices, proposal: (range(len(proposal.tokens)), choices[-1]))
    counts = last(check_lossless(pair, reference, [pair.encode_prompt(PROMPTS[0])], 24, caps=range(3, 4)))
    assert counts.different
    prompt, rule, cap, at, gap = counts.different[0]
    assert (prompt, cap) == (0, 3) and 0 <= at < 24 and gap >= 1e-4


def test_near_ties_are_counted_apart():
    counts, expected = Counts(), Text([1, 2, 3], [1.0, 5e-5, 1.0])
    counts.add(0, "static", 2, [1, 9, 3], expected)
    counts.add(0, "static", 2, [1, 2, 4], expected)
    counts.add(0, "static", 2, [1, 2, 3], expected)
    counts.add(0, "static", 2, [1, 2], expected)
    assert (counts.equal, counts.near_ties, len(counts.different)) == (1, 1, 2)


def test_the_command_prints_counts_and_goes_on_from_its_file(lively_pair, tmp_path, monkeypatch):
    target, draft = lively_pair
    words = ["lossless", "--target", target, "--draft", draft, "--max-new-tokens", "4", "--longest", "1"]
    kept = ["--json", "--out", str(tmp_path / "counts.jsonl")]

    def counts(*more):
        printed = command(*words, *kept, *more).out
        return json.loads(printed[printed.index("{") :])

    first, second = counts("--limit", "1"), counts("--limit", "2")
    assert first["compared"] == 1 + len(checked_lanes({})) and first["different"] == []
    assert (first["prompts"], second["prompts"]) == (1, 2) and second["equal"] == 2 * first["equal"]
    assert counts("--limit", "2") == second and len((tmp_path / "counts.jsonl").read_text().splitlines()) == 3
    assert "has the counts of other prompts" in command(*words, *kept, "--limit", "1").err
    assert "is no regular file" in command(*words, "--limit", "1", "--out", "/dev/full").err
    other = [Prompt(f"p{n}", "mine", "test", f"other {n}", "") for n in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr("decoding.records.suites.load_suite", lambda *of: other)
        assert "has the counts of other prompts" in command(*words, *kept, "--limit", "2").err
    assert "different skip" in command(*words, *kept, "--limit", "2", "--skip", "1").err
    assert "Minutes must be" in command(*words, "--minutes", "nan").err

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        yield

    with monkeypatch.context() as patch:
        patch.setattr("decoding.bench.lossless.check_lossless", interrupted)
        stopped = command(*words, *kept, "--limit", "3")
    assert stopped.status == 130 and "The same command continues." in stopped.err
    assert "Skip fewer" in command(*words, "--limit", "2", "--skip", "2").err
    assert "Skip fewer" in command(*words, "--max-new-tokens", "2048").err
    with (tmp_path / "counts.jsonl").open("a") as file:
        file.write('{"prompts": 1}\n')
    assert "has the counts of other prompts" in command(*words, *kept, "--limit", "2").err
