"""A master's values are read as they were written.

A value that its type, its encoding or its format cannot hold is refused.
"""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from opal_lake.errors import InvalidInputError
from opal_lake.storage.local.store import LocalStorage
from opal_spark.mutate.csv_text import lacking
from opal_spark.mutate.parquet_files import unsigned_columns
from opal_spark.mutate.record import fitted
from tests.opal_spark.mutate.folders import cells, put, run

ROUNDED = [
    ("1.4", "decimal(10,0)"),
    ("1.9D", "decimal(10,0)"),
    ("1.2345", "decimal(5,2)"),
    ("2.7D", "int"),
    ("9007199254740993L", "double"),
    ("9223372036854775807L", "double"),
    ("9223372036854775808D", "bigint"),
    ("TIMESTAMP'2026-01-01 10:00:00'", "date"),
    ("'9007199254740993'", "double"),
    ("'0.1234567890123456789'", "double"),
    ("map('a', nullif(1.5D, 0D))", "map<string,int>"),
]
EXACT = [
    ("1.0", "decimal(10,0)"),
    ("2.5D", "decimal(5,2)"),
    ("2.0D", "int"),
    ("9007199254740992L", "double"),
    ("1152921504606846976L", "double"),
    ("TIMESTAMP'2026-01-01 00:00:00'", "date"),
    ("CAST('NaN' AS FLOAT)", "double"),
    ("'0.10000000000000001'", "double"),
    ("'-1.50e300'", "double"),
    ("map('a', nullif(1.5F, 0F))", "map<string,double>"),
    ("array(1, 2)", "string"),
    ("CAST(NULL AS BIGINT)", "int"),
]


def test_a_value_fits_a_type_that_holds_it_exactly(spark: SparkSession) -> None:
    cases = [*ROUNDED, *EXACT]
    given = spark.sql(
        "SELECT " + ", ".join(f"{value} AS c{number}" for number, (value, _) in enumerate(cases))
    )
    faults = []
    for number, (_, kind) in enumerate(cases):
        name = f"c{number}"
        fault = fitted(
            F.col(name),
            given.schema[name].dataType,
            spark.createDataFrame([], f"{name} {kind}").schema[name],
        )[1]
        faults.append((F.lit(None) if fault is None else fault).isNotNull().alias(name))
    [row] = given.select(*faults).collect()
    assert [case for case, is_bad in zip(cases, row, strict=True) if is_bad] == ROUNDED


@pytest.mark.slow
def test_an_id_that_would_be_rounded_replaces_no_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql("SELECT CAST(1 AS DECIMAL(10,0)) AS id, 1 AS v").write.parquet(
        str(tmp_path / "master")
    )
    spark.sql("SELECT explode(array(1.4, 2.0)) AS id, 2.0D AS v").write.parquet(
        str(tmp_path / "incr")
    )
    with pytest.raises(
        InvalidInputError,
        match=(
            r"\.parquet: column 'id' is not a valid DECIMAL\(10,0\): .*1\.4.* Nothing was "
            r"changed"
        ),
    ):
        run(spark, tmp_path, ids=["id"])
    counts = run(spark, tmp_path, ids=["id"], on_bad_rows="quarantine").counts
    assert (counts["inserts"], counts["updates"], counts["rejected"]) == (1, 0, 1)


def test_json_values_that_do_not_fit_exactly_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "id INT, v DECIMAL(5,2), x DOUBLE, y DATE"
    spark.createDataFrame([(1, Decimal(1), 1.0, dt.date(2026, 1, 1))], schema).write.orc(
        str(tmp_path / "master")
    )
    bad = ['"v": 1.2345', '"x": 9007199254740993', '"y": "2026-01-01T10:00:00"']
    lines = ['"v": 2.5, "x": 0.10000000000000001, "y": "2026-02-03"', *bad]
    put(
        tmp_path / "incr" / "1.json",
        "".join(f'{{"id": {number}, {line}}}\n' for number, line in enumerate(lines, start=1)),
    )
    with pytest.raises(InvalidInputError) as caught:
        run(spark, tmp_path, ids=["id"])
    for number, said in enumerate(
        ["'v' is not a valid DECIMAL(5,2)", "'x' is not a valid DOUBLE", "'y' is not a valid DATE"],
        start=2,
    ):
        assert f"1.json, line {number}: column {said}: " in str(caught.value)


