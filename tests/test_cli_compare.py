"""The commands as people and machines use them: compare, serve, recordings, and what is refused."""

import io
import json
import os
import re
import shlex
import signal
import socket
from contextlib import suppress
from dataclasses import replace
from runpy import run_module
from types import SimpleNamespace

import pytest
from rich.console import Console

from decoding.backends.jobs import Jobs
from decoding.backends.local import LocalBackend
from decoding.backends.recorded import RecordedBackend
from decoding.backends.remote import RemoteBackend
from decoding.cli import COMMANDS, main
from decoding.cli.console import cancel_on_interrupt, visible
from decoding.cli.show import lane_text, remarks, show_run, summary
from decoding.errors import UserError
from decoding.records.pairs import PairDescription
from decoding.records.request import number_formats
from decoding.records.run_file import load_run, request_again, save_run
from decoding.records.suites import Prompt
from decoding.records.trace import Run, Verdict
from tests.commands import command
from tests.fakes import ScriptedRunner
from tests.runs import make_run
from viz.settings import command_line


def arguments(tiny_pair, *more):
    target, draft = tiny_pair
    lanes = "--lanes autoregressive,static:2,ngram/static:3,oracle"
    settings = f"{lanes} --repeats 2 --max-new-tokens 12 --dtype float32".split()
    return ["compare", "--prompt", "hello ", "--target", target, "--draft", draft, *settings, *more]


def test_compare_shows_fates_figures_and_times_and_writes_the_run(tiny_pair, tmp_path):
    status, out, err = command(*arguments(tiny_pair, "--out", str(tmp_path / "run.json")))
    assert status == 0, err
    for part in ("static:2", "ngram/static:3", "predicted speedup", "Where the time goes", "Same text in all four"):
        assert part in out
    assert not out.isascii() and "\x1b" not in out  # marks for fates, and no colours outside a terminal
    run = load_run(tmp_path / "run.json")
    assert [trace.lane for trace in run.lanes] == ["autoregressive", "static:2", "ngram/static:3", "oracle"]
    assert len(run.lanes[0].output) == 12


def test_a_run_file_is_repeated_with_its_settings_and_costs(tiny_pair, tmp_path):
    first, second = tmp_path / "run.json", tmp_path / "again.json"
    assert command(*arguments(tiny_pair, "--out", str(first)))[0] == 0
    status, _, err = command("compare", "--again", str(first), "--out", str(second))
    assert status == 0, err
    was, now = load_run(first), load_run(second)
    assert now.settings == request_again(was)
    assert (now.costs.verify_curve, now.costs.decision) == (was.costs.verify_curve, was.costs.decision)


def test_a_repeat_names_the_number_formats_that_a_trial_chose():
    run = make_run()
    run.settings.dtype, run.pair.target.dtype = "auto", "float16"
    formats = []
    for asked, chosen in (("auto", ["int4", "int4"]), ("auto", ["int4", "int8"]), ("bfloat16", ["", "bfloat16"])):
        run.settings.dtype = asked
        run.pair.drafts = {str(n): replace(run.pair.target, dtype=one) for n, one in enumerate(chosen)}
        formats.append(number_formats(request_again(run)))
    assert formats == [("float16", "int4"), ("float16", "trial"), ("bfloat16", "bfloat16")]
    assert "--dtype=bfloat16 --draft-dtype=bfloat16" in command_line(request_again(run))
    run.settings.weights, run.settings.dtype = "int4", "auto"
    assert number_formats(request_again(run))[0] == "int4"


def test_a_file_that_may_not_be_written_is_refused_before_the_run(tiny_pair, tmp_path, monkeypatch):
    (tmp_path / "run.json").touch()
    monkeypatch.setattr("os.access", lambda file, mode: mode != os.W_OK)  # root may write everywhere
    assert "run.json is write-protected" in command(*arguments(tiny_pair, "--out", str(tmp_path / "run.json"))).err


def test_a_closed_pipe_costs_no_run(tiny_pair, tmp_path, monkeypatch):
    def closed(run, as_json):
        raise BrokenPipeError

    monkeypatch.setattr("decoding.cli.show.print_run", closed)
    with pytest.raises(BrokenPipeError):
        main(arguments(tiny_pair, "--out", str(tmp_path / "run.json")))
    assert len(load_run(tmp_path / "run.json").lanes) == 4


