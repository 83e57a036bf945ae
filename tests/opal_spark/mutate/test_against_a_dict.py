"""Random increments, run after run, against a dict.

They cover every combination of order, form of deletes, format and partitions.
"""

import csv
import io
import itertools
import json
import os
import random
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from opal_spark.mutate import read_master
from tests.opal_spark.mutate.folders import put, put_avro, run

FIELDS = ("id", "kind", "note", "at", "place", "op")
SCHEMA = "id STRING, kind STRING, note STRING, at BIGINT, place STRING, op STRING"
ORDERS = ("at", "file_suffix", "file_position")
DELETES = ("op", "rows", "ids")
FORMATS = ("csv", "bare csv", "json", "parquet", "avro")
COMBINATIONS = list(itertools.product(ORDERS, DELETES, FORMATS, (False, True)))
NOTES = ("plain", "", "a,b", 'say "x"', " spaced ", "Ünï", "null", "\\", "a;b")
Row = dict[str, Any]


class Feed:
    """Files of mutations as a source writes them, and the expected master."""

    def __init__(self, seed: str, order: str, deletes: str, kind: str) -> None:
        self.random, self.order, self.deletes, self.kind = random.Random(seed), order, deletes, kind
        self.master: dict[tuple[str, str], Row] = {}
        self.suffix = -1

    def row(self) -> Row:
        key = {"id": str(self.random.randrange(6)), "kind": self.random.choice("xy")}
        rest = {
            "note": self.random.choice(NOTES),
            "at": self.random.randrange(8),
            "place": self.random.choice("pq"),
        }
        return {**key, **rest, "op": self.random.choice("UUUD" if self.deletes == "op" else "U")}

    def arrive(self, folder: Path, number: int) -> None:
        """Write some files, and return the expected dict after them."""
        files: list[tuple[int, str, bool, list[Row]]] = []
        for part in range(self.random.randint(1, 3)):
            suffix = self.random.randrange(20)
            is_deletes = self.deletes != "op" and self.random.random() < 0.4
            prefix = "del" if is_deletes else "f"
            name = f"{prefix}{number}{part}_{suffix}.{self.kind.split()[-1]}"
            rows = [self.row() for _ in range(self.random.randint(1, 8))]
            files.append((suffix, name, is_deletes, rows))
        files.sort(key=lambda file: file[1])
        for _, name, is_deletes, rows in files:
            self._write(folder / name, rows, only_ids=is_deletes and self.deletes == "ids")
        if self.order == "file_suffix":
            files.sort(key=lambda file: file[0])
        self._apply(files)

    def _apply(self, files: list[tuple[int, str, bool, list[Row]]]) -> None:
        latest: dict[tuple[str, str], tuple[Any, bool, Row]] = {}
        for position, (suffix, _, is_deletes, rows) in enumerate(files):
            untimed = is_deletes and self.deletes == "ids" and self.order == "at"
            for at, row in enumerate(rows):
                order = (
                    untimed,
                    {"at": row["at"], "file_suffix": suffix, "file_position": 0}[self.order],
                )
                mutation = ((order, position, at), is_deletes or row["op"] == "D", row)
                key = (row["id"], row["kind"])
                latest[key] = max(mutation, latest.get(key, mutation), key=lambda entry: entry[0])
        for key, (((untimed, order), _, _), is_delete, row) in latest.items():
            old = self.master.get(key)
            newer = {"at": old and old["at"], "file_suffix": self.suffix, "file_position": None}[
                self.order
            ]
            if old is not None and not untimed and newer is not None and order < newer:
                continue
            if is_delete:
                self.master.pop(key, None)
            else:
                self.master[key] = row
        self.suffix = max([self.suffix, *(suffix for suffix, *_ in files)])

    def _write(self, path: Path, rows: list[Row], *, only_ids: bool) -> None:
        names = FIELDS[:2] if only_ids else FIELDS
        written = [_only(row, names) for row in rows]
        if self.kind == "parquet":
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(written), path)
        elif self.kind == "avro":
            put_avro(path, {name: "long" if name == "at" else "string" for name in names}, rows)
        elif self.kind == "json":
            put(path, "".join(json.dumps(row) + "\n" for row in written))
        else:
            text = io.StringIO()
            has_header = self.kind != "bare csv"
            delimiter = "," if has_header else ";"
            writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
            if has_header:
                writer.writerow(names)
            writer.writerows(row.values() for row in written)
            put(path, text.getvalue())


def check(
    spark: SparkSession, folder: Path, seed: str, combination: tuple[str, str, str, bool], runs: int
) -> None:
    order, deletes, kind, is_partitioned = combination
    feed = Feed(seed, order, deletes, kind)
    csv_options = {"delimiter": ";", "header": False} if kind == "bare csv" else {}
    master = feed.random.choice(("csv", "parquet", "json", "avro"))
    arguments = {
        "ids": ["id", "kind"],
        "order": order,
        "schema": SCHEMA,
        "format": master,
        "delete_prefix": "del",
        **csv_options,
    }
    arguments |= {"op_field": "op"} if deletes == "op" else {}
    arguments |= {"partition_by": ["place"]} if is_partitioned else {}
    for number in range(runs):
        feed.arrive(folder / "incr", number)
        result = run(spark, folder, **arguments)
        assert result.counts["rejected"] == 0
        if list((folder / "master").rglob(f"*.{master}")):
            rows = (
                spark.read.format(master)
                .schema(SCHEMA)
                .options(**_reading(csv_options))
                .load(str(folder / "master"))
                .collect()
            )
        else:
            rows = []
        expected = feed.master.values()
        assert _cells(rows) == _cells(expected), (seed, combination, number)


def _only(row: Row, names: Sequence[str]) -> Row:
    return {name: row[name] for name in names}


def _cells(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    cells_of = itemgetter(*FIELDS)
    return sorted(cells_of(row) for row in rows)


def _reading(options: dict[str, Any]) -> dict[str, str]:
    return {
        "sep": options.get("delimiter", ","),
        "header": str(options.get("header", True)),
        "escape": '"',
        "nullValue": "\u0000",
    }


SEED = os.environ.get("OPAL_SEED", "1")


@pytest.mark.slow_but_one
@pytest.mark.parametrize("turn", range(2))
def test_some_combinations_end_as_a_dict_does(
    spark: SparkSession, tmp_path: Path, turn: int
) -> None:
    combination = random.Random(f"{SEED} {turn}").choice(COMBINATIONS)
    check(spark, tmp_path, f"{SEED} {turn}", combination, runs=2)


@pytest.mark.slow
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_every_combination_ends_as_a_dict_does(
    spark: SparkSession, tmp_path: Path, combination: tuple[str, str, str, bool]
) -> None:
    check(spark, tmp_path, f"{SEED} {combination}", combination, runs=4)


def test_the_master_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    """A reader of the current master reads the same, whatever the cells hold."""
    text = "".join(
        f'{number},"{note.replace(chr(34), chr(34) * 2)}"\n' for number, note in enumerate(NOTES)
    )
    put(tmp_path / "incr" / "1.csv", f"id,note\n{text}")
    run(spark, tmp_path, ids=["id"])
    put(tmp_path / "incr" / "2.csv", "id,note\n99,new\n")
    run(spark, tmp_path, ids=["id"])
    rows = read_master(spark, str(tmp_path / "master")).collect()
    assert {row.id: row.note for row in rows} == {
        **{str(number): note for number, note in enumerate(NOTES)},
        "99": "new",
    }
