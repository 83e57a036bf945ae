"""What happens to a job meanwhile: jobs of others, and failures of the store."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opal_lake import Table, layout
from opal_lake.errors import CommitUnknownError, ConflictError, StorageError
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.forwarding import ForwardingStore
from tests.kit.failing_store import Crash, FailingStore, Mode
from tests.opal_lake import shop
from tests.opal_lake.shop import copied

MODES: list[Mode] = ["before", "after", "failed", "done_but_failed"]
Row = tuple[str, int, int | None]


@dataclass(slots=True, kw_only=True)
class Interfering(ForwardingStore):
    """A store in which other jobs run after a job has claimed a number.

    They run `times` times at most. `calls` counts the claims.
    """

    inner: Storage
    interfere: Callable[[], object]
    times: int = 1
    calls: int = 0

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        is_put = self.inner.put_if_absent(path, data)
        if is_put and layout.claim_number(path) is not None:
            self.calls += 1
            if self.calls <= self.times:
                self.interfere()
        return is_put


def tables_after_failures(
    name: str, first: list[Row], job: Callable[[Table], object], mode: Mode, **more: Any
) -> Iterator[tuple[Table, tuple[Any, ...]]]:
    """Yield a table after each failure of a job that then ran twice more, and the failure.

    The table has the rows `first`. Each of the job's calls to the store fails once. `more` are
    arguments of the ingest of these rows.
    """

    def fresh(part: object) -> Any:
        return open_storage(f"memory://{name}-{part}")

    begun = fresh("begun")
    created = shop.create(begun, checkpoint_commits=2, key_store_fan_in=2)
    created.ingest(*shop.rows(first), metadata="inline", **more)
    dry = FailingStore(copied(begun, fresh("dry")))
    job(shop.reopen(dry, "dry"))
    for fail_at in range(1, len(dry.trace) + 1):
        storage = copied(begun, fresh(fail_at))
        failing = FailingStore(storage, fail_at, mode)
        for target in (failing, storage, storage):
            try:
                job(shop.reopen(target, f"writer-{fail_at}"))
            except (Crash, StorageError, CommitUnknownError, ConflictError):
                continue
        yield shop.reopen(storage, "reader"), (mode, fail_at, dry.trace[fail_at - 1])
