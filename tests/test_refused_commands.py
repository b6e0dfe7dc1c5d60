"""Commands that cannot be followed end with status 2 and a sentence."""

import shlex

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
        ("compare --prompt ''", "--prompt TEXT or --prompt-file FILE"),
        ("compare --prompt x --prompt-file y", "--prompt TEXT or --prompt-file FILE"),
        ("compare --prompt-file /nowhere/at/all", "No such file"),
        ("compare --prompt-file /", "Is a directory"),
        ("compare --prompt-file FOLDER/binary", "UTF-8"),
        ("compare --prompt-file FOLDER/large", "too large"),
        ("compare --prompt x --lanes nonsense", "no policy 'nonsense'"),
        ("compare --prompt x --lanes static:10000", "from 1 to 20"),
        ("compare --prompt x --lanes ''", "No lane"),
        ("compare --prompt x --lanes static:1..20", "choose at most 8"),
        ("compare --prompt x --max-new-tokens 0", "1 to 4,096"),
        ("compare --prompt x --temperature nan", "finite"),
        ("compare --prompt x --rule guess", "rule"),
        ("compare --prompt x --temperature 1", "greedy rule needs temperature 0"),
        ("compare --prompt x --dtype int3", "Dtype must be one of auto, bfloat16"),
        ("compare --prompt x --target only", "both a target and a draft"),
        ("compare --prompt x --pair no-such-pair", "no pair no-such-pair"),
        ("compare --prompt x --target /no/t --draft /no/d", "/no/t"),
        ("compare --again FOLDER/run.json --prompt x", "either --again FILE or a prompt"),
        ("compare --nonsense", "No such option"),
        ("evaluate --suite poems", "There is no prompt suite"),
        ("evaluate --lanes static:0", "autoregressive"),
        ("evaluate --limit 0", "whole number"),
        ("evaluate --drafts some", "Drafts can be"),
        ("evaluate --minutes -2", "Minutes must be"),
        ("fit --pair nothing-like-it", "There is no pair nothing-like-it"),
        ("fit --target somewhere", "Name the draft's folder as well"),
        ("fit --target /no/such/target --draft /no/such/draft", "There is no folder"),
        ("gpu-day", "There is no CUDA device here"),
        ("nonsense", "No such command"),
        ("serve --port 0", "1 to 65,535"),
        ("serve --port 18700 --max-waiting -1", "or more"),
        ("serve --port 18700 --max-new-tokens 0", "or more"),
        ("serve --host 203.0.113.7", "Cannot listen"),
        ("soak --runs 0", "at least one run"),
        ("soak --clients 0", "at least one run"),
        ("soak --cut-after 0", "at least one run"),
        ("soak --cut-after nan", "at least one run"),
        ("suites drop", "drop"),
        ("suites fetch alpaca", "alpaca"),
        ("whatif none.json", "Cannot read"),
        ("whatif FOLDER/run.json --lanes static:99", "from 1 to 20"),
        ("whatif FOLDER/run.json --lanes other/static:5", "no recorded guesses of the draft other"),
        ("whatif FOLDER/run.json --lanes disco", "leave learned lanes out"),
        ("whatif FOLDER/run.json --cost-ratio nan", "cost ratio"),
        ("whatif FOLDER/run.json --cost-ratio -1", "cost ratio"),
        ("whatif FOLDER/run.json --cost-ratio 1e308", "a number from 0 to 1,000,000"),
    ],
)
def test_a_command_that_cannot_be_followed_is_a_sentence(tmp_path, words, sentence):
    save_run(make_run(), tmp_path / "run.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"x" * 400_001)
    status, out, err = command(*shlex.split(words.replace("FOLDER", str(tmp_path))))
    assert status == 2 and out == ""
    assert sentence in err and "Traceback" not in err
