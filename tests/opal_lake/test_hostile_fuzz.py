"""Random changes of a table's metadata.

Each ends in a result, or in one of the library's own errors that names the file; never in a crash
or a hang.
"""

import os
import random
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.errors import OpalError
from opal_lake.inspect.describe import describe, file_rows, history_rows, segment_rows
from opal_lake.log.commit import canonical_json, seal, unseal
from opal_lake.log.commit_log import CommitLog
from opal_lake.log.sections import decode_section, encode_section
from opal_lake.log.tuning import Tuning
from opal_lake.read.explain import explain
from opal_lake.read.read import file_filter
from opal_lake.storage.local.store import LocalStorage
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.protocol import Storage
from opal_lake.table import Table
from tests.kit.check import check_table
from tests.kit.ids import CountingIds
from tests.kit.runs import MemoryRuns
from tests.opal_lake.compacting import compact
from tests.opal_lake.shop import create, rows

VALUES: tuple[Any, ...] = (
    None, True,
    0, -1, 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**40, 1e308, -0.5,
    "", "x", "../x", "a\0b", "é", "9" * 30, "long", "decimal(99,99)", "30d", "'",
    [], [[]], [0], [None], ["x"], {}, {"x": 1}, {"type": "udt"}, [[[[[]]]]],
)  # fmt: skip

# Every checkpoint has bitmap bases
FOLDED_EACH_TIME = Tuning(fold_at_logs=1)


@dataclass(frozen=True, slots=True)
class Mutator:
    """A change of one thing in a table that is a dictionary of files.

    It corrects the checksums of the files that refer to the changed one.
    """

    files: dict[str, bytes]
    dice: random.Random

    def mutate(self) -> str:
        path = self.dice.choice(
            [path for path in sorted(self.files) if path.startswith(layout.META)]
        )
        return path if self.dice.random() < 0.2 else self._content(path)

    def _content(self, path: str) -> str:
        data = self.files[path]
        if (
            path.startswith((layout.LOG, layout.CLAIMS))
            or layout.checkpoint_version(path) is not None
        ):
            self.files[path] = seal(canonical_json(self._value(unseal(data, path))))
            return path
        if path.endswith(".zst"):
            items = decode_section(data, path, lambda item: item)
            if items:
                position = self.dice.randrange(len(items))
                items[position] = self._value(items[position])
            self._replace(path, encode_section(items, lambda item: item))
            return path
        self._replace(path, self.bytes_of(data))
        return path

    def bytes_of(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.dice.randrange(1, 4)):
            at = self.dice.randrange(max(1, len(changed)))
            match self.dice.randrange(4):
                case 0:
                    changed[at : at + 1] = bytes([self.dice.randrange(256)])
                case 1:
                    del changed[at : at + self.dice.randrange(1, 50)]
                case 2:
                    changed[at:at] = self.dice.randbytes(self.dice.randrange(1, 50))
                case _:
                    changed[at : at + 4] = self.dice.choice(
                        [b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x00\x00\x00\x80"]
                    )
        return bytes(changed)

    def _value(self, value: Any) -> Any:
        """Return the value with one part, anywhere, changed, removed or doubled."""
        if not isinstance(value, dict | list) or not value or self.dice.random() < 0.1:
            return self.dice.choice(VALUES)
        parts = sorted(value) if isinstance(value, dict) else range(len(value))
        part = self.dice.choice(list(parts))
        if self.dice.random() < 0.7:
            value[part] = self._value(value[part])
        elif isinstance(value, list) and self.dice.random() < 0.5:
            value.append(value[part])
        else:
            del value[part]
        return value

    def _replace(self, path: str, data: bytes) -> None:
        """Set its size and checksum in every sealed document and section that names it."""
        self.files[path] = data
        for above in [
            path for path in self.files if path.startswith((layout.LOG, layout.CHECKPOINTS))
        ]:
            if above.endswith(".json"):
                body = unseal(self.files[above], above)
                if _mended(body, path, data):
                    self.files[above] = seal(canonical_json(body))


def _mended(value: Any, path: str, data: bytes) -> bool:
    is_named, parts = False, []
    if isinstance(value, dict):
        if value.get("path") == path:
            value["size"], value["crc32"], is_named = len(data), zlib.crc32(data), True
        parts = [*value.values()]
    elif isinstance(value, list):
        if path in value[:2]:
            at = value.index(path)
            value[at + 1 : at + 3], is_named = [len(data), zlib.crc32(data)], True
        parts = value
    return is_named | (sum(_mended(part, path, data) for part in parts) > 0)


def uses(table: Table) -> list[Callable[[], object]]:
    return [
        lambda: table.read().num_rows,
        lambda: table.read(event_time=2).num_rows,
        lambda: table.read(version=2).num_rows,
        lambda: describe(table),
        lambda: history_rows(table),
        lambda: (file_rows(table), segment_rows(table)),
        lambda: explain(file_filter(table.snapshot_at(), None)),
        lambda: check_table(table),
        lambda: table.ingest(*rows([("z", 9, 9), ("a", 9, 9)]), token="new"),
        table.metagen,
        lambda: table.ingest(*rows([("y", 9, 9), ("a", 10, 9)]), metadata="inline"),
        lambda: compact(table),
        lambda: table.retain(window="0s", grace="0s"),
    ]


def original() -> dict[str, bytes]:
    storage = MemoryStorage()
    table = create(storage, checkpoint_commits=3, group_rows=6, tuning=FOLDED_EACH_TIME)
    for at in range(1, 5):
        table.ingest(
            *rows([("a", at, at), ("b", at, None if at == 2 else at), (f"c{at}", at, at)]),
            token=f"t{at}",
        )
        table.metagen(all=True)
    table.ingest(*rows([("e", 1, 1)]))
    return {stored.path: storage.get(stored.path) for stored in storage.list("")}


def run(files: dict[str, bytes], seed: int) -> list[str]:
    """Return the errors that are not the library's own."""
    mutator = Mutator(dict(files), random.Random(seed))
    path = mutator.mutate()
    if mutator.files == files:
        mutator.files[path] = mutator.bytes_of(files[path])
    storage = MemoryStorage()
    for name, data in mutator.files.items():
        storage.put_if_absent(name, data)
    return used(storage, f"seed {seed}, {path}")


def used(storage: Storage, what: str) -> list[str]:
    table = Table(
        log=CommitLog(
            storage=storage,
            clock=ManualClock(),
            ids=CountingIds(prefix="new"),
            tuning=FOLDED_EACH_TIME,
        ),
        cache=MemoryRuns(storage=storage),
    )
    strange = []
    for number, use in enumerate(uses(table)):
        try:
            use()
        except OpalError:
            continue
        except Exception as error:  # noqa: BLE001  # which is what this looks for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            strange.append(
                f"{what}, use {number}: {error!r} at {Path(frame.filename).name}:{frame.lineno}"
            )
    return strange


