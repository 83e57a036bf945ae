"""A store that fails now and then."""

from opal_lake.errors import CommitUnknownError, StorageError
from opal_lake.storage import Storage
from opal_lake.storage.forwarding import ForwardingStore


class Shaky(ForwardingStore):
    """A store that fails some puts below a folder, by default those of commits.

    They fail before or after they were done; the last of `failures` comes first.
    """

    def __init__(self, inner: Storage, folder: str = "/log/") -> None:
        self.inner = inner
        self.folder = folder
        self.failures: list[str] = []

    def put_if_absent(self, path: str, data: bytes | memoryview) -> bool:
        failure = self.failures.pop() if self.folder in path and self.failures else ""
        if failure == "before":
            raise StorageError("the store is away")
        done = self.inner.put_if_absent(path, data)
        if failure == "after":
            raise CommitUnknownError("nobody knows")
        return done
