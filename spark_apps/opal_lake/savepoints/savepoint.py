"""Savepoints: versions with a name, which stay readable when retention lets the versions around them go.

Here they are named and released. That their version stays readable says `log.version_window`, that its files stay `live_files`.
"""

import re
from collections.abc import Sequence

from opal_lake.checked import LATEST
from opal_lake.definition.business_snapshots import BusinessSnapshots
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.checkpoint import ensure_checkpoint
from opal_lake.log.commit import Actions, Commit
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.conflict import Draft, Proposal
from opal_lake.log.snapshot import Snapshot
from opal_lake.log.version_window import is_readable, readable_text, savepoints_text
from opal_lake.result import JobResult

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")


def set_savepoint(
    log: CommitLog, name: object, version: int | None = None, *, move: bool = False
) -> JobResult:
    """Name a version; the newest by default. A checkpoint of exactly it comes first, so that it can be read without the log below.

    The same again is no change, as long as the table reads the same. With `move` the name may be another version's, which it leaves.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidInputError(
            f"a savepoint cannot be called {name!r}; use up to 100 of the letters a to z, digits, '_', '.' and '-'"
        )
    if name == LATEST or name.isdigit():
        raise InvalidInputError(
            f"a savepoint {name!r} could not be told from a version of that name; add a letter, as 'v{name}'"
        )
    started_us, base = log.clock.now_us(), log.head()
    _refuse_business(base.root.business, name)
    if version is None:
        known = base.root.savepoints.get(name)
        version = base.version if known is None or known < base.root.viewed else known
    elif type(version) is not int:
        raise InvalidInputError(
            f"version {version!r} is no version; give a whole number, as `opal history` lists them"
        )
    kept = ensure_checkpoint(
        log.storage, base if version == base.version else log.at(version)
    ).version

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        _refuse_business(head.root.business, name)
        known = head.root.savepoints.get(name)
        if known == kept:
            return None
        if known is not None and not move:
            raise InvalidInputError(
                f"{log.storage.uri} has a savepoint {name} of version {known}; release it, or choose another name"
            )
        if not is_readable(head.root, kept):  # retention was faster
            raise NotFoundError(
                f"{log.storage.uri}: version {kept} has expired meanwhile; readable are {readable_text(head.root)}"
            )
        result = JobResult(
            operation="savepoint",
            table=log.storage.uri,
            notes=(f"version {kept} stays readable as {name}",),
        )
        released = () if known is None else (name,)
        return Draft(actions=Actions(savepoints={name: kept}, released=released), result=result)

    return log.commit(
        base, Proposal(operation="savepoint", number=None, build=build, started_us=started_us)
    )


def _refuse_business(business: BusinessSnapshots, name: str) -> None:
    """A finished business snapshot is a savepoint of its name, and one to come will be."""
    if business.is_named_like(name):
        raise InvalidInputError(
            f"a savepoint of this table cannot be called {name!r}: business snapshots are, as {business.newest}, and each becomes a "
            f"savepoint of its name; add a word, as 'before-{name}'"
        )


def savepoint_version(head: Snapshot, name: object) -> int:
    """The version that a savepoint keeps."""
    if not isinstance(name, str):
        raise InvalidInputError(f"{name!r} is not a savepoint; give the name of one, as a text")
    if name not in head.root.savepoints:
        if name in (head.root.business.open, *head.root.business.held):
            raise NotFoundError(
                f"{head.storage.uri}: the business snapshot {name} is not finished: no savepoint keeps it yet; give a version"
            )
        known = savepoints_text(head.root.savepoints) or "none"
        raise NotFoundError(f"{head.storage.uri} has no savepoint {name!r}; it has {known}")
    return head.root.savepoints[name]


def release_savepoint(log: CommitLog, name: str) -> JobResult:
    """Its version goes with the next retention, unless it is young enough or has another name."""
    started_us, base = log.clock.now_us(), log.head()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        note = f"version {savepoint_version(head, name)} is {name} no longer"
        result = JobResult(operation="release", table=log.storage.uri, notes=(note,))
        return Draft(actions=Actions(released=(name,)), result=result)

    return log.commit(
        base, Proposal(operation="release", number=None, build=build, started_us=started_us)
    )
