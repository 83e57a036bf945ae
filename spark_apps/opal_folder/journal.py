"""The documents of runs, each created once.

The outcome of a run decides it, whoever writes it first.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opal_folder.increments import Increment
from opal_folder.master_folder import MasterFile, MasterForm, run_path
from opal_lake import checked
from opal_lake.checked import parse_json
from opal_lake.decoding import decoding
from opal_lake.errors import ConflictError, NotFoundError, PreReleaseError
from opal_lake.result import JobResult, checked_result
from opal_lake.storage import Storage
from opal_lake.storage.verified import read_sealed

RUNS, ORIGINALS = "runs/", "originals/"
_CLAIM = re.compile(r"runs/(\d{8,})/claim\.json")
_OF_RUN = re.compile(r"runs/(\d{8,})/")
_RESTORE = "restore the file from a backup"
_CLAIM_PARTS = {"run", "token", "increments", "backups"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The increments of a run, listed once."""

    run: int
    token: str | None
    increments: tuple[Increment, ...]
    backups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The decision on a run.

    `files` are those of the new master, if its folder is not the list; `suffix` is the greatest one
    merged so far; `form` says how the master is written, if a run has written it.
    """

    is_decided: bool
    is_changed: bool = False
    files: tuple[MasterFile, ...] = ()
    suffix: int | None = None
    form: MasterForm | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The runs before a run.

    `masters` are the files of the masters that stay, the newest first. `old` are documents that are
    no longer needed.
    """

    masters: tuple[tuple[MasterFile, ...], ...]
    old: tuple[str, ...]


def runs(side: Storage) -> list[int]:
    """Return the numbers of the runs, the newest first."""
    numbers: list[int] = []
    for file in side.list(RUNS):
        match = _CLAIM.fullmatch(file.path)
        if match is not None:
            numbers.append(int(match[1]))
    return sorted(numbers, reverse=True)


def write_claim(side: Storage, claim: Claim) -> None:
    """Write the claim of a run; raise ConflictError if it is not the newest run."""
    document = {
        "run": claim.run,
        "token": claim.token,
        "increments": [increment.to_dict() for increment in claim.increments],
        "backups": claim.backups,
    }
    begun = ConflictError(f"another run of {side.uri} has begun this moment: try again")
    if not _put(side, _document(claim.run, "claim"), document):
        raise begun
    if max(runs(side), default=0) != claim.run:
        # Others have used this number, and have deleted its documents since
        side.delete([_document(claim.run, "claim")])
        raise begun


def read_claim(side: Storage, run: int) -> Claim:
    """Return the claim of a run."""
    path = _document(run, "claim")
    with decoding(f"{side.uri}/{path}", "a claim", _RESTORE):
        parts = checked.mapped(parse_json(read_sealed(side, path)))
    unknown = sorted(parts.keys() - _CLAIM_PARTS)
    if unknown:
        # Only the pre-release gives back the files that it moved
        raise PreReleaseError(
            f"{side.uri}/{path} has a part {unknown[0]!r}, which this version does not know: "
            "a pre-release began the run and did not end it; run that pre-release once more"
        )
    with decoding(f"{side.uri}/{path}", "a claim", _RESTORE):
        increments = [Increment.from_dict(item) for item in checked.listed(parts["increments"])]
        token = parts["token"]
        return Claim(
            run=checked.count(parts["run"]),
            token=None if token is None else checked.text(token),
            increments=tuple(increments),
            backups=checked.count(parts["backups"]),
        )


def decide(side: Storage, run: int, outcome: Outcome) -> bool:
    """Write the outcome of a run; return whether it is the run's outcome.

    Raises ConflictError if others finished the run so long ago that its documents are deleted.
    """
    document = {
        "state": "decided" if outcome.is_decided else "abandoned",
        "changed": outcome.is_changed,
        "files": [file.to_dict() for file in outcome.files],
        "suffix": outcome.suffix,
        "form": None if outcome.form is None else outcome.form.to_dict(),
        "result": dict(outcome.result),
    }
    path = _document(run, "outcome")
    is_outcome = _put(side, path, document)
    if not is_outcome:
        stored = parse_json(read_sealed(side, path))
        # Through JSON, which has lists instead of tuples
        is_outcome = stored == json.loads(json.dumps(document))
    if is_outcome and not any(True for _ in side.list(_document(run, "claim"))):
        raise ConflictError(
            f"other runs of {side.uri} have finished the increments of this one: try again"
        )
    return is_outcome


def read_outcome(side: Storage, run: int) -> Outcome | None:
    """Return the outcome of a run, None for an undecided one."""
    path = _document(run, "outcome")
    try:
        data = read_sealed(side, path)
    except NotFoundError:
        return None
    with decoding(f"{side.uri}/{path}", "an outcome", _RESTORE):
        parts = checked.mapped(parse_json(data))
        suffix, form = parts["suffix"], parts["form"]
        return Outcome(
            is_decided=parts["state"] == "decided",
            is_changed=checked.flag(parts["changed"]),
            files=tuple(_files_from_json(parts["files"])),
            suffix=None if suffix is None else checked.count(suffix),
            form=None if form is None else MasterForm.from_dict(form),
            result=checked.mapped(parts["result"]),
        )


