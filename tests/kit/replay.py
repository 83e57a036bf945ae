"""The comparison of a table with the model, after or during a history."""

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pyarrow as pa

from opal_lake.definition.schema import OFFSET, SEGMENT
from opal_lake.errors import NotFoundError
from opal_lake.log.snapshot import Snapshot
from opal_lake.operations.read import Changes
from opal_lake.read.change_range import version_range
from opal_lake.read.changed_rows import read_changes
from opal_lake.read.changes import plan_changes
from opal_lake.read.read import event_time_of, file_reads, hidden_rows, plan_read
from tests.kit.model import (
    ModelRow,
    RowId,
    changes,
    intervals,
    known,
    net,
    net_changes,
    visible,
)
from tests.kit.play import Play
from tests.kit.strategies import SERIAL, neighbours_of


class Replay(Play):
    """A table and its model."""

    def rows_at(self, version: int) -> Iterable[ModelRow]:
        """Return the model's rows as of a version, pending ones too."""
        return self.states[version].values()

    def moments(self) -> list[Any]:
        """Return every event time that could matter: around each delta, and the end."""
        moments: set[Any] = set()
        for delta in {*self.deltas.values()}:
            moments |= {delta, *neighbours_of(delta, self.shape.delta)}
        return [None, *sorted(moments)]

    def compare_everywhere(self) -> None:
        """Compare the rows that a read plan lets through with the model's.

        Every version is read by every event time.
        """
        moments = self.moments()
        for version in self.versions:
            snapshot = self.table.snapshot_at(version)
            fresh = version in self.restored or any(
                row.processed == version for row in self.rows_at(version)
            )
            is_read_fully = fresh or version == self.versions[-1]
            for moment in moments if is_read_fully else moments[:1] + moments[-2:-1]:
                if not self.is_readable(version, moment):
                    self._expect_unreadable(version, moment)
                    continue
                actual = self.visible_ids(snapshot, moment)
                expected = [row.row_id for row in visible(self.rows_at(version), event_time=moment)]
                assert actual == expected, (
                    f"version {version}, event time {moment!r}: "
                    f"visible are {actual}, should be {expected}"
                )

    def _expect_unreadable(self, version: int, moment: Any) -> None:
        message = ""
        try:
            self.table.read(version=version, event_time=moment)
        except NotFoundError as error:
            message = str(error)
        assert "oldest readable" in message, (
            f"version {version} at {moment!r}, before its floor: {message!r}"
        )

    def visible_ids(self, snapshot: Snapshot, event_time: Any) -> list[RowId]:
        """Return the row ids that the read plan and its filter let through."""
        plan = plan_read(snapshot, event_time_of(snapshot, event_time))
        ids: list[RowId] = []
        for part in file_reads(plan):
            rows = self._decoded(part.file.path, snapshot)
            hidden = hidden_rows(rows, part)
            assert part.file not in plan.plain or not hidden.any(), (
                f"{part.file.path} is to be scanned plain, but has hidden rows"
            )
            ids += zip(
                rows[SEGMENT].to_numpy()[~hidden].tolist(),
                rows[OFFSET].to_numpy()[~hidden].tolist(),
                strict=True,
            )
        return sorted(ids)

    def compare_read(self, version: int | None, event_time: Any, timestamp: Any = None) -> None:
        """Compare a whole public read: the same rows with the same values."""
        at = self.table.snapshot_at(version, timestamp).version
        if not self.is_readable(at, event_time):
            return self._expect_unreadable(at, event_time)
        actual = self.table.read(
            version=version, timestamp=timestamp, event_time=event_time
        ).to_pylist()
        expected = [
            self.values_at(row, at) for row in visible(self.rows_at(at), event_time=event_time)
        ]
        by_serial = {row[SERIAL]: row for row in actual}
        assert len(by_serial) == len(actual)
        assert by_serial == {row[SERIAL]: row for row in expected}

    def compare_narrowed(self, version: int, after: int, partition_key: str) -> None:
        """Compare the rows of a partition key, and those after a version."""
        # A restore brings the rows of a segment that a compaction dropped back as new rows
        segments = self.table.snapshot_at(after).segments
        rows = visible(self.rows_at(version))
        before = {row.row_id for row in known(self.rows_at(after)) if row.row_id[0] in segments}
        later = [row for row in rows if row.row_id not in before]
        self._compare_serials(self.table.read(version=version, after=after), later)
        if partition_key in self.table.snapshot_at(version).partitions:
            of_key = [row for row in rows if row.partition_key == partition_key]
            self._compare_serials(
                self.table.read(version=version, partition_key=partition_key), of_key
            )
            self._compare_net(version, partition_key)

    def _compare_net(self, version: int, partition_key: str) -> None:
        """Compare all rows of the key; a read of rows without files fails."""
        snapshot = self.table.snapshot_at(version)
        of_key = [row for row in self.rows_at(version) if row.partition_key == partition_key]
        row_ids = {row_id for path in snapshot.files for row_id in self._ids_in(path, snapshot)}
        is_whole = all(row.row_id in row_ids for row in known(of_key))
        for moment in (None, *{row.delta for row in of_key}):
            if not self.is_readable(version, moment):
                continue
            try:
                actual = self.table.read(
                    version=version, event_time=moment, partition_key=partition_key, net=True
                )
            except NotFoundError:
                actual = None
            assert (actual is not None) == is_whole, (
                f"version {version} holds all rows of {partition_key!r}: {is_whole}"
            )
            if actual is not None:
                self._compare_serials(actual, net(of_key, partition_key, event_time=moment))

    def _ids_in(self, path: str, snapshot: Snapshot) -> Iterable[RowId]:
        rows = self._decoded(path, snapshot)
        return zip(rows[SEGMENT].to_pylist(), rows[OFFSET].to_pylist(), strict=True)

    def _compare_serials(self, actual: pa.Table, expected: Iterable[ModelRow]) -> None:
        assert sorted(actual[SERIAL].to_pylist()) == sorted(row.values[SERIAL] for row in expected)

    def _keys_put(self) -> list[tuple[Any, ...]]:
        """Return the keys of all rows that were put, each once, in the order of the puts."""
        names = self.shape.keys
        keys: dict[tuple[Any, ...], None] = {}
        for put in self.puts_by_serial.values():
            keys[tuple(put.values[name] for name in names)] = None
        return list(keys)

    def compare_get(self, version: int, event_time: Any) -> None:
        """Compare the visible rows of all keys that were put, and of one that was not."""
        if not self.is_readable(version, event_time):
            return
        expected = {
            row.key: self.values_at(row, version)
            for row in visible(self.rows_at(version), event_time=event_time)
        }
        given = self._keys_put()[::-1]
        keys = [dict(zip(self.shape.keys, key, strict=True)) for key in given]
        assert self.table.get(keys, version=version, event_time=event_time).to_pylist() == [
            expected[k] for k in given if k in expected
        ]

    def compare_history_view(self, version: int) -> None:
        """Compare the intervals after the floor, of all keys and of each."""
        floor = self.table.snapshot_at(version).root.floor
        expected = [
            {
                **self.values_at(row, version),
                "valid_from": begins,
                "valid_until": ends,
                "is_current": ends is None,
                "deleted": deleted,
            }
            for row, begins, ends, deleted in intervals(self.rows_at(version))
            if floor is None or ends is None or self.order_word(ends) > floor
        ]
        expected.sort(key=lambda row: row[SERIAL])
        assert (
            sorted(
                self.table.history_view(version=version).to_pylist(), key=lambda row: row[SERIAL]
            )
            == expected
        )
        given = self._keys_put()
        keys = [dict(zip(self.shape.keys, key, strict=True)) for key in given]
        by_key = self.table.history_view(keys=keys, version=version).to_pylist()
        assert sorted(by_key, key=lambda row: row[SERIAL]) == expected
        order: list[tuple[int, Any]] = []
        for row in by_key:
            key = tuple(row[name] for name in self.shape.keys)
            order.append((given.index(key), row["valid_from"]))
        assert order == sorted(order)

    def compare_changes(self, start: int, end: int) -> None:
        """Compare the feed of a range of versions: what each did, and all did in sum."""
        feed = self.table.changes(start, end).to_pylist()
        expected = changes(lambda version: visible(self.rows_at(version)), start, end)
        actual = [(row["_commit_version"], row["_change_type"], row[SERIAL]) for row in feed]
        assert sorted(actual) == sorted(
            (version, kind, row.values[SERIAL]) for version, kind, row in expected
        )
        assert [version for version, _, _ in actual] == sorted(version for version, _, _ in actual)
        # A feed has the newest columns
        values = {
            row.values[SERIAL]: self.values_at(row, self.versions[-1]) for _, _, row in expected
        }
        for row in feed:
            shown = {name: value for name, value in row.items() if not name.startswith("_")}
            assert shown == values[row[SERIAL]]
        assert self.table.changes(start, end, mode="dropCarryovers").to_pylist() == feed
        self._compare_by_keys(start, end)
        split = {"update_preimage": "delete", "update_postimage": "insert"}
        apart = self.table.changes(start, end, compute_updates=False, columns=[SERIAL]).to_pylist()
        assert [(row["_commit_version"], row["_change_type"], row[SERIAL]) for row in apart] == [
            (version, split.get(kind, kind), serial) for version, kind, serial in actual
        ]
        net_feed = self.table.changes(start, end, mode="netChanges", columns=[SERIAL]).to_pylist()
        net_expected = net_changes(lambda version: visible(self.rows_at(version)), start, end)
        assert sorted((row["_change_type"], row[SERIAL]) for row in net_feed) == sorted(
            (k, row.values[SERIAL]) for k, row in net_expected
        )
        times = {row["_commit_version"]: row["_commit_timestamp"] for row in feed}
        assert list(times.values()) == sorted(times.values())

    def _compare_by_keys(self, start: int, end: int) -> None:
        """Compare the changes by key with the events, which say which row followed."""
        for mode in ("none", "netChanges"):
            feed = Changes(start, mode=mode)
            plan = plan_changes(
                self.table.log, version_range(self.table.log, start, end), is_net=feed.is_net
            )
            feeds = [
                read_changes(replace(plan, has_pairs=has_pairs), feed).to_pylist()
                for has_pairs in (plan.has_pairs, False)
            ]
            assert sorted(feeds[0], key=repr) == sorted(feeds[1], key=repr)

    def compare_history_changes(self, start: int, end: int) -> None:
        """Compare the feed of the history, version by version and in sum."""
        actual = self._feed_of_history(start, end, "none")
        expected = [
            change
            for version in range(max(start, 1), end + 1)
            for change in self._history_changes(version, version)
        ]
        assert sorted(actual, key=repr) == sorted(expected, key=repr)
        assert [row[0] for row in actual] == sorted(row[0] for row in actual)
        in_sum = [row[1:] for row in self._feed_of_history(start, end, "netChanges")]
        assert sorted(in_sum, key=repr) == sorted(
            (row[1:] for row in self._history_changes(start, end)), key=repr
        )

    def _feed_of_history(self, start: int, end: int, mode: str) -> list[tuple[Any, ...]]:
        names = ("_commit_version", "_change_type", SERIAL, "valid_from", "valid_until", "deleted")
        feed = self.table.changes(start, end, mode=mode, axis="event_time").to_pylist()
        assert all(row["is_current"] == (row["valid_until"] is None) for row in feed)
        values_of = itemgetter(*names)
        return [values_of(row) for row in feed]

    def _history_changes(self, start: int, end: int) -> Iterable[tuple[Any, ...]]:
        floor = self.table.snapshot_at(end).root.floor
        before = self._intervals_by_row_id(max(start, 1) - 1, floor)
        after = self._intervals_by_row_id(end, floor)
        for row_id in before.keys() | after.keys():
            old, new = before.get(row_id), after.get(row_id)
            if old is None or new is None or old[1:] != new[1:]:
                if old is not None:
                    yield (
                        end,
                        "delete" if new is None else "update_preimage",
                        old[0].values[SERIAL],
                        *old[1:],
                    )
                if new is not None:
                    yield (
                        end,
                        "insert" if old is None else "update_postimage",
                        new[0].values[SERIAL],
                        *new[1:],
                    )

    def _intervals_by_row_id(self, version: int, floor: int | None) -> dict[RowId, tuple[Any, ...]]:
        """Return each row with its begin, its end and whether it is a delete."""
        shown = self._intervals(version, floor)
        return {interval[0].row_id: interval for interval in shown}

    def _intervals(
        self, version: int, floor: int | None
    ) -> Iterable[tuple[ModelRow, Any, Any, bool]]:
        shown = intervals(self.rows_at(version))
        return [
            interval
            for interval in shown
            if floor is None or interval[2] is None or self.order_word(interval[2]) > floor
        ]
