"""Files as sources: exact values are ingested, others are counted, named and put aside."""

import gzip
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from opal_lake.data.rejects import EXAMPLE_CHARACTERS
from opal_lake.definition.schema import Atomic
from opal_lake.errors import InvalidInputError
from opal_lake.result import JobResult
from opal_lake.source import Files
from opal_spark import OpalTable
from opal_spark.sources.cells import parse_text, patterns_of
from opal_spark.sources.text.csv_lines import MULTI_LINE

pytestmark = pytest.mark.spark

COLUMNS = "id long, name string, price decimal(10,2), at timestamp"
HEADER = "id,name,price,at\n"
GOOD = "1,a,2.50,2024-01-01T10:00:00Z\n"


@pytest.fixture(autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    """Set a zone with daylight saving, so that a forgotten zone shows."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


class Bench:
    """A table and a folder of deliveries."""

    def __init__(
        self, spark: SparkSession, folder: Path, columns: str = COLUMNS, **layout: Any
    ) -> None:
        self.spark, self.folder = spark, folder
        (folder / "in").mkdir()
        schema: StructType = spark.createDataFrame([], columns).schema  # type: ignore[arg-type]  # columns are text here
        self.table = OpalTable.create(
            spark, str(folder / "table"), schema, **{"keys": ["id"], "delta": "at", **layout}
        )

    def write(self, name: str, content: str | bytes, **options: Any) -> Files:
        path = self.folder / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return Files(paths=(str(path),), options=options)

    def lines(self, name: str, rows: Sequence[Any]) -> Files:
        return self.write(
            name, "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
        )

    def rows(self) -> list[dict[str, Any]]:
        self.table.metagen()
        return [row.asDict(recursive=True) for row in self.table.read().orderBy("id").collect()]

    def refused(self, source: Any) -> str:
        """Return the message of an ingest that left nothing in the table."""
        before = self.table.history()
        with pytest.raises(InvalidInputError) as caught:
            self.table.ingest(source)
        assert self.table.history() == before
        return str(caught.value)

    def rejected(self) -> list[dict[str, str]]:
        rejected = sorted((self.folder / "table" / "_opal" / "rejected").glob("*.parquet"))
        return [row for path in rejected for row in pq.read_table(path).to_pylist()]

    def check_both_modes(self, source: Any, reasons: dict[str, int], good: int) -> None:
        """Check that one mode ingests nothing, and the other the good rows.

        Both count the reasons.
        """
        message = self.refused(source)
        for reason, count in reasons.items():
            assert f"{count} row{'s' * (count > 1)}: {reason}" in message
        assert "on_bad_rows='quarantine'" in message
        result = self.table.ingest(source, on_bad_rows="quarantine")
        assert result.counts["rows"] == good
        assert result.counts["rejected"] == sum(reasons.values())
        rejected = {f"rejected {n} row{'s' * (n > 1)}: {reason}" for reason, n in reasons.items()}
        assert {note for note in result.notes if note.startswith("rejected")} == rejected
        rejected = self.rejected()
        assert sorted(row["reason"] for row in rejected) == sorted(
            reason for reason, count in reasons.items() for _ in range(count)
        )
        assert all(row["source"] and row["row"] for row in rejected)


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


CELLS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "long": (
        {"5": 5, " -7 ": -7, "9223372036854775807": 2**63 - 1},
        ["5.0", "5.5", "1e2", "NaN", "Infinity", "9223372036854775808", "x", " "],
    ),
    "byte": ({"127": 127}, ["128"]),
    "decimal(10,2)": (
        {
            "2.5": Decimal("2.50"),
            "-1.2300": Decimal("-1.23"),
            "1e2": Decimal("100.00"),
            ".5": Decimal("0.50"),
        },
        ["1.234", "123456789", "1.5e-3", "NaN", "Infinity", "1,5", "1.2.3", "abc"],
    ),
    "decimal(38,0)": ({"9" * 38: Decimal("9" * 38)}, ["9" * 37 + ".5", "9" * 39]),
    "double": (
        {"1.5": 1.5, "1e3": 1000.0, "-Infinity": float("-inf")},
        ["1e400", "1d", "0x1p3", "abc"],
    ),
    "boolean": ({"true": True, "F": False}, ["maybe", "2"]),
    "date": (
        {"2024-02-29": date(2024, 2, 29), "2024-01-01 00:00:00": date(2024, 1, 1)},
        ["2023-02-29", "2024", "2024-01-01T10:00", "NaN"],
    ),
    "timestamp": (
        {
            "2024-01-01T10:00:00Z": datetime(2024, 1, 1, 10, tzinfo=UTC),
            "2024-01-01 10:00:00": datetime(2024, 1, 1, 9, tzinfo=UTC),
            "2024-07-01": datetime(2024, 6, 30, 22, tzinfo=UTC),
            "2024-01-01 10:00:00.123456+05:30": datetime(2024, 1, 1, 4, 30, 0, 123456, tzinfo=UTC),
            "2024-10-27 02:30:00 Europe/Berlin": datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        },
        [
            "10:15",
            "2024",
            "170000",
            "2024-03-31 02:30:00",
            "2024-01-01 10:00:00.1234567",
            "infinity",
            "NaN",
            "2024-01-01 25:00:00",
            "x",
        ],
    ),
    "timestamp_ntz": (
        {"2024-03-31 02:30:00": datetime(2024, 3, 31, 2, 30), "2024-01-01": datetime(2024, 1, 1)},
        ["2024-01-01 10:00:00Z", "2024-01-01T10:00+01:00", "2024-01-01 10:00:00.0000001", "10:15"],
    ),
}


@pytest.mark.slow_but_one
@pytest.mark.parametrize("kind", CELLS)
def test_a_text_becomes_its_value_exactly_or_none(spark: SparkSession, kind: str) -> None:
    good, bad = CELLS[kind]
    texts = spark.createDataFrame([(text,) for text in (*good, *bad)], "text string")
    value = parse_text(F.col("text"), Atomic(name=kind), {})
    if kind == "timestamp":  # collected, it would be in this process's zone
        value = F.unix_micros(value)
        good = {text: round(moment.timestamp() * 1_000_000) for text, moment in good.items()}
    actual = {row.text: row.value for row in texts.select("text", value.alias("value")).collect()}
    assert actual == {**good, **dict.fromkeys(bad)}


@pytest.mark.parametrize(
    "kind, option",
    [
        ("date", "dateFormat"),
        ("timestamp", "timestampFormat"),
        ("timestamp_ntz", "timestampNTZFormat"),
    ],
)
def test_only_texts_of_the_source_s_datetime_pattern_are_read(
    spark: SparkSession, kind: str, option: str
) -> None:
    pattern = "dd/MM/yyyy" if kind == "date" else "dd/MM/yyyy, HH:mm"
    text = date(2024, 2, 1).strftime("%d/%m/%Y") + ("" if kind == "date" else ", 10:30")
    texts = spark.createDataFrame([(text,), ("2024-02-01",)], "text string")
    value = parse_text(F.col("text"), Atomic(name=kind), patterns_of({option: pattern})).cast(
        "string"
    )
    assert [row[0] for row in texts.select(value).collect()] == [
        "2024-02-01" + ("" if kind == "date" else " 10:30:00"),
        None,
    ]


def test_csv_with_any_file_and_column_names_is_ingested(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(
        spark, tmp_path, 'id long, `na.me` string, `a "b" c` string, `größe` double, at timestamp'
    )
    plain = bench.write(
        "day 1/ü+%20[x].csv", '"at",id,na.me,"a ""b"" c",größe\n2024-01-01T00:00:00Z,1,,"",\n'
    )
    bench.write(
        "day 1/b.csv.gz",
        gzip.compress('at,id,na.me,"a ""b"" c",größe\n2024-01-01T00:00:00Z,2,x,y,""\n'.encode()),
    )
    glob = Files(paths=(str(tmp_path / "in" / "day 1" / "*.csv*"),))
    assert plain.file_format == "csv"
    assert bench.table.ingest(glob).counts["rows"] == 2
    first, second = bench.rows()
    assert (first["na.me"], first['a "b" c'], first["größe"]) == (None, "", None), (
        "an empty cell is null, a quoted one an empty text"
    )
    assert (second["na.me"], second['a "b" c'], second["größe"]) == ("x", "y", None), (
        "but for other types than text"
    )


def test_bad_csv_rows_fail_the_run_or_are_put_aside(bench: Bench) -> None:
    bad = [
        "x,a,1,2024-01-01",
        "2,a,abc,2024-01-01",
        "3,a,NaN,2024-01-01",
        ",a,1,2024-01-01",
        "4,a,1,",
        "5,a,1,yesterday",
        "6,a",
        "7,a,1,2024-01-01,more",
    ]
    ragged = (
        f"the row has more or fewer cells than columns (where cells hold line breaks: {MULTI_LINE})"
    )
    reasons = {
        "column 'id' is not a valid BIGINT": 1,
        "column 'price' is not a valid DECIMAL(10,2)": 2,
        "key column 'id' is null": 1,
        "delta column 'at' is null": 1,
        "column 'at' is not a valid TIMESTAMP": 1,
        ragged: 2,
    }
    source = bench.write("a b.csv", HEADER + GOOD + "\n".join(bad) + "\n")
    assert "abc" in bench.refused(source), "examples show what the cell held"
    bench.check_both_modes(source, reasons, good=1)
    assert [row["id"] for row in bench.rows()] == [1]
    rejected = {row["row"]: row for row in bench.rejected()}
    assert "6,a" in rejected
    assert rejected['{"id":"2","name":"a","price":"abc","at":"2024-01-01"}']["source"].endswith(
        "/in/a b.csv"
    )
    assert bench.table.check() == []


def test_line_breaks_in_csv_cells_need_an_option(bench: Bench) -> None:
    text = HEADER + '1,"a\nb",1,2024-01-01\n'
    assert "multiLine" in bench.refused(bench.write("a.csv", text))
    assert bench.table.ingest(bench.write("a.csv", text, multiLine=True)).counts["rows"] == 1
    assert bench.rows()[0]["name"] == "a\nb"


@pytest.mark.slow
@pytest.mark.parametrize("on_bad_rows", ["fail", "quarantine"])
def test_a_row_inside_a_field_is_not_read_as_a_row(bench: Bench, on_bad_rows: str) -> None:
    """Such a row in the last column has as many cells as it should."""
    wholes = (
        '2,"a\n9,bogus,7,2024-01-01\nb",2,2024-01-01\n',
        '2,a,3,"2024-01-01\n9,bogus,7,2024-01-01\n"\n',
    )
    for number, text in enumerate(wholes):
        source = bench.write(f"a b{number}.csv", HEADER + GOOD + text)
        with pytest.raises(
            InvalidInputError,
            match=(
                rf"/in/a b{number}\.csv, line 3: the quote of its last field is not closed "
                rf".*`--source-option multiLine=true`"
            ),
        ):
            bench.table.ingest(source, on_bad_rows=on_bad_rows)
    assert (
        bench.table.ingest(
            bench.write("whole.csv", HEADER + GOOD + wholes[0], multiLine=True)
        ).counts["rows"]
        == 2
    )
    assert [row["id"] for row in bench.rows()] == [1, 2]


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "row, options",
    [
        ('2,"a ""b"", c",1,2024-01-01', {}),
        ('2,5" of it,1,2024-01-01', {}),
        ('2,"a",1,"2024-01-01"', {}),
        ('2,"a,1,2024-01-01', {"quote": ""}),
        ("2|'a|b'|1|2024-01-01", {"delimiter": "|", "quote": "'"}),
        ('2,"a\\"b",1,2024-01-01', {"escape": "\\"}),
        ('#2,"a\n2,a,1,2024-01-01', {"comment": "#"}),
        ('2,"Zürich",1,2024-01-01', {"encoding": "ISO-8859-1"}),
    ],
)
def test_quotes_that_are_closed_or_are_none_are_read(
    bench: Bench, row: str, options: dict[str, str]
) -> None:
    header = HEADER.replace(",", options.get("delimiter", ","))
    source = bench.write(
        "a.csv", f"{header}{row}\n".encode(options.get("encoding", "utf-8")), **options
    )
    assert bench.table.ingest(source).counts["rows"] == 1


def test_csv_headers_that_do_not_fit_are_named_by_file(bench: Bench) -> None:
    bench.write("a.csv", "id,nam,price,at\n")
    bench.write("b.csv", "id,name,price,at,price\n")
    bench.write("c.csv", "id,,price,at\n")
    bench.write("d.csv", "")
    message = bench.refused(Files(paths=(str(bench.folder / "in" / "*.csv"),)))
    assert "a.csv: unknown column 'nam' (did you mean 'name'?), missing column 'name'" in message
    assert "b.csv: column 'price' occurs 2 times" in message
    assert "c.csv: a column without a name" in message
    assert "d.csv" not in message


def test_a_csv_file_with_another_order_of_columns_is_named_though_the_first_one_fits(
    bench: Bench,
) -> None:
    first = bench.write("a.csv", HEADER + GOOD)
    second = bench.write("b.csv", "name,id,price,at\n1,2,3,2024-01-01\n")
    message = bench.refused(Files(paths=first.paths + second.paths))
    assert "b.csv" in message
    assert "another order" in message


def test_csv_without_a_header_has_the_tables_columns_in_their_order(bench: Bench) -> None:
    assert bench.table.ingest(bench.write("a.csv", GOOD, header=False)).counts["rows"] == 1


def test_folders_may_hold_columns_and_keep_their_zeros(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path, "id long, shop string, at timestamp")
    bench.write("csv/shop=007/a.csv", "id,at\n1,2024-01-01\n")
    bench.write("json/shop=008/a.json", '{"id": 2, "at": "2024-01-01"}\n')
    for name in ("csv", "json"):
        assert (
            bench.table.ingest(Files(paths=(str(tmp_path / "in" / name),), format=name)).counts[
                "rows"
            ]
            == 1
        )
    assert [row["shop"] for row in bench.rows()] == ["007", "008"]


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet", "a.orc"])
def test_no_file_is_an_error_that_says_what_was_looked_for(bench: Bench, name: str) -> None:
    assert f"in/*{name}'" in bench.refused(Files(paths=(f"{bench.folder}/in/*{name}",)))
    empty = bench.folder / "in" / "empty"
    empty.mkdir()
    assert "no file to read" in bench.refused(
        Files(paths=(str(empty),), format=Files(paths=(name,)).file_format)
    )


def test_csv_files_of_no_bytes_have_no_header(bench: Bench) -> None:
    assert "empty" in bench.refused(bench.write("a.csv", ""))


def test_options_that_hide_bad_rows_are_refused(bench: Bench) -> None:
    assert "on_bad_rows" in bench.refused(bench.write("a.csv", HEADER + GOOD, MODE="DROPMALFORMED"))
    assert "on_bad_rows" in bench.refused(bench.write("a.json", "{}", mode="FAILFAST"))


def test_nested_columns_do_not_fit_into_csv(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(spark, tmp_path, "id long, tags array<string>, at timestamp")
    assert "JSON or Parquet" in bench.refused(bench.write("a.csv", "id,tags,at\n"))


@pytest.mark.slow
def test_json_keeps_every_digit_and_nesting(spark: SparkSession, tmp_path: Path) -> None:
    nested = "o struct<`a.b`: decimal(30,20), l: array<long>>, m map<int, string>"
    columns = f"id long, d decimal(38,20), {nested}, b binary, s string, at timestamp_ntz"
    bench = Bench(spark, tmp_path, columns)
    lines = [
        (
            '{"id": 9223372036854775807, "d": 123456789012345678.12345678901234567890, "at": '
            '"2024-03-31 02:30:00", "s": "5",'
            ' "o": {"a.b": 1.12345678901234567891, "l": [9007199254740993, null]}, "m": {"1": '
            '"x", "2": null}, "b": "aGk="}'
        ),
        '{"id": "5", "at": "2024-01-01", "o": null, "m": {}, "s": null}',
        "",
        '{"id": 4, "at": "2024-01-01", "o": {"l": []}}',
    ]
    assert bench.table.ingest(bench.lines("a.jsonl", lines)).counts["rows"] == 3
    third, second, first = bench.rows()
    assert first["id"] == 2**63 - 1
    assert first["d"] == Decimal("123456789012345678.12345678901234567890")
    assert first["o"] == {"a.b": Decimal("1.12345678901234567891"), "l": [9007199254740993, None]}
    assert (first["m"], bytes(first["b"]), first["s"], first["at"]) == (
        {1: "x", 2: None},
        b"hi",
        "5",
        datetime(2024, 3, 31, 2, 30),
    )
    assert (second["o"], second["m"], second["d"]) == (None, {}, None)
    assert third["o"] == {"a.b": None, "l": []}


def test_bad_json_rows_fail_the_run_or_are_put_aside(spark: SparkSession, tmp_path: Path) -> None:
    bench = Bench(
        spark, tmp_path, COLUMNS + ", o struct<a: int, l: array<int>>, m map<int, string>"
    )
    row = {"id": 1, "at": "2024-01-01T00:00:00Z"}
    broken = (
        "the text is not one JSON object, or has a key twice (where a document spans lines: "
        f"{MULTI_LINE})"
    )
    bad: dict[str, list[Any]] = {
        broken: [
            '{"id": 1',
            '{"id": 1} {"id": 2}',
            "[5]",
            '"x"',
            "x",
            '{"id": 1, "id": 2, "at": "2024-01-01"}',
        ],
        "more than one JSON value on a line": [
            '{"id": 1},{"id": 2}',
            '{"id": 1, "at": "2024-01-01"}],[{"id": 2}',
            '{"id": 1, "at": "2024-01-01"}]',
            '{"id": 1, "at": "2024-01-01"} ]garbage',
        ],
        "column 'id' is not a valid BIGINT": [
            {**row, "id": 1.5},
            {**row, "id": 2**63},
            {**row, "id": {}},
            {**row, "id": "x"},
        ],
        "column 'name' is not a valid STRING": [
            {**row, "name": 5},
            {**row, "name": {"a": 1}},
            {**row, "name": True},
        ],
        "column 'price' is not a valid DECIMAL(10,2)": [
            {**row, "price": 1.234},
            {**row, "price": "NaN"},
        ],
        "column 'at' is not a valid TIMESTAMP": [{**row, "at": 2024}, {**row, "at": "soon"}],
        "unknown key 'nmae' (on_new_columns='add' or 'ignore' takes such rows)": [
            {**row, "nmae": None}
        ],
        "unknown key 'z' in column 'o'": [{**row, "o": {"z": 1}}],
        "column 'o' is not an object": [{**row, "o": [1]}],
        "column 'o.a' is not a valid INT": [{**row, "o": {"a": "x"}}],
        "column 'o.l' is not a list": [{**row, "o": {"l": {"a": 1}}}],
        "column 'o.l.element' is not a valid INT": [{**row, "o": {"l": [1, 2.5]}}],
        "column 'm.key' is not a valid INT": [
            {**row, "m": {"x": "y"}},
            {**row, "m": {"1": "a", "01": "b"}},
        ],
        "key column 'id' is null": [{"at": "2024-01-01"}],
        "delta column 'at' is null": [{"id": 1, "at": None}],
    }
    source = bench.lines("a.json", [row, *(line for rows in bad.values() for line in rows)])
    bench.check_both_modes(source, {reason: len(rows) for reason, rows in bad.items()}, good=1)
    assert '{"id": 1} {"id": 2}' in {rejected["row"] for rejected in bench.rejected()}, (
        "a line is kept as it was"
    )
    assert len(bench.rows()) == 1


def test_a_json_document_over_many_lines_is_read_by_its_elements(bench: Bench) -> None:
    rows = [{"id": 1, "at": "2024-01-01"}, {"id": 2, "at": "x"}, {"id": 3, "at": "2024-01-01"}]
    bench.write("a.json", "\ufeff" + json.dumps(rows, indent=1))
    bench.write("b.json", json.dumps({"id": 4, "at": "2024-01-01"}, indent=1))
    bench.write("c.json", "[]")
    bench.write("d.json", '[{"id": 5, ')
    bench.write("e.json", '[], [{"id": 6, "at": "2024-01-01"}]')
    bench.write("f.json", '[]], [[{"id": 7, "at": "2024-01-01"}]')
    source = Files(paths=(str(bench.folder / "in" / "*.json"),), options={"multiLine": "true"})
    result = bench.table.ingest(source, on_bad_rows="quarantine")
    assert (result.counts["rows"], result.counts["rejected"]) == (3, 4)
    assert [row["id"] for row in bench.rows()] == [1, 3, 4]


ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def delivery(**columns: Any) -> pa.Table:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    rows = {
        "id": [1, 2],
        "name": ["a", None],
        "price": [Decimal("1.50"), None],
        "at": [moment, moment],
    }
    return pa.table(
        {
            **{name: pa.array(values, ARROW.field(name).type) for name, values in rows.items()},
            **columns,
        }
    )


def encoded(rows: pa.Table, file_format: str) -> bytes:
    sink = pa.BufferOutputStream()
    if file_format == "orc":
        # Arrow writes a time with a zone as ORC's "timestamp with local time zone", which Spark
        # does not read
        pa.orc.write_table(rows.set_column(3, "at", rows["at"].cast(pa.timestamp("us"))), sink)
    else:
        pq.write_table(rows, sink)
    return bytes(sink.getvalue())


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_columnar_files_are_ingested_except_rows_with_null_keys(
    bench: Bench, file_format: str
) -> None:
    good = bench.write(f"good.{file_format}", encoded(delivery(), file_format))
    assert bench.table.ingest(good).counts["rows"] == 2
    assert [row["price"] for row in bench.rows()] == [Decimal("1.50"), None]
    bad = bench.write(
        f"bad.{file_format}", encoded(delivery(id=pa.array([7, None], pa.int64())), file_format)
    )
    bench.check_both_modes(bad, {"key column 'id' is null": 1}, good=1)
    assert bench.rejected()[0]["source"].endswith(
        "bad.parquet row 1" if file_format == "parquet" else "bad.orc"
    )


@pytest.mark.parametrize(
    "rows, message",
    [
        (delivery(extra=pa.array([1, 2])), "unknown column 'extra'"),
        (delivery().drop_columns(["name"]), "missing column 'name'"),
        (delivery(id=pa.array(["1", "2"])), "column 'id' is STRING, the table has BIGINT"),
        (
            delivery(price=pa.array([Decimal("1.123"), None], pa.decimal128(10, 3))),
            "column 'price' is DECIMAL(10,3)",
        ),
        (delivery(_opal_segment=pa.array([1, 2])), "reserved for the format"),
        (delivery(_OPAL_x=pa.array([1, 2])), "reserved for the format"),
    ],
)
def test_columnar_files_must_have_the_tables_columns(
    bench: Bench, rows: pa.Table, message: str
) -> None:
    assert message in bench.refused(bench.write("a.parquet", encoded(rows, "parquet")))


def test_types_that_differ_between_files_or_that_spark_does_not_read_are_named(
    bench: Bench,
) -> None:
    first = bench.write("a.parquet", encoded(delivery(), "parquet"))
    second = bench.write("b.parquet", encoded(delivery(id=pa.array(["1", "2"])), "parquet"))
    assert "different types" in bench.refused(Files(paths=first.paths + second.paths))
    sink = pa.BufferOutputStream()
    pa.orc.write_table(delivery(), sink)
    instants = bench.write("a.orc", bytes(sink.getvalue()))
    if bench.spark.version < "4.3":
        assert "'timestamp with local time zone'" in bench.refused(instants)
    else:  # which reads them
        bench.table.ingest(instants)
        written = delivery().sort_by("id").column("at").to_pylist()
        assert [row["at"].astimezone(UTC) for row in bench.rows()] == written


def test_an_unknown_column_of_any_parquet_file_is_seen(bench: Bench) -> None:
    first = bench.write("a.parquet", encoded(delivery(), "parquet"))
    second = bench.write("b.parquet", encoded(delivery(extra=pa.array([1, 2])), "parquet"))
    assert "unknown column 'extra'" in bench.refused(Files(paths=first.paths + second.paths))


@pytest.mark.slow_but_one
@pytest.mark.parametrize("name", ["a.parquet", "a.orc", "a.csv.gz", "a.json.gz"])
@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_a_damaged_file_fails_the_run_by_name_even_if_the_session_ignores_such(
    bench: Bench, name: str, damage: str
) -> None:
    whole = {
        "a.parquet": lambda: encoded(delivery(), "parquet"),
        "a.orc": lambda: encoded(delivery(), "orc"),
        "a.csv.gz": lambda: gzip.compress(
            (HEADER + "".join(f"{i},{i * 7919},1,2024-01-01\n" for i in range(5000))).encode()
        ),
        "a.json.gz": lambda: gzip.compress(
            "".join(
                f'{{"id": {i}, "at": "2024-01-01", "name": "{i * 7919}"}}\n' for i in range(5000)
            ).encode()
        ),
    }[name]()
    middle = len(whole) // 2
    bad = whole[:middle] if damage == "truncated" else b"\xff" * middle + whole[middle:]
    source = bench.write(f"day 1/{name}", bad)
    settings = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    for setting in settings:
        bench.spark.conf.set(setting, "true")
    try:
        message = bench.refused(source)
    finally:
        for setting in settings:
            bench.spark.conf.unset(setting)
    assert f"day 1/{name} cannot be read" in message
    with pytest.raises(InvalidInputError):
        bench.table.ingest(source, on_bad_rows="quarantine")
    assert len(bench.table.history()) == 1


@pytest.mark.slow
def test_a_key_over_64_kib_is_a_bad_row_and_its_example_is_short(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, tmp_path, "id string, at timestamp")
    source = bench.write("a.csv", f"id,at\n{'k' * 65536},2024-01-01\n{'k' * 65537},2024-01-01\n")
    assert len(bench.refused(source)) < 2 * EXAMPLE_CHARACTERS
    bench.check_both_modes(source, {"key is longer than 65536 bytes": 1}, good=1)
    assert "k" * 65537 in bench.rejected()[0]["row"], "what is put aside is whole"


def test_a_dataframe_may_not_bring_names_of_the_format(bench: Bench) -> None:
    rows = bench.spark.sql(
        "SELECT 1L id, 'a' name, 1.00 price, timestamp'2024-01-01' at, 'x' _opal_bad"
    )
    assert "reserved for the format" in bench.refused(rows)


@pytest.mark.slow_but_one
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_any_column_name_goes_through_ingest_and_read(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    names = ["id", "a.b", "sp ace", "quo`te", 'dou"ble', "größe", "列", "semi;colon,"]
    bench = Bench(spark, tmp_path, "id long, at timestamp", file_format=file_format)
    rows = (
        spark.range(3)
        .select(
            F.col("id"), *[F.lit(name) for name in names[1:]], F.lit("2024-01-01").cast("timestamp")
        )
        .toDF(*names, "at")
    )
    table = OpalTable.create(
        spark,
        str(tmp_path / "named"),
        rows.schema,
        keys=["id", "a.b"],
        delta="at",
        file_format=file_format,
    )
    table.ingest(rows)
    table.metagen()
    columns = [f"`{name.replace('`', '``')}`" for name in names]
    read_rows = {tuple(row) for row in table.read().select(*columns).collect()}
    assert read_rows == {(number, *names[1:]) for number in range(3)}
    assert "rename" in bench.refused(
        spark.range(1).withColumn("_opal_offset", F.lit(1)).withColumn("at", F.current_timestamp())
    )


def test_moments_at_the_edge_of_daylight_saving_and_of_time_are_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, tmp_path, "id long, at timestamp")
    texts = [
        "2024-10-27T00:30:00Z",
        "2024-10-27T01:30:00Z",
        "2024-03-31T01:00:00Z",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
    ]
    bench.table.ingest(
        bench.write("a.csv", "id,at\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    )
    bench.table.metagen()
    actual = bench.table.read().orderBy("id").select(F.unix_micros("at")).collect()
    moments = [datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC) for text in texts]
    assert [row[0] for row in actual] == [
        (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds for span in moments
    ]


def test_sources_that_ignore_columns_may_not_call_one_by_a_former_name(bench: Bench) -> None:
    bench.table.add_columns({"size": "int", "more": "int"})
    bench.table.alter([{"rename": "size", "to": "length"}, {"drop": "more"}])
    row = {"id": 1, "name": "a", "price": 2.5, "at": "2024-01-01T10:00:00Z"}
    called = "'size', which the table calls 'length' since it was renamed"

    def ignoring(source: Files) -> JobResult:
        return bench.table.ingest(source, on_new_columns="ignore", on_bad_rows="quarantine")

    lines = [{**row, "size": 5}, {**row, "id": 2, "size": None, "more": 6, "x": 7}]
    done = ignoring(bench.lines("a.json", lines))
    assert (done.counts["rows"], done.counts["rejected"]) == (1, 1)
    [rejected] = bench.rejected()
    assert rejected["reason"].startswith(f"the row has a key {called}")
    with pytest.raises(InvalidInputError, match=r"'size' \(it was renamed to 'length'\)"):
        ignoring(bench.write("a.csv", f"{HEADER.strip()},size\n{GOOD.strip()},5\n"))
    done = ignoring(bench.write("b.csv", f"{HEADER.strip()},more\n{GOOD.strip()},5\n"))
    assert done.counts["rows"] == 1


def test_sources_with_the_column_that_the_table_fills_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Bench(spark, tmp_path, "id long, name string", delta="_commit")
    rows = spark.createDataFrame([(1, "a", None)], "id long, name string, _COMMIT timestamp")
    rows.write.parquet(str(tmp_path / "in" / "parquet"))
    moment = "2026-11-29T10:00:00Z"
    for source in (
        rows,
        Files(paths=(str(tmp_path / "in" / "parquet"),), format="parquet"),
        bench.write("a.csv", f"id,name,_commit\n1,a,{moment}\n"),
        bench.lines("a.json", [{"id": 1, "name": "a", "_commit": moment}]),
    ):
        with pytest.raises(InvalidInputError, match="the source has a column '_commit'"):
            bench.table.ingest(source, metadata="inline")
    done = bench.table.ingest(bench.write("b.csv", "id,name\n1,a\n"), metadata="inline")
    assert done.counts["rows"] == 1
    bench.table.upsert(rows.select("id", F.lit("b").alias("name")))
    assert [tuple(row) for row in bench.table.read().collect()] == [(1, "b")]
