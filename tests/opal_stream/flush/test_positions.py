"""The positions of a stream, where the store fails while a partition begins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from opal_lake import layout
from opal_lake.errors import StorageError
from opal_lake.storage import Storage
from opal_lake.storage.forwarding import ForwardingStore
from opal_lake.storage.open import open_storage
from opal_lake.storage.protocol import StoredObject
from opal_lake.table import table_on
from opal_stream.flush.options import StreamOptions
from opal_stream.flush.positions import StreamPositions
from opal_stream.kafka.connection import Connection
from opal_stream.kafka.topics import Partition, Reach
from opal_stream.tracking.events import Tracker
from tests.opal_stream.orders import new_table

PARTITION = Partition(topic="orders", number=0)
# Kafka has deleted the first messages: gathered files are listed, as they might hold a copy
REACH = {PARTITION: Reach(low=5, high=9)}


class FailingLists(ForwardingStore):
    """A store whose lists of gathered files fail, each as the next one of `failures` says."""

    def __init__(self, inner: Storage, failures: list[bool]) -> None:
        self.inner = inner
        self.failures = failures

    def list(self, prefix: str, start_after: str = "") -> Iterator[StoredObject]:
        if prefix == layout.GATHERED and self.failures and self.failures.pop(0):
            raise StorageError("the store is away")
        return self.inner.list(prefix, start_after)


def test_a_partition_whose_begin_fails_is_not_read_and_begins_again_later(tmp_path: Path) -> None:
    # The first list finds no files of an earlier topic, the second one fails
    store = FailingLists(open_storage(new_table(tmp_path).uri), [False, True])
    connection = Connection(bootstrap_servers="localhost:1")
    options = StreamOptions(topics=["orders"])
    positions = StreamPositions(table_on(store), connection, options, Tracker())
    positions.ids = {"orders": "an-id"}
    with pytest.raises(StorageError):
        positions.begin([PARTITION], REACH)
    assert (positions.writer.applications, positions.writer.positions) == ({}, {})
    assert positions.begin([PARTITION], REACH) == {PARTITION: 5}
    assert positions.writer.positions == {PARTITION: None}