@pytest.mark.parametrize("share", range(4))
def test_hostile_metadata_give_an_answer_or_an_opal_error(share: int) -> None:
    files = original()
    assert not [line for seed in range(share, 120, 4) for line in run(files, seed)]


def _paths_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the paths in JSON to a text with a slash, or to an id."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [path for key, part in parts for path in _paths_in(part, (*at, key))]
    return (
        [at]
        if isinstance(value, str)
        and ("/" in value or (at and at[-1] in ("write_id", "table_id", "token", "partition_key")))
        else []
    )


@pytest.mark.parametrize("seed", range(12))
def test_hostile_metadata_touch_no_file_outside_the_root(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file next to the root has the path that the metadata names.

    It stays as it is, and nothing opens it.
    """
    dice, files = random.Random(seed), original()
    witness, root = tmp_path / "witness", tmp_path / "table"
    witness.mkdir()
    for path, data in files.items():
        (witness / Path(path).name).write_bytes(data)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in witness.iterdir()}
    sealed = [
        path
        for path in sorted(files)
        if path.startswith(layout.LOG) or layout.checkpoint_version(path) is not None
    ]
    for _ in range(2):
        path = dice.choice(sealed)
        body = unseal(files[path], path)
        *way, last = dice.choice(_paths_in(body))
        part = body
        for key in way:
            part = part[key]
        name = Path(part[last]).name
        part[last] = dice.choice(
            [
                f"../witness/{name}",
                f"data/../../witness/{name}",
                str(witness / name),
                f"_opal/key_store/../../../witness/{name}",
            ]
        )
        files[path] = seal(canonical_json(body))
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda path, *rest, **named: opened.append(os.fspath(path)) or real(path, *rest, **named),
    )
    assert not used(LocalStorage.open(str(root)), f"seed {seed}")
    assert not [path for path in opened if "witness" in os.path.realpath(path)]
    assert {
        path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in witness.iterdir()
    } == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["table", "witness"]