@pytest.mark.slow
def test_letters_that_the_encoding_lacks_are_bad(spark: SparkSession, tmp_path: Path) -> None:
    written = "id,name\n1,Ü €\n2,b\n".encode("windows-1252")
    put(tmp_path / "master" / "a.csv", written.decode("windows-1252"), "windows-1252")
    put(tmp_path / "incr" / "1.csv", "id,name\n2,Öé?\n3,x中😀\n")
    encodings = {
        "options": {"encoding": "windows-1252"},
        "increment_options": {"encoding": "UTF-8"},
    }
    said = (
        r"1\.csv, line 3: field 'name' holds '中😀', which the encoding windows-1252 "
        r"lacks.*--output-option encoding=UTF-8.*Nothing was"
    )
    with pytest.raises(InvalidInputError, match=said):
        run(spark, tmp_path, ids=["id"], **encodings)
    narrow = {**encodings, "output_options": {"encoding": "ISO-8859-1"}}
    with pytest.raises(
        InvalidInputError,
        match=r"that would be lost: field 'name' holds '€', which the encoding ISO-8859-1 lacks",
    ):
        run(spark, tmp_path, ids=["id"], on_bad_rows="quarantine", **narrow)
    assert (tmp_path / "master" / "a.csv").read_bytes() == written
    run(spark, tmp_path, ids=["id"], **encodings, output_options={"encoding": "UTF-8"})
    assert cells(tmp_path, header=True) == [["1", "Ü €"], ["2", "Öé?"], ["3", "x中😀"]]


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "encoding, lacks",
    [("US-ASCII", "é中"), ("big5", "é"), ("shift_jis", "é"), ("gb18030", ""), ("UTF-16LE", "")],
)
def test_letters_that_an_encoding_lacks_are_reported(
    spark: SparkSession, encoding: str, lacks: str
) -> None:
    fault = lacking("text", encoding)
    [row] = (
        spark.createDataFrame([("aé中",)], "text STRING")
        .select(F.lit("") if fault is None else fault)
        .collect()
    )
    assert f"'{lacks}'" in row[0] if lacks else row[0] == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_times_keep_their_microseconds(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    schema = "id STRING, at TIMESTAMP, local TIMESTAMP_NTZ"
    at, local = "2026-01-01T10:00:00.123456Z", "1850-01-01T10:00:00.000007"
    rows = {
        "csv": "id,at,local\n1,{0},{1}\n2,{0},{1}\n",
        "json": '{{"id": "1", "at": "{0}", "local": "{1}"}}\n' * 2,
    }
    put(tmp_path / "master" / f"a.{kind}", rows[kind].format(at, local).replace('"1"', '"2"', 1))
    line = {
        "csv": "id,at,local\n1,{0},{1}\n",
        "json": '{{"id": "1", "at": "{0}", "local": "{1}"}}\n',
    }
    put(tmp_path / "incr" / f"1.{kind}", line[kind].format(at.replace("6Z", "7Z"), local))
    assert run(spark, tmp_path, ids=["id"], schema=schema).counts["updates"] == 1
    read_rows = (
        spark.read.schema(schema)
        .option("header", True)
        .format(kind)
        .load(str(tmp_path / "master"))
        .orderBy("id")
    )
    times = [
        (row.id, row.at, row.local)
        for row in read_rows.select(
            "id", F.expr("unix_micros(at) % 1000000").alias("at"), "local"
        ).collect()
    ]
    past = dt.datetime(1850, 1, 1, 10, 0, 0, 7)
    assert times == [("1", 123457, past), ("2", 123456, past)]


@pytest.mark.slow
def test_times_in_parquet_are_standard_and_the_session_stays_as_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    setting = "spark.sql.parquet.outputTimestampType"
    spark.conf.set(setting, "TIMESTAMP_MILLIS")
    at = dt.datetime(2026, 1, 1, 10, 0, 0, 123456, dt.UTC)
    for name, number in (("master", 1), ("incr", 2)):
        (tmp_path / name).mkdir()
        pq.write_table(
            pa.table({"id": [number], "at": pa.array([at], pa.timestamp("us", "UTC"))}),
            tmp_path / name / "a.parquet",
        )
    try:
        run(spark, tmp_path, ids=["id"])
        assert spark.conf.get(setting) == "TIMESTAMP_MILLIS"
    finally:
        spark.conf.unset(setting)
    tables = [pq.ParquetFile(path) for path in (tmp_path / "master").glob("*.parquet")]
    assert {table.schema.column(1).physical_type for table in tables} == {"INT64"}
    assert [row["at"] for table in tables for row in table.read().to_pylist()] == [at, at]


@pytest.mark.slow
@pytest.mark.parametrize("dry_run", [False, True])
def test_integers_without_a_sign_are_not_written_with_one(
    spark: SparkSession, tmp_path: Path, dry_run: bool
) -> None:
    files = [
        ("master/p=1", pa.uint32(), 1, 1),
        ("master/p=2", pa.int64(), 2, 2),
        ("incr/p=2", pa.int64(), 2, 3),
    ]
    for name, kind, number, value in files:
        (tmp_path / name).mkdir(parents=True)
        nested = pa.array([{"n": value}], pa.struct({"n": kind}))
        pq.write_table(
            pa.table({"id": pa.array([number], pa.int64()), "v": nested}),
            tmp_path / name / "a.parquet",
        )
    assert run(spark, tmp_path, ids=["id"], dry_run=dry_run).counts["updates"] == 1
    pq.write_table(
        pa.table({"id": [1], "v": [{"n": 5}], "p": ["1"]}), tmp_path / "incr" / "b.parquet"
    )
    said = r"master/p=1/a\.parquet has unsigned integers, .*: v\.n UINT_32\. Nothing was changed"
    with pytest.raises(InvalidInputError, match=said):
        run(
            spark,
            tmp_path,
            increments=[str(tmp_path / "incr" / "b.parquet")],
            ids=["id"],
            dry_run=dry_run,
        )
    assert (tmp_path / "master" / "p=1" / "a.parquet").exists()
    assert (tmp_path / "incr" / "b.parquet").exists()


def test_a_long_footer_is_read_whole(tmp_path: Path) -> None:
    names = [f"column_{number:05}" for number in range(2000)]
    pq.write_table(
        pa.table({**{name: [1] for name in names}, "last": pa.array([1], pa.uint8())}),
        tmp_path / "a.parquet",
    )
    size = (tmp_path / "a.parquet").stat().st_size
    assert unsigned_columns(LocalStorage.open(str(tmp_path)), "a.parquet", size) == ["last UINT_8"]


@pytest.mark.slow
def test_a_nested_time_that_differs_by_a_microsecond_is_an_update(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name, micros in (("master", 1), ("incr", 2)):
        spark.sql(f"SELECT 1 AS id, array(timestamp_micros({micros})) AS at").write.parquet(
            str(tmp_path / name)
        )
    assert run(spark, tmp_path, ids=["id"]).counts["updates"] == 1


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "line, schema, said",
    [
        (
            '"v": 12345678901234567890123456789}\n{"id": "3", "v": 1.5',
            None,
            "'v' is not a valid DOUBLE",
        ),
        ('"v": 1}\n{"id": "3", "v": "b"', None, "'v' is not a valid STRING"),
        ('"v": [1]}\n{"id": "3", "v": ["b"]', None, "'v.element' is not a valid STRING"),
        ('"v": 1.239', "id STRING, v DECIMAL(9,2)", r"'v' is not a valid DECIMAL\(9,2\)"),
        ('"v": 1, "w": 1', "id STRING, v INT", "unknown key 'w'"),
        ('"v": 1, "v": 2', "id STRING, v INT", "a key occurs twice"),
    ],
)
def test_json_of_a_master_that_would_change_is_left_alone(
    spark: SparkSession, tmp_path: Path, line: str, schema: str | None, said: str
) -> None:
    text = f'{{"id": "1"}}\n\n{{"id": "2", {line}}}\n'
    put(tmp_path / "master" / "a.json", text)
    put(tmp_path / "incr" / "1.json", '{"id": "1", "v": null}\n')
    expected = (
        r"a\.json, line 3: the master would be written with other values: "
        rf".*{said}.*--schema.*Nothing was changed"
    )
    with pytest.raises(InvalidInputError, match=expected):
        run(spark, tmp_path, ids=["id"], schema=schema)
    assert (tmp_path / "master" / "a.json").read_text() == text


@pytest.mark.slow
def test_json_of_a_master_comes_out_as_it_went_in(spark: SparkSession, tmp_path: Path) -> None:
    values = [
        '"n": 123456789012345678901234567, "d": 1.5, "s": "1", "m": {"a": [1, 2]}',
        '"n": 1, "d": 2, "s": null, "m": {"b": "x"}',
    ]
    lines = [f'{{"id": "{number}", {value}}}\n' for number, value in enumerate(values)]
    put(tmp_path / "master" / "a.json", "".join(lines))
    put(tmp_path / "incr" / "1.json", lines[1].replace('"1"', '"2"', 1))
    run(spark, tmp_path, ids=["id"])
    read_rows = [
        json.loads(line)
        for path in (tmp_path / "master").glob("part*.json")
        for line in path.read_text().splitlines()
    ]
    expected = [json.loads(line) for line in (*lines, lines[1].replace('"1"', '"2"', 1))]
    for row in expected:
        row["m"] = {"a": None, "b": None, **row["m"]}
    assert sorted(read_rows, key=lambda row: row["id"]) == expected


@pytest.mark.parametrize("dry_run", [True, False])
def test_nested_values_are_refused_for_csv(
    spark: SparkSession, tmp_path: Path, dry_run: bool
) -> None:
    spark.sql("SELECT 1 AS id, array(1) AS v").write.parquet(str(tmp_path / "incr"))
    with pytest.raises(
        InvalidInputError,
        match=r"field 'v' is ARRAY<INT>, which CSV cannot hold.*Nothing was changed",
    ):
        run(spark, tmp_path, ids=["id"], output_format="csv", dry_run=dry_run)


def lines_of(folder: Path) -> list[str]:
    return sorted(
        line for path in folder.rglob("part*.csv") for line in path.read_text().splitlines()[1:]
    )


@pytest.mark.slow
def test_rows_of_csv_that_nothing_touches_come_out_as_they_went_in_whatever_their_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = "id INT, x DOUBLE, n DECIMAL(9,2), on DATE, at TIMESTAMP, name STRING"
    staying = [
        "1,1.10,1.239,2026-01-02,2026-01-01T10:00:00Z,a",
        "02,0.1000000000000000055,+5,2026-01-02,2026-01-01T12:00:00.5+02:00,b",
        '3,1E5,,,,"c, d"',
        "4,-0.0,.5,2026-01-02,2026-01-01T10:00:00Z,",
    ]
    gone = [
        "0005,1.10,1.0,2026-01-02,2026-01-01T10:00:00Z,x",
        "06,1,1,2026-01-02,2026-01-01T10:00:00Z,x",
    ]
    put(tmp_path / "master" / "a.csv", "\n".join(["id,x,n,on,at,name", *staying, *gone, ""]))
    put(
        tmp_path / "incr" / "1.csv",
        "id,x,n,on,at,name\n5,2.5,1.10,2026-02-03,2026-01-01T10:00:00.5Z,y\n1,1.1,1.24,2026-01-02,2026-01-01T10:00:00Z,a\n",
    )
    put(tmp_path / "incr" / "del.csv", "id\n6\n")
    counts = run(spark, tmp_path, ids=["id"], schema=schema, delete_prefix="del").counts
    assert (counts["updates"], counts["deletes"], counts["unchanged"]) == (1, 1, 1)
    assert lines_of(tmp_path / "master") == sorted(
        [*staying, "5,2.5,1.10,2026-02-03,2026-01-01T10:00:00.500000Z,y"]
    )


@pytest.mark.slow
def test_a_number_has_one_folder_however_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "master" / "month=01" / "a.csv", "id,x\n1,1.10\n2,1.0\n")
    put(tmp_path / "incr" / "1.csv", "id,x,month\n2,3.5,1\n")
    run(spark, tmp_path, ids=["id"], schema="id INT, x DOUBLE, month INT")
    assert lines_of(tmp_path / "master") == ["1,1.10", "2,3.5"]
    assert len({path.parent for path in (tmp_path / "master").rglob("part*.csv")}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema, said",
    [
        ("id INT, v DECIMAL(9,2)", r"column 'v' is not a valid DECIMAL\(9,2\): 1\.239"),
        ("id INT, v FLOAT", None),
    ],
)
def test_csv_becomes_another_format_without_rounding(
    spark: SparkSession, tmp_path: Path, schema: str, said: str | None
) -> None:
    put(tmp_path / "master" / "a.csv", "id,v\n1,1.239\n2,1.5\n")
    put(tmp_path / "incr" / "1.csv", "id,v\n2,2.5\n")
    arguments = {"ids": ["id"], "schema": schema, "output_format": "parquet"}
    if said is None:
        run(spark, tmp_path, **arguments)
        assert [
            row.id
            for row in spark.read.parquet(str(tmp_path / "master"))
            .where("id = 2 OR v = 1.239F")
            .collect()
        ] == [1, 2]
        return
    with pytest.raises(
        InvalidInputError,
        match=rf"the master has a number that would be rounded: {said}\. Nothing was changed",
    ):
        run(spark, tmp_path, **arguments)
    assert (tmp_path / "master" / "a.csv").exists()
