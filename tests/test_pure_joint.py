"""Real comparisons of toy models: their files are read back equal, and what-if reproduces every lane from them."""

import pytest

from decoding.analysis import metrics, whatif
from decoding.analysis.lane_figures import lane_figures
from decoding.comparison.compare import finished_run
from decoding.records.request import CompareRequest
from decoding.records.run_file import run_from_json, run_to_json
from tests.toy import ToyPair

LANES = ["autoregressive", "static:4", "heuristic", "confidence:0.4", "ngram/static:3", "oracle", "oracle:best"]


@pytest.mark.parametrize(
    "options, eos, agree",
    [
        ({"max_new_tokens": 40}, None, 0.9),
        ({"max_new_tokens": 40}, 3, 0.8),
        ({"max_new_tokens": 30, "stop": ["ab"]}, None, 0.8),
        ({"max_new_tokens": 30, "rule": "coupling", "temperature": 0.8, "seed": 4}, 7, 0.6),
        ({"max_new_tokens": 1}, None, 0.9),
    ],
)
def test_a_real_run_is_reproduced_from_its_file(options, eos, agree):
    request = CompareRequest("abcdabcd", lanes=LANES, repeats=2, **options)
    run = finished_run(request, ToyPair(agree=agree, eos=eos))
    again = run_from_json(run_to_json(run))
    assert again == run
    for trace in again.lanes:
        real = [(it.start, it.n_drafted, it.n_accepted) for it in trace.iterations]
        simulated = whatif.simulate_lane(again, trace.lane)
        assert simulated.iterations == real, trace.lane
        assert simulated.speedup == pytest.approx(metrics.predicted_speedup(again, trace))
        assert lane_figures(again, trace)[0].key == "speedup"


def test_a_run_under_plain_sampling_is_read_back_and_says_why_it_has_no_what_if():
    lanes = ["autoregressive", "static:4"]
    request = CompareRequest("abcd", lanes=lanes, max_new_tokens=20, rule="sampling", temperature=0.8, repeats=1)
    run = run_from_json(run_to_json(finished_run(request, ToyPair())))
    assert run.chains == {} and metrics.static_opt(run) is None
    with pytest.raises(ValueError, match="no chain to replay"):
        whatif.simulate_lane(run, "static:4")
