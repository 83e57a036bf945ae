"""A table as operations get it."""

from dataclasses import dataclass

from opal_lake.engine.executor import Executor
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.log.commit_log import CommitLog
from opal_lake.storage.protocol import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTable:
    """The log of a table, the cache through which its key-store runs are read, and who runs tasks on it."""

    log: CommitLog
    cache: RunCache
    executor: Executor

    @property
    def uri(self) -> str:
        return self.log.storage.uri

    @property
    def storage(self) -> Storage:
        return self.log.storage
