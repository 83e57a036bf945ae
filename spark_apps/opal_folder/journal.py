"""What is known of runs: documents that are created once. The outcome of a run decides it, whoever writes it first."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opal_folder.increments import Increment
from opal_folder.place import MasterFile, MasterForm, run_path
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
    """Increments of a run, listed once."""

    run: int
    token: str | None
    increments: tuple[Increment, ...]
    backups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run.

    `files` are the new master's where the place has no other list; `suffix` is the greatest merged
    by then; `form` says how the master is written, if a run has written it.
    """

    is_decided: bool
    is_changed: bool = False
    files: tuple[MasterFile, ...] = ()
    suffix: int | None = None
    form: MasterForm | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`masters` are the files of those that are kept, the newest first. `old` are documents that nobody reads any more."""

    masters: tuple[tuple[MasterFile, ...], ...]
    old: tuple[str, ...]


def runs(side: Storage) -> list[int]:
    """The newest first."""
    found = (match for file in side.list(RUNS) if (match := _CLAIM.fullmatch(file.path)))
    return sorted((int(match[1]) for match in found), reverse=True)


def write_claim(side: Storage, claim: Claim) -> None:
    """ConflictError if it is not the newest run's."""
    document = {
        "run": claim.run,
        "token": claim.token,
        "increments": [increment.to_dict() for increment in claim.increments],
        "backups": claim.backups,
    }
    begun = ConflictError(f"another run of {side.uri} has begun this moment: try again")
    if not _put(side, _document(claim.run, "claim"), document):
        raise begun
    if (
        max(runs(side), default=0) != claim.run
    ):  # others have used this number, and have forgotten it since
        side.delete([_document(claim.run, "claim")])
        raise begun


def read_claim(side: Storage, run: int) -> Claim:
    path = _document(run, "claim")
    with decoding(f"{side.uri}/{path}", "a claim", _RESTORE):
        found = checked.mapped(parse_json(read_sealed(side, path)))
    unknown = sorted(found.keys() - _CLAIM_PARTS)
    if unknown:
        # What a pre-release moved, only that one gives back
        raise PreReleaseError(
            f"{side.uri}/{path} has a part {unknown[0]!r}, which this version does not know: "
            "a pre-release began the run and did not end it; run that pre-release once more"
        )
    with decoding(f"{side.uri}/{path}", "a claim", _RESTORE):
        return Claim(
            run=checked.count(found["run"]),
            token=None if found["token"] is None else checked.text(found["token"]),
            increments=tuple(
                Increment.from_dict(increment) for increment in checked.listed(found["increments"])
            ),
            backups=checked.count(found["backups"]),
        )


def decide(side: Storage, run: int, outcome: Outcome) -> bool:
    """Whether this is the outcome, now and for ever. ConflictError if others have done with the run so long ago that it is forgotten."""
    document = {
        "state": "decided" if outcome.is_decided else "abandoned",
        "changed": outcome.is_changed,
        "files": [file.to_dict() for file in outcome.files],
        "suffix": outcome.suffix,
        "form": None if outcome.form is None else outcome.form.to_dict(),
        "result": dict(outcome.result),
    }
    path = _document(run, "outcome")
    is_so = _put(side, path, document) or parse_json(read_sealed(side, path)) == json.loads(
        json.dumps(document)
    )
    if is_so and not any(True for _ in side.list(_document(run, "claim"))):
        raise ConflictError(
            f"other runs of {side.uri} have done with the increments of this one: try again"
        )
    return is_so


def read_outcome(side: Storage, run: int) -> Outcome | None:
    path = _document(run, "outcome")
    try:
        data = read_sealed(side, path)
    except NotFoundError:
        return None
    with decoding(f"{side.uri}/{path}", "an outcome", _RESTORE):
        found = checked.mapped(parse_json(data))
        return Outcome(
            is_decided=found["state"] == "decided",
            is_changed=checked.flag(found["changed"]),
            files=tuple(MasterFile.from_dict(file) for file in checked.listed(found["files"])),
            suffix=None if found["suffix"] is None else checked.count(found["suffix"]),
            form=None if found["form"] is None else MasterForm.from_dict(found["form"]),
            result=checked.mapped(found["result"]),
        )


