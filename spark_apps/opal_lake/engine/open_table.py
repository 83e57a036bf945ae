"""A table as operations get it."""

from dataclasses import dataclass

from opal_lake.definition.ordering import encode_order
from opal_lake.definition.schema import Atomic
from opal_lake.engine.executor import Executor
from opal_lake.errors import InvalidInputError
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.commit_times import version_at
from opal_lake.log.snapshot import Snapshot
from opal_lake.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """A table as operations get it: its log, its cache of runs, and its engine."""

    log: CommitLog
    cache: RunCache
    executor: Executor

    @property
    def uri(self) -> str:
        return self.log.storage.uri

    @property
    def storage(self) -> Storage:
        return self.log.storage

    def snapshot_at(
        self,
        version: int | None = None,
        timestamp: object | None = None,
        business_snapshot: str | None = None,
    ) -> Snapshot:
        """Return the state at a version, at a commit time, or of a business snapshot.

        Without arguments it is the newest state. At a commit time, it is the last state committed
        until then. For a business snapshot, it is the state when it was finished, or the newest
        state if it is open.
        """
        if (version, timestamp, business_snapshot).count(None) < 2:
            raise InvalidInputError(
                "version, timestamp and business_snapshot each choose the version to read: "
                "give only one of them"
            )
        if business_snapshot is not None:
            head = self.log.head()
            known = head.root.business
            version = known.version_of(business_snapshot, head.root.savepoints, head.version)
            return self.log.at(version, head)
        if isinstance(version, bool) or (version is not None and not hasattr(version, "__index__")):
            raise InvalidInputError(
                f"version={version!r} is not a version; "
                "give a whole number; `opal history` lists the versions"
            )
        if timestamp is not None:
            moment = encode_order(timestamp, Atomic(name="timestamp"), name="timestamp")
            version = version_at(self.log.head(), moment)
        if version is None:
            return self.log.head()
        return self.log.at(version)
