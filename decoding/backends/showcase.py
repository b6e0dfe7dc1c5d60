"""The recorded runs of the showcase: what to record, and what is stale. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from ..files import digest_of_files
from ..lookahead.fitted import FOLDER as POLICIES
from ..lookahead.lanes import Lane, parse_lane, stand_in
from ..records.fingerprint import fingerprint
from ..records.pairs import PairDescription
from ..records.request import DEFAULT_LANES, CompareRequest
from ..records.run_file import save_run
from ..records.suites import Prompt
from ..records.trace import Run
from .recorded import RecordedBackend, RecordingInfo, describe_recording, read_index, write_index

MAX_BYTES = 600_000


def plan_recording(prompt: Prompt, pair: PairDescription, max_new_tokens: int, repeats: int) -> CompareRequest:
    """The comparison to record for ``prompt``, with the policies that were fitted for ``pair``."""
    lanes = [parse_lane(text) for text in prompt.lanes or DEFAULT_LANES]
    texts = [lane.text if _is_there(lane, pair) else stand_in(lane) for lane in lanes]
    return CompareRequest(
        prompt=prompt.prompt,
        picture=prompt.picture,
        pair=pair.name,
        lanes=list(dict.fromkeys(texts)),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
    )


def _is_there(lane: Lane, pair: PairDescription) -> bool:
    return not lane.is_learned or lane.policy in pair.fitted.get(lane.draft or pair.default_draft, ())


def store_recording(run: Run, prompt: Prompt, pair: PairDescription, folder: Path) -> int:
    """Write ``run`` and its entry in the list, which takes the place of an older one; returns the file's bytes."""
    info = describe_recording(run, prompt.title, prompt.shows)
    info.fingerprints, info.point = fingerprints(pair, run.settings.lanes), prompt.point
    path = folder / f"{run.id}.json"
    save_run(run, path)
    others = {other.id: other for other in read_index(folder)}
    write_index(folder, list((others | {info.id: info}).values()))
    return path.stat().st_size


def order_index(folder: Path, prompts: list[Prompt]) -> None:
    """Sorts the list by ``prompts``; removes entries and files that are no longer among them."""
    infos = {info.id: info for info in read_index(folder)}
    kept = [infos.pop(prompt.id) for prompt in prompts if prompt.id in infos]
    for identifier in infos:
        (folder / f"{identifier}.json").unlink(missing_ok=True)
    write_index(folder, kept)


def fingerprints(pair: PairDescription, lanes: list[str]) -> dict[str, str]:
    """Fingerprints of everything on which a run of ``lanes`` on ``pair`` depends: target, drafts, fitted policies."""
    found = {"target": fingerprint(pair.target)}
    for lane in map(parse_lane, lanes):
        draft = None if lane.is_plain else lane.draft or pair.default_draft
        if draft in pair.drafts:
            found.setdefault(draft, fingerprint(pair.drafts[draft]))
            if lane.is_learned:
                found[f"{draft}/{lane.policy}"] = digest_of_files(
                    sorted((Path(pair.drafts[draft]) / POLICIES).glob(f"{lane.policy}.*"))
                )
    return found


def stale_recordings(
    folder: Path, prompts: list[Prompt], pair: PairDescription, others: list[Prompt] | None = None
) -> list[str]:
    """A sentence for each recording of ``pair`` that is missing, superfluous, or not what would be recorded today.

    ``others``: prompts whose recordings, of another pair, belong there too.
    """
    infos = {info.id: info for info in RecordedBackend(folder).recordings()}
    found = [_why_stale(prompt, infos.get(prompt.id), pair) for prompt in prompts]
    known = {prompt.id for prompt in [*prompts, *(others or [])]}
    found += [f"{name}: no prompt of the showcase has this id." for name in infos if name not in known]
    return [sentence for sentence in found if sentence]


def _why_stale(prompt: Prompt, info: RecordingInfo | None, pair: PairDescription) -> str:
    if info is None:
        return f"{prompt.id}: not recorded."
    if (info.prompt, info.title, info.shows, info.point) != (prompt.prompt, prompt.title, prompt.shows, prompt.point):
        return f"{prompt.id}: its prompt, title or description has changed."
    lanes = plan_recording(prompt, pair, 1, 1).lanes
    if info.lanes != lanes:
        return f"{prompt.id}: recorded with {', '.join(info.lanes)}, today it would be {', '.join(lanes)}."
    now = fingerprints(pair, lanes)
    changed = [name for name in {**now, **info.fingerprints} if now.get(name) != info.fingerprints.get(name)]
    return f"{prompt.id}: made with other weights of {', '.join(changed)}." if changed else ""