def newest_decided(side: Storage) -> Outcome | None:
    """Looks again where others forget runs between a listing and a reading."""
    known = runs(side)
    while True:
        found = (read_outcome(side, run) for run in known)
        newest = next(
            (outcome for outcome in found if outcome is not None and outcome.is_decided), None
        )
        if newest is not None or not known or set(known) <= set(now := runs(side)):
            return newest
        known = now


def write_original(side: Storage, run: int, files: Sequence[MasterFile]) -> None:
    """The master that no run made, as this run found it."""
    _put(side, f"{run_path('originals', run)}.json", {"files": [file.to_dict() for file in files]})


def read_original(side: Storage) -> list[MasterFile]:
    """As the first run that was decided found it, which is the last one that wrote it down. Empty where nothing of it is left."""
    newest = max((file.path for file in side.list(ORIGINALS)), default=None)
    if newest is None:
        return []
    with decoding(f"{side.uri}/{newest}", "a list of files", _RESTORE):
        return [
            MasterFile.from_dict(file)
            for file in checked.listed(
                checked.mapped(parse_json(read_sealed(side, newest)))["files"]
            )
        ]


def forget_original(side: Storage) -> None:
    side.delete([file.path for file in side.list(ORIGINALS)])


def is_done(side: Storage, run: int) -> bool:
    return any(True for _ in side.list(_document(run, "done")))


def write_done(side: Storage, run: int, result: JobResult) -> None:
    """With the report beside it, for people."""
    _put(side, report_path(run), result.to_dict(), indent=2)
    keep_result(side, result.token, result)
    _put(side, _document(run, "done"), {"run": run})


def report_path(run: int) -> str:
    """Below the folder beside the master."""
    return f"{run_path('reports', run)}.json"


def write_abandoned(side: Storage, run: int) -> None:
    _put(side, _document(run, "done"), {"run": run})


def keep_result(side: Storage, token: str | None, result: JobResult) -> JobResult:
    """For who asks again with the token."""
    if token is not None:
        _put(side, _result_path(token), result.to_dict())
    return result


def dry(token: str | None) -> str | None:
    """What a dry run's result is kept under: the same token may merge afterwards."""
    return None if token is None else f"{token} (dry run)"


def read_result(side: Storage, token: str | None) -> JobResult | None:
    """Return what a run with this token did, marked as a repeat."""
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
    """From a document."""
    return JobResult.from_dict(checked_result(data))


def history(side: Storage, newest: int, keep: int | None) -> History:
    """Of runs before the newest one those stay that made the newest masters, as many as are kept, and the newest that was decided.
    None: all that made a master.
    """
    listed = [
        (int(match[1]), file.path)
        for file in side.list(RUNS)
        if (match := _OF_RUN.match(file.path))
    ]
    kept, masters, is_newest = {newest}, list[tuple[MasterFile, ...]](), True
    for run in sorted((run for run, path in listed if _CLAIM.fullmatch(path)), reverse=True):
        if keep is not None and len(masters) > keep:
            break
        outcome = read_outcome(side, run)
        if outcome is None or outcome.is_changed or (outcome.is_decided and is_newest):
            kept.add(run)
        if outcome is not None and outcome.is_decided:
            is_newest = False
            masters += [outcome.files] if outcome.is_changed else []
    return History(
        masters=tuple(masters),
        old=tuple(path for run, path in listed if run < newest and run not in kept),
    )


def forget(side: Storage, past: History) -> None:
    """Claims go first: a run without one is no run, whatever another process that believes in it still writes."""
    side.delete([path for path in past.old if _CLAIM.fullmatch(path)])
    side.delete([path for path in past.old if not _CLAIM.fullmatch(path)])


def _document(run: int, name: str) -> str:
    return f"{run_path('runs', run)}/{name}.json"


def _result_path(token: str) -> str:
    return f"results/{hashlib.sha256(token.encode()).hexdigest()}.json"


def _put(side: Storage, path: str, document: Mapping[str, Any], indent: int | None = None) -> bool:
    return side.put_if_absent(
        path, json.dumps(document, ensure_ascii=False, indent=indent).encode()
    )