def _files_from_json(data: Any) -> list[MasterFile]:
    return [MasterFile.from_dict(file) for file in checked.listed(data)]


def newest_decided(side: Storage) -> Outcome | None:
    """Return the outcome of the newest decided run, None before the first one."""
    known = runs(side)
    while True:
        for run in known:
            outcome = read_outcome(side, run)
            if outcome is not None and outcome.is_decided:
                return outcome
        if not known:
            return None
        now = runs(side)
        if set(known) <= set(now):
            return None
        # Others have deleted runs between the listing and the reading: look again
        known = now


def write_original(side: Storage, run: int, files: Sequence[MasterFile]) -> None:
    """Record the master that no run made, as this run found it."""
    path = f"{run_path('originals', run)}.json"
    _put(side, path, {"files": [file.to_dict() for file in files]})


def read_original(side: Storage) -> list[MasterFile]:
    """Return the files of the master before the first decided run; empty if deleted.

    Runs record them until one is decided, so the newest record is that run's.
    """
    newest = max((file.path for file in side.list(ORIGINALS)), default=None)
    if newest is None:
        return []
    with decoding(f"{side.uri}/{newest}", "a list of files", _RESTORE):
        parts = checked.mapped(parse_json(read_sealed(side, newest)))
        return _files_from_json(parts["files"])


def forget_original(side: Storage) -> None:
    """Delete the record of the master that no run made."""
    side.delete([file.path for file in side.list(ORIGINALS)])


def is_done(side: Storage, run: int) -> bool:
    """Return whether all steps of a run are done."""
    return any(True for _ in side.list(_document(run, "done")))


def write_done(side: Storage, run: int, result: JobResult) -> None:
    """Mark a run as done; write its report, for people, and its result."""
    _put(side, report_path(run), result.to_dict(), indent=2)
    # Before the mark: nobody completes a run that is done, and a repeat looks for its result
    keep_result(side, result.token, result)
    _put(side, _document(run, "done"), {"run": run})


def report_path(run: int) -> str:
    """Return the path of a run's report in the side folder."""
    return f"{run_path('reports', run)}.json"


def write_abandoned(side: Storage, run: int) -> None:
    """Mark an abandoned run as done."""
    _put(side, _document(run, "done"), {"run": run})


def keep_result(side: Storage, token: str | None, result: JobResult) -> JobResult:
    """Store the result for a repeat with the token."""
    if token is not None:
        _put(side, _result_path(token), result.to_dict())
    return result


def dry(token: str | None) -> str | None:
    """Return the token of a dry run's result: the same token may merge afterwards."""
    return None if token is None else f"{token} (dry run)"


def read_result(side: Storage, token: str | None) -> JobResult | None:
    """Return the result of a run with this token, marked as a repeat, or None."""
    if token is None:
        return None
    path = _result_path(token)
    try:
        data = read_sealed(side, path)
    except NotFoundError:
        return None
    with decoding(f"{side.uri}/{path}", "a result", _RESTORE):
        return replace(result_of(parse_json(data)), repeated=True)


def result_of(data: Any) -> JobResult:
    """Return a result of its JSON."""
    return JobResult.from_dict(checked_result(data))


def history(side: Storage, newest: int, keep: int | None) -> History:
    """Return which masters stay, and which documents are no longer needed.

    The documents of these runs stay: the newest decided run, and the runs that made the newest
    master and `keep` backups (None: all backups).
    """
    documents: list[tuple[int, str]] = []
    for file in side.list(RUNS):
        match = _OF_RUN.match(file.path)
        if match is not None:
            documents.append((int(match[1]), file.path))
    claimed = [run for run, path in documents if _CLAIM.fullmatch(path)]
    staying = {newest}
    masters: list[tuple[MasterFile, ...]] = []
    is_newest = True
    for run in sorted(claimed, reverse=True):
        if keep is not None and len(masters) > keep:
            break
        outcome = read_outcome(side, run)
        if outcome is None or outcome.is_changed or (outcome.is_decided and is_newest):
            staying.add(run)
        if outcome is not None and outcome.is_decided:
            is_newest = False
            if outcome.is_changed:
                masters.append(outcome.files)
    old = [path for run, path in documents if run < newest and run not in staying]
    return History(masters=tuple(masters), old=tuple(old))


def forget(side: Storage, past: History) -> None:
    """Delete documents that are no longer needed.

    Claims are deleted first: without one, other documents do not count, also those that another
    process still writes.
    """
    side.delete([path for path in past.old if _CLAIM.fullmatch(path)])
    side.delete([path for path in past.old if not _CLAIM.fullmatch(path)])


def _document(run: int, name: str) -> str:
    return f"{run_path('runs', run)}/{name}.json"


def _result_path(token: str) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return f"results/{digest}.json"


def _put(side: Storage, path: str, document: Mapping[str, Any], indent: int | None = None) -> bool:
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    return side.put_if_absent(path, text.encode())
