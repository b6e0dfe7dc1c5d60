"""``python -m training all`` in a copy of the project, with small models: killed in the middle, it resumes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SMALL = """
import os, signal, sys
from pathlib import Path
from training import corpus, draft, generate, loop, measure, prompts, report, target, unloop
from training.architecture import Shape

corpus.HELD_OUT_PERCENT, corpus.standard_library = 40, lambda: corpus.Source("python", "3", "PSF-2.0", (), "")
prompts.WANTED = dict.fromkeys(prompts.WANTED, 2)
target.Plan.__init__.__defaults__ = (Shape(1, 64, 96), 2, 0.78, 0.4, 1024)
generate.BATCH, generate.LENGTH, generate.generate.__defaults__ = 112, 48, (112,)
unloop.TEXTS, unloop.LENGTH, unloop.PREFIXES = 2, 24, (8,)
generate.PREFIXES = {"sampled": (32,), "greedy": (32,), "corpus": (48,)}
draft.RECIPES = {"default-2x256": draft.Recipe(Shape(1, 64, 96), (0,))}
report.COST_ROUNDS, measure.NEW_TOKENS = 2, 12
from training import cards, install
cards.RECIPES = install.RECIPES = draft.RECIPES

kill_at, checkpoint = os.environ.get("KILL_AT"), loop.TimedRun.checkpoint

def checkpoint_or_die(run):
    if run.name == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint(run)

loop.TimedRun.checkpoint = checkpoint_or_die
from training.__main__ import main
main()
"""


def make_packages(folder):
    """A package under a permissive licence with modules, tests and English prose, all different."""
    info = folder / "words-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: words\nVersion: 1.0\nLicense: MIT\n")
    names = []
    for number in range(60):
        words = [f"{a}{b}{number}" for a in ("alpha", "beta", "gamma") for b in ("one", "two", "three")]
        code = "\n\n".join(
            f"def {word}(value_{word}):\n    total_{word} = value_{word} + {i}\n    return total_{word} * value_{word}"
            for i, word in enumerate(words)
        )
        test = code.replace("def ", "def test_").replace("return", "assert")
        prose = "\n\n".join(
            f"The {a} of the {b} is told by those who went there in winter,\n"
            f"and some of them say that the {b} has never seen the {a}\nsince they all left home together."
            for a, b in zip(words, words[1:])
        )
        for name, text in ((f"m{number}.py", code), (f"tests/test_{number}.py", test), (f"d{number}.md", prose)):
            names.append(f"words/{name}")
            place = folder / "words" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))


def run_all(project, folder, **environment):
    """Runs the command with SMALL's sizes in ``project``."""
    names = {"TRAINING_EAGER": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(project)}
    return subprocess.run(
        [sys.executable, "-c", SMALL, "all", "--minutes", "0.02", "--folder", str(folder)],
        cwd=project,
        env=os.environ | names | environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def project(tmp_path):
    """The project's code and showcase in a separate folder, without weights and build outputs."""
    for name in ("training", "decoding", "prompts"):
        shutil.copytree(ROOT / name, tmp_path / "clone" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "clone" / "models").mkdir()
    return tmp_path / "clone"


def test_a_folder_with_nothing_usable_ends_it_with_a_sentence(project, tmp_path):
    done = run_all(project, tmp_path / "absent")
    assert done.returncode == 1 and "Nothing usable" in done.stderr and "Traceback" not in done.stderr
    assert not (project / "build").exists() and not list((project / "models").iterdir())


@pytest.mark.timeout(600)
def test_everything_from_the_corpus_to_the_cards_after_a_kill(project, tmp_path):
    make_packages(tmp_path / "packages")
    killed = run_all(project, tmp_path / "packages", KILL_AT="draft-default-2x256")
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert not list((project / "models").iterdir())
    target = (project / "build/checkpoints/target-deepened.pt").stat().st_mtime_ns
    done = run_all(project, tmp_path / "packages")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (project / "build/checkpoints/target-deepened.pt").stat().st_mtime_ns == target
    pair = next(path for path in (project / "models").iterdir() if path.is_dir())
    assert [path.name for path in (pair / "drafts").iterdir()] == ["default-2x256"]
    assert json.loads((pair / "training.json").read_text())["drafts"]["default-2x256"]["tokens"] > 0
    marks = json.loads((pair / "report.json").read_text())["fingerprints"]
    cards = {"target": marks["target"]} | {f"drafts/{name}": mark for name, mark in marks["drafts"].items()}
    for place, mark in cards.items():
        assert mark in (pair / place / "README.md").read_text()
    assert not [path for path in project.rglob(".*") if path.name.endswith((".part", ".before"))]
