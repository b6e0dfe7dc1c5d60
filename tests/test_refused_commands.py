"""Commands that cannot be followed end with status 2 and a sentence."""

import pytest

from decoding.records.run_file import save_run
from tests.commands import command
from tests.runs import make_run


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("bench --against vllm", "Invalid value for '--against'"),
        ("bench --limit 0", "Invalid value for '--limit'"),
        ("bench --max-new-tokens 1", "Invalid value for '--max-new-tokens'"),
        ("bench --device cuda", "There is no CUDA device here"),
        ("evaluate --suite poems", "There is no prompt suite"),
        ("evaluate --lanes static:0", "autoregressive"),
        ("evaluate --limit 0", "whole number"),
        ("evaluate --drafts some", "Drafts can be"),
        ("evaluate --minutes -2", "Minutes must be"),
        ("fit --pair nothing-like-it", "There is no pair nothing-like-it"),
        ("fit --target somewhere", "Name the draft's folder as well"),
        ("fit --target /no/such/target --draft /no/such/draft", "There is no folder"),
        ("gpu-day", "There is no CUDA device here"),
        ("suites drop", "drop"),
        ("suites fetch alpaca", "alpaca"),
        ("whatif none.json", "Cannot read"),
        ("whatif RUN --lanes static:99", "from 1 to 20"),
        ("whatif RUN --lanes other/static:5", "no recorded guesses of the draft other"),
        ("whatif RUN --lanes disco", "leave learned lanes out"),
        ("whatif RUN --cost-ratio nan", "cost ratio"),
        ("whatif RUN --cost-ratio -1", "cost ratio"),
        ("whatif RUN --cost-ratio 1e308", "a number from 0 to 1,000,000"),
    ],
)
def test_a_command_that_cannot_be_followed_is_a_sentence(tmp_path, words, sentence):
    save_run(make_run(), tmp_path / "run.json")
    status, _, err = command(*words.replace("RUN", str(tmp_path / "run.json")).split())
    assert status == 2 and sentence in err and "Traceback" not in err