def test_options_and_a_prompt_in_a_file_reach_the_request_and_json_is_json_alone(tiny_pair, tmp_path):
    path, prompt = tmp_path / "run.json", tmp_path / "prompt.txt"
    prompt.write_text("hé\n", encoding="utf-8")
    sampling = "--temperature 0.7 --rule coupling --seed 3 --top-k 20 --top-p 0.9 --stop zzzz --ignore-eos"
    words = [word for word in arguments(tiny_pair, *sampling.split(), "--json") if word not in ("--prompt", "hello ")]
    status, out, _ = command(*words, "--prompt-file", str(prompt), "--out", str(path))
    figures = json.loads(out)  # JSON alone
    assert status == 0 and len(figures["lanes"]) == 4 and figures["lanes"][0]["figures"]["speedup"] == 1.0
    settings = load_run(path).settings
    assert settings.prompt == "hé\n"
    assert (settings.temperature, settings.rule, settings.seed) == (0.7, "coupling", 3)
    assert (settings.top_k, settings.top_p, settings.stop, settings.ignore_eos) == (20, 0.9, ["zzzz"], True)


def test_every_command_has_help():
    status, out, _ = command("--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)
    for name in COMMANDS:
        assert command(name, "--help")[0] == 0


def test_ctrl_c_cancels_and_says_so(tmp_path, monkeypatch):
    class Interrupted(ScriptedRunner):
        def run(self, *asked):
            for kind, data in super().run(*asked):
                yield kind, data
                if kind == "iterations":
                    os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("decoding.cli.compare.Jobs", Interrupted)
    path = tmp_path / "run.json"
    words = ["compare", "--prompt", "x", "--lanes", "autoregressive,static:5", "--out", str(path)]
    status, out, err = command(*words)
    assert (status, out) == (130, "") and not path.exists()
    assert "Stopping after this step" in err and "Cancelled" in err


def test_lack_of_memory_is_a_sentence(monkeypatch):
    def pairs() -> None:
        raise MemoryError

    monkeypatch.setattr("decoding.cli.lists.pairs", pairs)
    status, _, err = command("pairs")
    assert status == 1 and "The machine ran out of memory: choose" in err


def test_a_second_ctrl_c_leaves_at_once():
    with pytest.raises(KeyboardInterrupt), cancel_on_interrupt() as cancel:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancel.is_set()
        os.kill(os.getpid(), signal.SIGINT)


def test_the_last_pair_stays_loaded(tiny_pair):
    target, draft = tiny_pair
    options = {"prompt": "hello ", "target": target, "draft": draft, "lanes": ["static:3"], "dtype": "float32"}
    jobs = Jobs("cpu")
    runs = [list(jobs.run("compare", {**options, "max_new_tokens": 16}, "run", lambda: False)) for _ in range(2)]
    assert [events[-1][0] for events in runs] == ["finished"] * 2
    loadings = [[data for _, data in events if "Loading target" in data.get("message", "")] for events in runs]
    assert [bool(found) for found in loadings] == [True, False]
    with pytest.raises(UserError, match="choose compare or evaluate"):
        list(jobs.run("dance", {}, "run", lambda: False))


def test_serve_refuses_a_taken_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Cannot listen" in command("serve", "--port", str(taken.getsockname()[1])).err
    assert "Errno" not in command("serve", "--host", "a..b", "--insecure").err


@pytest.fixture
def started(monkeypatch):
    """The hosts on which ``serve`` would have listened: no server, worker or model is started."""
    hosts = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server: hosts.append(server.config.host))
    monkeypatch.setattr("decoding.backends.base.check_address", lambda host, port: None)
    monkeypatch.setattr(LocalBackend, "prepare", lambda backend: None)
    return hosts


