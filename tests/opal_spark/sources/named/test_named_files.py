"""Files whose names and paths are a part of their rows.

Random files, ingest after ingest, are compared with a dict; mistakes are refused.
"""

import csv
import io
import itertools
import json
import os
import random
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError, NoRowsError
from opal_lake.operations.create import NewTable
from opal_lake.operations.ingest import IngestSource
from opal_lake.operations.job_spec import JobSpec
from opal_lake.source import Files, source_to_json
from opal_spark import OpalTable
from opal_spark.submit.jobs import run_job

pytestmark = pytest.mark.spark

SEED = os.environ.get("OPAL_SEED", "1")
SCHEMA = "id string, kind string, note string, at bigint, op string"
ORDERS = ("at", "file_suffix", "file_position")
DELETES = ("op", "rows", "keys")
FORMATS = ("csv", "bare csv", "json", "parquet", "orc")
METADATA = ("batch", "inline")
COMBINATIONS = [
    combination
    for combination in itertools.product(ORDERS, DELETES, FORMATS, METADATA)
    if combination[:2] != ("at", "keys")
]  # keys alone say no time
NOTES = ("plain", "", "a,b", 'say "x"', " spaced ", "Ünï", "null", "\\")
Row = dict[str, Any]


class Feed:
    """Files as a source writes them, and what the table must show after each ingest."""

    def __init__(self, folder: Path, order: str, deletes: str, kind: str) -> None:
        self.folder, self.order, self.deletes, self.kind = folder, order, deletes, kind
        self.random = random.Random(f"{SEED} {order} {deletes} {kind}")
        self.suffixes = self.random.sample(range(1000), 100)
        self.latest: dict[tuple[str, str], tuple[Any, Row | None]] = {}
        self.ingests = 0

    @property
    def source(self) -> dict[str, Any]:
        own: dict[str, Any] = {"order": self.order, "format": self.kind.split()[-1]}
        own |= {} if self.deletes == "op" else {"deletes": "del*"}
        return own | ({"header": False, "columns": self._names} if self.kind == "bare csv" else {})

    @property
    def _names(self) -> list[str]:
        return ["note", "id", "kind", "op", *(["at"] if self.order == "at" else [])]

    def arrive(self) -> list[str]:
        """Write files, and return the path of their folder."""
        self.ingests += 1
        files = []
        for part in range(self.random.randint(1, 4)):
            suffix = self.suffixes.pop()
            is_deletes = self.deletes != "op" and self.random.random() < 0.4
            prefix = "del" if is_deletes else "f"
            name = f"{prefix}{part}_{suffix}.{self.kind.split()[-1]}"
            path = self.folder / f"{self.ingests}" / name
            rows = [self._row() for _ in range(self.random.randint(1, 8))]
            has_keys_alone = is_deletes and self.deletes == "keys"
            self._write(path, rows, ["kind", "id"] if has_keys_alone else self._names)
            files.append((suffix, path, is_deletes, rows))
        files.sort(key=lambda file: file[0] if self.order == "file_suffix" else file[1].name)
        for position, (suffix, _, is_deletes, rows) in enumerate(files):
            for row in rows:
                order = {
                    "at": row["at"],
                    "file_suffix": suffix,
                    "file_position": (self.ingests, position),
                }[self.order]
                key = (row["id"], row["kind"])
                if key not in self.latest or order >= self.latest[key][0]:
                    self.latest[key] = (order, None if is_deletes or row["op"] == "D" else row)
        return [str(self.folder / f"{self.ingests}")]

    def _row(self) -> Row:
        key = {"id": str(self.random.randrange(5)), "kind": self.random.choice("xy")}
        op = self.random.choice("UUUD" if self.deletes == "op" else "U")
        return {**key, "note": self.random.choice(NOTES), "at": self.random.randrange(9), "op": op}

    def _write(self, path: Path, rows: list[Row], names: list[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.kind == "bare csv" and len(names) == 2:
            # Without a header the keys are in the table's order
            names = ["id", "kind"]
        written = [_only(row, names) for row in rows]
        if self.kind == "parquet":
            pq.write_table(pa.Table.from_pylist(written), path)
        elif self.kind == "orc":
            pyarrow.orc.write_table(pa.Table.from_pylist(written), path)
        elif self.kind == "json":
            path.write_text("".join(json.dumps(row) + "\n" for row in written))
        else:
            text = io.StringIO()
            writer = csv.writer(text, quoting=csv.QUOTE_ALL)
            if self.kind != "bare csv":
                writer.writerow(names)
            writer.writerows(row.values() for row in written)
            path.write_text(text.getvalue())


def _only(row: Row, names: list[str]) -> Row:
    return {name: row[name] for name in names}


def shown(table: OpalTable, order: str) -> list[tuple[Any, ...]]:
    """Return the rows without the delta if it depends on the ingest."""
    names = ["id", "kind", "note", "op"]
    if order != "file_position":
        names.append("at")
    cells_of = itemgetter(*names)
    return sorted(cells_of(row) for row in table.read().collect())


def check(
    spark: SparkSession, folder: Path, combination: tuple[str, str, str, str], ingests: int
) -> None:
    order, deletes, kind, metadata = combination
    schema = spark.createDataFrame([], SCHEMA).schema
    condition = "op = 'D'" if deletes == "op" else "false"
    table = OpalTable.create(
        spark, str(folder / "table"), schema, keys=["id", "kind"], delta="at", deletes=condition
    )
    feed, paths, expected = (
        Feed(folder / "in", order, deletes, kind),
        list[str](),
        list[tuple[Any, ...]](),
    )
    for _ in range(ingests):
        paths = feed.arrive()
        table.ingest(Files(paths, **feed.source), metadata=metadata)
        if metadata == "batch":
            table.metagen()
        expected = [
            (
                row["id"],
                row["kind"],
                row["note"],
                row["op"],
                *([at] if order != "file_position" else []),
            )
            for at, row in feed.latest.values()
            if row is not None
        ]
        assert shown(table, order) == sorted(expected), (combination, feed.ingests)
    before = sorted(expected)
    again = (
        paths if order != "file_suffix" else [str(folder / "in" / "1")]
    )  # by suffix, an older list is older still
    table.ingest(Files(again, **feed.source), metadata="inline")
    assert shown(table, order) == before
    assert not table.check()


@pytest.mark.slow_but_one
@pytest.mark.parametrize("turn", range(3))
def test_some_combinations_end_as_a_dict_does(
    spark: SparkSession, tmp_path: Path, turn: int
) -> None:
    check(spark, tmp_path, random.Random(f"{SEED} {turn}").choice(COMBINATIONS), ingests=2)


@pytest.mark.slow
@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
def test_every_combination_ends_as_a_dict_does(
    spark: SparkSession, tmp_path: Path, combination: tuple[str, str, str, str]
) -> None:
    check(spark, tmp_path, combination, ingests=4)


class Bench:
    """A table of `id, name, at`, and a folder of files."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        columns: str = "id bigint, name string, at bigint",
        **layout: Any,
    ) -> None:
        self.folder = folder
        schema = spark.createDataFrame([], columns).schema
        self.table = OpalTable.create(
            spark,
            str(folder / "table"),
            schema,
            **{"keys": ["id"], "delta": "at", "deletes": "false", **layout},
        )

    def put(self, name: str, text: str) -> None:
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def files(self, **more: Any) -> Files:
        return Files(
            str(self.folder / "in"),
            **{
                "format": "csv",
                "header": False,
                "columns": ["id", "name"],
                "order": "file_suffix",
                **more,
            },
        )

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.table.read().collect())


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


def test_the_delta_of_a_file_is_its_suffix_and_the_last_of_its_rows_counts(bench: Bench) -> None:
    bench.put("a_20.csv", "1,old\n1,new\n2,b\n")
    bench.put("b_10.csv", "1,older\n3,c\n")
    bench.put("del_c_30.csv", "2\n")
    result = bench.table.ingest(bench.files(deletes="del*"), metadata="inline")
    assert bench.rows() == [(1, "new", 20), (3, "c", 10)]
    assert result.counts["rows"] == 5  # one of six can never be seen
    assert sorted(row.name for row in bench.table.read(event_time=15).collect()) == ["c", "older"]


@pytest.mark.slow
def test_the_delta_of_a_position_names_the_ingest_and_the_file(bench: Bench) -> None:
    bench.put("a.csv", "1,a\n2,b\n")
    bench.put("b.csv", "2,c\n")
    first = bench.table.ingest(bench.files(order="file_position"), metadata="inline")
    [number] = {row[2] // 1_000_000 for row in bench.rows()}
    assert [row[2] - number * 1_000_000 for row in bench.rows()] == [0, 1]
    (bench.folder / "in" / "b.csv").unlink()
    bench.put("a.csv", "2,later\n")
    bench.table.ingest(bench.files(order="file_position"), metadata="inline")
    assert [row[:2] for row in bench.rows()] == [(1, "a"), (2, "later")]
    assert first.counts["rows"] == 3


@pytest.mark.slow
def test_deletes_need_no_order_where_they_are_whole_rows(bench: Bench) -> None:
    bench.put("a.csv", "1,a,10\n2,b,10\n")
    bench.put("del_a.csv", "1,a,20\n")
    bench.table.ingest(
        bench.files(order=None, columns=["id", "name", "at"], deletes="del*"), metadata="inline"
    )
    assert bench.rows() == [(2, "b", 10)]


def test_columns_name_cells_in_their_order(bench: Bench) -> None:
    bench.put("a.csv", "10,x,1\n")
    bench.table.ingest(bench.files(order=None, columns=["at", "name", "id"]), metadata="inline")
    assert bench.rows() == [(1, "x", 10)]


@pytest.mark.slow
def test_folders_give_columns_to_files_in_order(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path, "id bigint, name string, day string, at bigint")
    bench.put("day=mon/a_1.csv", "1,a\n")
    bench.put("day=tue/a_2.csv", "1,b\n2,c\n")
    bench.put("day=tue/del_3.csv", "2\n")
    bench.table.ingest(bench.files(deletes="del*"), metadata="inline")
    assert bench.rows() == [(1, "b", "tue", 2)]


@pytest.mark.slow
def test_bad_rows_are_put_aside_with_their_files(bench: Bench) -> None:
    bench.put("a_1.csv", "1,a\nx,b\n,c\n")
    bench.put("del_2.csv", "1\n5,6,7\n")
    source = bench.files(deletes="del*")
    with pytest.raises(InvalidInputError, match="3 rows cannot go into the table") as caught:
        bench.table.ingest(source)
    for reason in (
        "1 row: column 'id' is not a valid BIGINT",
        "1 row: key column 'id' is null",
        "1 row: the row has more or fewer cells",
        "del_2.csv",
    ):
        assert reason in str(caught.value)
    assert (
        bench.table.ingest(source, metadata="inline", on_bad_rows="quarantine").counts["rejected"]
        == 3
    )
    assert bench.rows() == []


REFUSED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"a.csv": "1,a\n"}, {}, "a.csv has no suffix of up to 18 digits to order by"),
    (
        {"a_1.csv": "1\n"},
        {"columns": ["id"]},
        r"columns=\['id'\] must name the table's columns: missing column 'name'",
    ),
    (
        {"a_1.csv": "1,a,5\n"},
        {"columns": ["id", "name", "at"]},
        "unknown column 'at'.*have the delta column 'at', which order='file_suffix' fills",
    ),
    (
        {"a_1.csv": "1,a\n", "del_2.csv": "id\n1\n"},
        {"deletes": "del*"},
        "del_2.csv, line 1: 'id' is a header, but the source has header=False",
    ),
    (
        {"a_1.csv": "1,a\n", "del_2.csv": "1,a,b\n"},
        {"deletes": "del*"},
        "1 row: the row has more or fewer cells.*del_2.csv",
    ),
    (
        {"a_1.csv": "1,a,3\n", "del.csv": "1\n"},
        {"deletes": "del*", "order": "at", "columns": ["id", "name", "at"]},
        "without the delta column 'at'",
    ),
    (
        {"a_1.csv": "1,a\n"},
        {"order": "name", "columns": ["id", "name", "at"]},
        "order='name' is not the table's delta column, which is 'at'",
    ),
    (
        {"a_1.csv": "1,a\n", "del_2.csv": "1\n"},
        {"order": "suffix", "deletes": "del*"},
        "not the table's delta column, .* write order='at', 'file_suffix' or 'file_position'",
    ),
    (
        {"a_1.csv": "1,a\n"},
        {"order": "suffix"},
        "order='suffix' is not the table's delta column, which is 'at'",
    ),
    (
        {"a_1.json": '{"id": 1, "name": "a"}\n'},
        {"format": "json"},
        r"columns=\['id', 'name'\] names the cells of CSV files, but the files are json",
    ),
    ({"a_1.csv": "id,nmae\n1,a\n"}, {"header": True, "columns": []}, "unknown column 'nmae'"),
    (
        {"del_1.csv": "id,nmae\n1,a\n"},
        {"header": True, "columns": [], "deletes": "del*"},
        "unknown column 'nmae'",
    ),
    (
        {"del_1.csv": "name\na\n"},
        {"header": True, "columns": [], "deletes": "del*"},
        "missing column 'id'",
    ),
]


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "files, source, message", REFUSED, ids=[message for *_, message in REFUSED]
)
def test_files_or_options_that_do_not_fit_the_source_are_refused(
    bench: Bench, files: dict[str, str], source: dict[str, Any], message: str
) -> None:
    for name, text in files.items():
        bench.put(name, text)
    before = bench.table.history()
    with pytest.raises(InvalidInputError, match=f"(?s){message}"):
        bench.table.ingest(bench.files(**source))
    assert bench.table.history() == before


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "kind, order, message",
    [
        (
            "timestamp",
            "file_suffix",
            "holds no whole numbers; make the table with a BIGINT delta column",
        ),
        (
            "int",
            "file_suffix",
            "has the suffix 3000000000, and the delta column 'at' is INT, too small",
        ),
        ("decimal(9,2)", "file_suffix", r"is DECIMAL\(9,2\), too small"),
        ("int", "file_position", "needs a delta column of type BIGINT, but 'at' is INT"),
    ],
)
def test_a_delta_that_the_files_cannot_give_is_refused(
    spark: SparkSession, tmp_path: Path, kind: str, order: str, message: str
) -> None:
    bench = Bench(spark, tmp_path, f"id bigint, name string, at {kind}")
    bench.put("a_3000000000.csv", "1,a\n")
    with pytest.raises(InvalidInputError, match=message):
        bench.table.ingest(bench.files(order=order))


def test_a_table_without_deletes_takes_no_files_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, tmp_path, deletes=None)
    bench.put("del_1.csv", "1\n")
    with pytest.raises(InvalidInputError, match="deletes='false' if only such files delete rows"):
        bench.table.ingest(bench.files(deletes="del*"))


def test_no_file_is_an_error_unless_empty_sources_are_accepted(bench: Bench) -> None:
    with pytest.raises(NoRowsError, match="no file to read"):
        bench.table.ingest(bench.files())
    accepted = bench.table.ingest(bench.files(), on_empty="accept", token="none")
    assert accepted.counts["rows"] == 0


def test_the_job_makes_the_table_with_the_columns_of_the_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, tmp_path)
    bench.put("a_1.csv", "1,a\n2,b\n")
    bench.put("del_2.csv", "2\n")
    operation = IngestSource(
        source=source_to_json(bench.files(deletes="del*")),
        metadata="inline",
        create=NewTable(keys=["id"], delta="seen"),
    )
    for _ in range(2):  # the second run finds the same table
        run_job(spark, JobSpec(operation=operation, table=str(tmp_path / "made")))
    assert [
        row.asDict() for row in OpalTable.for_path(spark, str(tmp_path / "made")).read().collect()
    ] == [{"id": 1, "name": "a", "seen": 1}]
