"""Kept cost curves: they are found again, checked, and measured again if they no longer fit or are old."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from decoding.comparison import compare as compare_module
from decoding.comparison.compare import Comparison
from decoding.comparison.costs import TRIED_SL, Timer, adjusted
from decoding.comparison.idle import measure_asked, prepare_usual
from decoding.comparison.kept_costs import MAX_AGE, KnownCosts, Task, bucket
from decoding.comparison.prepare import prepare
from decoding.engines.kept_trials import age_of
from decoding.records.request import CompareRequest
from decoding.records.trace import Costs

from .runs import make_costs
from .toy import ToyPair

LANES = ["autoregressive", "static:3", "oracle"]
COSTS = make_costs(0.1, 0.02, drafts=["small"], length=65, first_step={"small": 0.05}, decision={})


@pytest.fixture
def known(tmp_path):
    return KnownCosts(ToyPair(), tmp_path)


def request(**changes) -> CompareRequest:
    return CompareRequest(**{"prompt": "abcabc", "lanes": LANES, "max_new_tokens": 30, "repeats": 1, **changes})


def run_of(known: KnownCosts, **changes):
    """(the run, the stages of its progress events)."""
    comparison = Comparison(prepare(request(**changes), known.pair), known, lambda: False, "run")
    stages = [data["stage"] for kind, data in comparison.events() if kind == "progress"]
    return comparison.run, stages


@pytest.fixture
def as_kept(monkeypatch):
    """The machine is as fast as it was."""
    monkeypatch.setattr(compare_module, "adjusted", lambda kept, prepared, plain_s: kept)


def test_the_first_run_measures_and_the_next_one_finds(known, as_kept):
    first, stages = run_of(known)
    assert stages.count("measuring") > 1 and first.costs.measured is None
    again = KnownCosts(ToyPair(), known.folder)  # another process
    second, stages = run_of(again)
    assert stages.count("measuring") == 1 and second.costs.measured is not None
    assert second.costs.verify_curve == first.costs.verify_curve and second.costs.draft_step == first.costs.draft_step


def test_lanes_that_are_warm_are_not_warmed_again(known, as_kept):
    assert run_of(known)[1].count("warming up") == 3
    assert run_of(known)[1].count("warming up") == 0


def test_a_run_made_to_be_kept_measures_for_itself(known, as_kept):
    run_of(known)
    assert run_of(known, repeats=5)[0].costs.measured is None


def test_curves_at_another_context_serve_until_there_are_own_ones(known):
    known.keep(["small"], 4000, replace(COSTS, verify_curve=[1.0, 3.0]))
    known.keep(["small"], 100, COSTS)
    assert known.find(["small"], 120).verify_curve == COSTS.verify_curve and not known.tasks
    assert known.find(["small"], 2000).verify_curve == [1.0, 3.0] and known.tasks == [Task("small", 2048)]


def test_curves_of_another_pair_or_machine_are_not_taken(known):
    known.keep(["small"], 100, COSTS)
    assert known.find(["small"], 100) is not None and known.find(["weak"], 100) is None
    other = ToyPair()
    other.target.info = replace(other.target.info, fingerprint="other weights")
    assert KnownCosts(other, known.folder).find(["small"], 100) is None
    other.target.info = replace(known.pair.target.info, threads=7)
    assert KnownCosts(other, known.folder).find(["small"], 100) is None


def test_several_drafts_are_joined(known):
    known.keep(["small"], 100, COSTS)
    known.keep(["ngram"], 100, make_costs(0.001, 1.0, drafts=["ngram"], length=2, first_step={"ngram": 0.0}))
    found = known.find(["small", "ngram"], 100)
    assert found.draft_step == {"small": 0.1, "ngram": 0.001} and found.verify_curve == COSTS.verify_curve
    assert known.find(["small", "weak"], 100) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"setting": 1}'])
def test_a_broken_file_is_measured_again(known, content):
    known.keep(["small"], 100, COSTS)
    (path,) = known.folder.glob("*.json")
    path.write_bytes(content)
    assert known.find(["small"], 100) is None


def test_a_disk_that_takes_nothing_is_no_fault(tmp_path):
    (tmp_path / "file").write_text("")
    known = KnownCosts(ToyPair(), tmp_path / "file")
    known.keep(["small"], 100, COSTS)
    assert known.find(["small"], 100) is None


OLD = {"measured": (datetime.now(timezone.utc) - 2 * MAX_AGE).isoformat()}
BUSY = {"doubt": 0.5}  # readings that contradict each other


@pytest.mark.parametrize("about", [OLD, BUSY])
def test_curves_that_are_old_or_doubtful_serve_and_are_asked_for_again(known, about):
    known.keep(["small"], 100, COSTS)
    (path,) = known.folder.glob("*.json")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"costs": kept["costs"] | about}))
    for _ in range(2):
        assert known.find(["small"], 100).verify_curve == COSTS.verify_curve
        assert known.tasks == [Task("small", bucket(100))]
    measure_asked(known, lambda: False)
    assert not known.tasks and known.find(["small"], 100).verify_curve != COSTS.verify_curve


def adjusted_to(monkeypatch, kept: Costs, *, check: float, draft: float) -> Costs:
    """``kept`` after a check of TRIED_SL guesses that took so many plain passes, and as many draft steps."""

    def read(self, name, lengths):
        self.verifications[name][TRIED_SL], self.drafts[name][TRIED_SL] = [check], [draft]
        self.plain = [1.0]
        return iter(())

    monkeypatch.setattr(Timer, "read", read)
    return adjusted(kept, prepare(request(), ToyPair()), 1.0)


def test_curves_stay_where_they_fit_and_are_bent_through_what_was_read_where_they_do_not(monkeypatch):
    kept = replace(COSTS, measured="2026-01-01T00:00:00+00:00")
    assert adjusted_to(monkeypatch, kept, check=1.12, draft=0.57) == replace(kept, target_s=1.0)
    found = adjusted_to(monkeypatch, kept, check=2.0, draft=1.1)
    assert found.measured is None and found.verify(6) == pytest.approx(2.0)
    assert found.start(5, "small") + 5 * found.draft_step["small"] == pytest.approx(1.1)
    assert found.verify_curve == sorted(found.verify_curve) and found.verify_curve[0] == 1.0


def test_a_misfit_is_measured_again_in_idle_time(known, monkeypatch):
    run_of(known)
    bent = lambda kept, prepared, plain_s: replace(kept, measured=None)  # noqa: E731
    monkeypatch.setattr(compare_module, "adjusted", bent)
    run_of(known)
    assert known.tasks == [Task("small", bucket(6 + 15))] and known.misfits
    tried = []
    monkeypatch.setattr("decoding.comparison.kept_costs.try_again", tried.append)
    measure_asked(known, lambda: True)
    assert tried == []
    measure_asked(known, lambda: False)
    assert tried[0] is known.pair.target and not known.misfits and not known.tasks
    measure_asked(known, lambda: False)
    assert len(tried) == len(set(map(id, tried)))


def test_idle_time_ends_as_soon_as_somebody_wants_something(known):
    known.ask_for("small", 100)
    asked = iter(range(10))
    measure_asked(known, lambda: next(asked) >= 5)
    assert known.tasks and next(asked) == 6
    measure_asked(known, lambda: False)
    assert not known.tasks


def test_what_a_usual_run_needs_is_there_before_anybody_asks(known, as_kept):
    prepare_usual(known, lambda: False)
    assert known.warm >= {"autoregressive", "static:5", "oracle"}
    _, stages = run_of(known, lanes=["autoregressive", "static:5", "oracle"], max_new_tokens=60)
    assert "warming up" not in stages and stages.count("measuring") == 1


def test_ages_that_cannot_be_read_are_old():
    assert age_of("yesterday") == timedelta.max == age_of(COSTS.measured)
    assert age_of("2026-01-01T00:00:00") == timedelta.max