def test_serve_to_other_machines_needs_a_token(monkeypatch, started):
    monkeypatch.delenv("SPECULOSCOPE_TOKEN", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    for host in ("0.0.0.0", "::"):
        status, _, err = command("serve", "--host", host)
        assert status == 2 and "--token" in err and "--insecure" in err
    assert not started
    assert command("serve", "--host", "0.0.0.0", "--token", "s3cret").status == 0
    assert "Anyone" in command("serve", "--host", "0.0.0.0", "--insecure").err
    assert "Anyone" not in command("serve").err
    assert started == ["0.0.0.0", "0.0.0.0", "127.0.0.1"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
def test_the_address_that_serve_prints_is_one_that_a_front_end_takes(started, host, capsys):
    with suppress(SystemExit):
        main(["serve", "--host", host, "--insecure"])
    printed = capsys.readouterr().err
    RemoteBackend(re.search(r"python app\.py --backend (\S+)$", printed, re.MULTILINE)[1]).close()  # in one line


def test_fates_have_marks_and_text_cannot_steer_the_terminal():
    run = make_run(hostile=True)
    run.vocab[0].text = "\x1b[31mred\x07"
    shown = lane_text(run, run.lane("static:5")).plain
    assert "✗" in shown and "»" in shown and "│" in shown
    assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(shown)
    assert visible("a\x1b[2J\u202eb\ud800\n") == "a␛[2J\ufffdb\ufffd\n"
    assert visible("\u2066\u2069\u061c\u200f\x9b\x7f") == "\ufffd" * 5 + "␡"


def printed(run: Run, width: int = 100) -> str:
    """What ``show`` prints of ``run`` where no terminal is."""
    console = Console(width=width, file=io.StringIO())
    show_run(run, console)
    return console.file.getvalue()


def test_names_in_a_run_file_cannot_steer_the_terminal_either():
    run = make_run()
    run.pair.name, run.pair.target.dtype, run.lanes[1].lane = "\x1b[2Jpair", "\x1b[31mdtype", "\x1b]0;lane\x07"
    run.chains.clear()  # this version knows no such lane, and compares it with nothing
    shown = printed(run)
    assert "␛[2Jpair" in shown and "␛]0;lane␇" in shown and not {"\x1b", "\x07"} & set(shown)


def test_markup_in_text_is_text():
    run = make_run(prompt="[bold]x[/bold]")
    run.vocab[0].text = "[red]boo[/nothing]"
    assert "[red]boo[/nothing]" in printed(run)


def test_unsteady_timings_are_called_so_on_the_terminal_too():
    run = make_run()
    assert not any("unsteady" in line for line in remarks(run))
    run.costs.verify_curve[1:] = [0.84 for _ in run.costs.verify_curve[1:]]
    assert remarks(run)[-1].startswith("Timings are unsteady here (checking 6 tokens came out cheaper")


def test_more_lanes_than_fit_beside_each_other_go_below():
    lanes = ("autoregressive", *(f"static:{sl}" for sl in range(1, 8)))
    text = printed(make_run(lanes=lanes), width=80)
    assert text.count("Figures") == 2 and "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_kept_tokens_make_the_text():
    run = make_run()
    plain = lane_text(run, run.lanes[0]).plain
    assert plain == visible(summary(run)["text"])


def test_remarks_name_the_best_sl_and_where_texts_differ():
    """Each verdict: test_player_payload.py."""
    run = make_run()
    assert "Same text in all four lanes." in remarks(run)
    run.lanes[1].verdict = Verdict(same=False, first_difference=7)
    assert "static:5 differs from output position 7 on." in remarks(run)
    assert any("best static SL" in line for line in remarks(run))


# -- recordings


def test_recordings_are_made_checked_and_kept_in_order(tiny_pair, tmp_path, monkeypatch):
    target, draft = tiny_pair
    described = PairDescription("", "Tiny", "embedded", target, {"draft": draft}, "draft")
    prompts = [
        Prompt(id, "showcase", "test", text, "", id, "x", ("autoregressive", "static:2", "disco"), settings=settings)
        for id, text, settings in (("one", "hello ", {}), ("two", "bye ", {"max_new_tokens": 5}))
    ]
    monkeypatch.setattr("decoding.cli.recordings.load_showcase", lambda chat=None: prompts)
    monkeypatch.setattr("decoding.cli.recordings.find_pair", lambda name: described)
    monkeypatch.setattr("decoding.engines.pair.find_pair", lambda name: described)
    words = ["recordings", "--folder", str(tmp_path / "recordings"), "--max-new-tokens", "8", "--repeats", "1"]
    assert command(*words, "--check")[0] == 1
    status, _, err = command(*words)
    assert status == 0, err
    assert command(*words, "--check")[:2] == (0, "All recordings are fresh.\n")
    backend = RecordedBackend(tmp_path / "recordings")
    assert [info.title for info in backend.recordings()] == ["one", "two"]
    assert [backend.load(name).settings.max_new_tokens for name in ("one", "two")] == [8, 5]
    assert [trace.lane for trace in backend.load("two").lanes] == ["autoregressive", "static:2", "confidence:0.4"]
    status, _, err = command(*words, "--only", "three")
    assert status == 2 and "one, two" in err
    prompts[1].settings["seed"] = "?"
    assert "These settings cannot be read" in command(*words, "--only", "two")[2]
    described.name = "other"
    status, _, err = command(*words)
    assert status == 2 and "name another --folder" in err
    (tmp_path / "file").touch()
    status, _, err = command(*words[:2], str(tmp_path / "file"))
    assert status == 2 and "Cannot write into" in err
    described.kind = "preset"
    assert "models/" in command(*words)[2]


# -- commands that cannot be followed end with status 2 and a sentence


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
        ("compare --prompt x --lanes ''", "No lane"),
        ("compare --prompt x --lanes static:1..20", "choose at most 8"),
        ("compare --prompt x --max-new-tokens 0", "1 to 4,096"),
        ("compare --prompt x --temperature nan", "finite"),
        ("compare --prompt x --rule guess", "rule"),
        ("compare --prompt x --target /no/t --draft /no/d", "/no/t"),
        ("compare --prompt x --out /", "is a folder: name the file"),
        ("compare --prompt x --out /dev/null", "/dev/null is no regular file"),
        ("compare --prompt x --out /proc/run.json", "Cannot write into /proc"),
        ("compare --prompt x --out /no/run.json", "no folder"),
        ("compare --again FOLDER/run.json --prompt x", "either --again FILE or a prompt"),
        (
            "compare --again FOLDER/run.json --max-new-tokens 5 --no-chat",
            "With --again, --max-new-tokens, --chat ",
        ),
        ("compare --nonsense", "No such option"),
        ("evaluate --suite poems", "There is no prompt suite"),
        ("evaluate --lanes static:0", "autoregressive"),
        ("evaluate --lanes static:5,other/static:5", "name that with --draft, and not in the lane other/static:5"),
        ("evaluate --limit 0", "whole number"),
        ("evaluate --drafts some", "Drafts can be"),
        ("evaluate --drafts all --lanes static:5", "leave --draft and --lanes out"),
        ("evaluate --drafts all --target /no/t --draft /no/d", "/no/t"),
        ("evaluate --drafts all --draft nope", "leave --draft and --lanes out"),
        (
            "evaluate --result FOLDER/run.json --suite all --lanes oracle",
            "With --result, --lanes, --suite would",
        ),
        ("evaluate --minutes -2", "Minutes must be"),
        ("fit --pair nothing-like-it", "There is no pair nothing-like-it"),
        ("fit --target somewhere", "Name the draft's folder as well"),
        ("fit --target /no/such/target --draft /no/such/draft", "There is no folder"),
        ("gpu-day", "which all of this measures: run it on a machine that has one."),
        ("nonsense", "No such command"),
        ("policies --markdown --json", "either --markdown or --json"),
        ("recordings --check --only nope", "no such prompt"),
        ("serve --port 0", "1 to 65,535"),
        ("serve --port 18700 --max-waiting -1", "or more"),
        ("serve --port 18700 --max-new-tokens 0", "or more"),
        ("serve --host 203.0.113.7", "Cannot listen"),
        ("suites drop", "drop"),
        ("suites list code", "not 'list code'"),
        ("suites fetch alpaca", "alpaca"),
        ("suites fetch [/markup]", "[/markup]"),
        ("show FOLDER/binary", "binary: This is not a Speculoscope run file of schema speculoscope.run/1: "),
        ("whatif FOLDER/part.json", "part.json: This is not a Speculoscope run file of schema speculoscope.run/1: at "),
        ("compare --again FOLDER/hostile.json", "hostile.json: The settings in this run file are invalid: Seed must"),
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
    run = make_run()
    save_run(run, tmp_path / "run.json")
    run.settings.seed = -1
    save_run(run, tmp_path / "hostile.json")
    (tmp_path / "part.json").write_text('{"schema": "speculoscope.run/1"}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"x" * 400_001)
    status, out, err = command(*shlex.split(words.replace("FOLDER", str(tmp_path))))
    assert status == 2 and out == ""
    assert sentence in err and "Traceback" not in err


def test_the_folder_of_fitted_policies_is_no_markup_of_the_terminal(monkeypatch):
    fitted = SimpleNamespace(draft="small", policies=[], seconds=1.0, folder="/pairs/[/red]")
    monkeypatch.setattr("decoding.cli.fit._load", lambda *asked: (None, []))
    monkeypatch.setattr("decoding.fit.run.fit", lambda *asked: [fitted])
    assert command("fit") == (0, "", "small: recorded in 1 s, written into /pairs/[/red].")


def test_ctrl_c_while_a_command_is_still_imported_ends_without_a_traceback(monkeypatch, capfd):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("decoding.cli.main", interrupted)
    with pytest.raises(SystemExit) as ended:
        run_module("decoding", run_name="__main__")
    assert ended.value.code == 130 and capfd.readouterr().err == ""
