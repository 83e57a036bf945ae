"""The reason why a file is missing.

Either the file has expired, as readers of an old version may notice, or it is lost: that is damage.
"""

from dataclasses import dataclass

from opal_lake import layout
from opal_lake.clock import SystemClock
from opal_lake.errors import ExpiredError, FormatError, NotFoundError
from opal_lake.ids import RandomIds
from opal_lake.log.checkpoint import checkpoint_paths
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.version_window import readable_text
from opal_lake.retention.live_files import LogView, find_needed
from opal_lake.retention.log_digest import read_digest
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import diagnose_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Diagnosed(ForwardingStore):
    """A store in which a missing file is being diagnosed.

    Other files that turn out to be missing meanwhile are not diagnosed in turn.
    """

    inner: Storage


@diagnose_missing
def find_expiry(storage: Storage, path: str) -> ExpiredError | None:
    """Return an error if retention deleted a file.

    None if a readable version needs the file, or if that is unknown.
    """
    if isinstance(storage, _Diagnosed):
        return None
    log = CommitLog(storage=_Diagnosed(inner=storage), clock=SystemClock(), ids=RandomIds())
    try:
        head = log.head()
        if not head.root.oldest_version and not head.root.abandoned:
            return None  # no retention has deleted a file of this table yet
        view = LogView(
            log=log,
            head=head,
            state=log.at(head.root.oldest_version, head),
            checkpoints=tuple(checkpoint_paths(log.storage)),
            digest=read_digest(log, head),
        )
        needed = find_needed(view, (), frozenset())
    except (FormatError, NotFoundError):
        return None
    version = layout.commit_version(path)
    if path in needed.paths or (version is not None and version >= needed.begin):
        return None
    return ExpiredError(
        f"{storage.uri}/{path} has expired: a retention deleted it after this job began; "
        f"the readable versions are now {readable_text(head.root)}. Run the job again"
    )
