"""Savepoints: versions with a name, which stay readable when the versions around them expire.

This module sets and releases savepoints. `log.version_window` keeps their versions readable, and
`retention.live_files` keeps their files.
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
    """Name a version, by default the newest one.

    Commits nothing if the table reads the same as at the savepoint of that name. With `move`, a
    name that another version has is moved.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidInputError(
            f"a savepoint cannot be called {name!r}; use up to 100 characters: letters a to z, "
            "digits, '_', '.' and '-'"
        )
    if name == LATEST or name.isdigit():
        raise InvalidInputError(
            f"a savepoint {name!r} would look like a version; add a letter, such as 'v{name}'"
        )
    started_us, base = log.clock.now_us(), log.head()
    _refuse_business(base.root.business, name)
    if version is None:
        known = base.root.savepoints.get(name)
        if known is None or known < base.root.viewed:
            version = base.version
        else:
            version = known
    elif type(version) is not int:
        raise InvalidInputError(
            f"version {version!r} is not a version; pass a whole number that `opal history` lists"
        )
    state = base if version == base.version else log.at(version)
    # The savepoint must be readable without the log below it, so its checkpoint is written first
    named = ensure_checkpoint(log.storage, state, tuning=log.tuning).version

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        _refuse_business(head.root.business, name)
        known = head.root.savepoints.get(name)
        if known == named:
            return None
        if known is not None and not move:
            raise InvalidInputError(
                f"{log.storage.uri} already has a savepoint {name}, of version {known}; release it "
                "first, or choose another name"
            )
        if not is_readable(head.root, named):
            # A retention ran since the job began
            raise NotFoundError(
                f"{log.storage.uri}: version {named} has expired meanwhile; name one of the "
                f"readable versions {readable_text(head.root)}"
            )
        note = f"version {named} stays readable as {name}"
        result = JobResult(operation="savepoint", table=log.storage.uri, notes=(note,))
        released = () if known is None else (name,)
        actions = Actions(savepoints={name: named}, released=released)
        return Draft(actions=actions, result=result)

    proposal = Proposal(operation="savepoint", number=None, build=build, started_us=started_us)
    return log.commit(base, proposal)


def _refuse_business(business: BusinessSnapshots, name: str) -> None:
    """Raise InvalidInputError for a name that a business snapshot has or may get.

    Each finished business snapshot becomes a savepoint of its name.
    """
    if business.is_named_like(name):
        raise InvalidInputError(
            f"a savepoint of this table cannot be called {name!r}: business snapshots have such "
            f"names, for example {business.newest}, and become savepoints; add a word, such as "
            f"'before-{name}'"
        )


def savepoint_version(head: Snapshot, name: object) -> int:
    """Return the version that a savepoint keeps readable."""
    if not isinstance(name, str):
        raise InvalidInputError(f"{name!r} is not the name of a savepoint; pass the name as a text")
    if name not in head.root.savepoints:
        if name in (head.root.business.open, *head.root.business.held_back):
            raise NotFoundError(
                f"{head.storage.uri}: the business snapshot {name} is not finished, so it has no "
                "savepoint yet; pass a version that `opal history` lists"
            )
        if not head.root.savepoints:
            raise NotFoundError(
                f"{head.storage.uri} has no savepoint {name!r}, nor any other; pass a version that "
                "`opal history` lists, or set a savepoint with `opal savepoint`"
            )
        names = savepoints_text(head.root.savepoints)
        raise NotFoundError(
            f"{head.storage.uri} has no savepoint {name!r}; pass one of its savepoints: {names}"
        )
    return head.root.savepoints[name]


def release_savepoint(log: CommitLog, name: str) -> JobResult:
    """Release a savepoint: remove the name from its version.

    The next retention may delete the version, unless it is young enough or has another name.
    """
    started_us, base = log.clock.now_us(), log.head()

    def build(head: Snapshot, _: Sequence[Commit]) -> Draft | None:
        note = f"version {savepoint_version(head, name)} is no longer {name}"
        result = JobResult(operation="release", table=log.storage.uri, notes=(note,))
        return Draft(actions=Actions(released=(name,)), result=result)

    proposal = Proposal(operation="release", number=None, build=build, started_us=started_us)
    return log.commit(base, proposal)
