"""Files merged into a folder with Spark: orders, deletes, formats, partitions and the report."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_folder.properties import arguments_of, parse_properties
from opal_lake.errors import InvalidInputError
from opal_spark.engine.session import add_avro
from opal_spark.mutate import read_master
from tests.fixtures_spark import need_spark_parts
from tests.opal_spark.mutate.folders import cells, put, run

PROPERTIES = """#op.code.field.ordinal=4
deleted.op.code=D
deleted.record.file.prefix=del
temporal.ordering.field.ordinal=5
temporal.ordering.field.numeric=true
id.field.ordinals=0
"""


def test_the_paper_s_example_merges_to_the_paper_s_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The paper's properties file is used as it is written.

    The inventory of VR8NCNE7DV changes from 88 to 82.
    """
    put(
        tmp_path / "master" / "part-r-00000",
        "R217970F17,wearables,misfit,103,21,1427761080\n"
        "6QD0BAVS7I,laptop,asus,502,54,1427764070\n"
        "VR8NCNE7DV,wearables,fitbit,112,88,1427766458\n"
        "3SDS30A11P,laptop,thinkpad,551,54,1427770906\n",
    )
    put(
        tmp_path / "incr" / "products",
        "VR8NCNE7DV,wearables,fitbit,112,85,1428415000\n"
        "VR8NCNE7DV,wearables,fitbit,112,82,1428415316\n"
        "3SDS30A11P,laptop,thinkpad,551,60,1427770900\n"
        "VRN5D60451,tablet,amazon kindle,258,96,1428527865\n"
        "R217970F17,wearables,misfit,103,21,1427761080\n",
    )
    put(tmp_path / "incr" / "del_products", "6QD0BAVS7I\nVOA31MCU9I\n")
    arguments, _ = arguments_of(parse_properties(PROPERTIES))
    counted = run(spark, tmp_path, **arguments, dry_run=True)
    result = run(spark, tmp_path, **arguments)
    assert cells(tmp_path, header=False) == [
        ["3SDS30A11P", "laptop", "thinkpad", "551", "54", "1427770906"],
        ["R217970F17", "wearables", "misfit", "103", "21", "1427761080"],
        ["VR8NCNE7DV", "wearables", "fitbit", "112", "82", "1428415316"],
        ["VRN5D60451", "tablet", "amazon kindle", "258", "96", "1428527865"],
    ]
    expected = {
        "files": 2,
        "mutations": 7,
        "inserts": 1,
        "updates": 1,
        "deletes": 1,
        "unchanged": 1,
        "deletes_of_unknown": 1,
    }
    expected |= {"late": 1, "superseded": 1, "conflicts": 0, "rejected": 0}
    assert counted.counts == expected
    assert result.counts == {**expected, "rows_written": 4, "files_replaced": 1}
    by_file = {Path(str(file["file"])).name: file for file in result.examples}
    assert (
        by_file["products"]["updates"],
        by_file["products"]["late"],
        by_file["del_products"]["deletes"],
    ) == (1, 1, 1)
    report = json.loads((tmp_path / "master.mutate" / "reports" / "00000001.json").read_text())
    assert report["counts"] == result.counts
    assert (tmp_path / "master.mutate" / "backup-1" / "part-r-00000").is_file()
    assert run(spark, tmp_path, **arguments).version is None


@pytest.mark.slow
def test_fields_by_name_form_ids_order_and_operation(spark: SparkSession, tmp_path: Path) -> None:
    """The operation's field is not the master's.

    Text in quotes, null and empty text do not change.
    """
    put(
        tmp_path / "master" / "a.csv",
        'shop;sku;note;at\n1;x;"a; b";2026-01-01 00:00:00\n1;y;;2026-01-01 '
        '00:00:00\n2;x;"";2026-01-02 00:00:00\n'
        '3;z; "q"" ;2026-01-01 00:00:00\n',
    )
    put(
        tmp_path / "incr" / "1.csv",
        'op;note;sku;shop;at\nU;"c; ""d""";x;1;2026-01-02 00:00:00\nD;;y;1;2026-01-03 '
        "00:00:00\nI;new;n;4;2026-01-03 00:00:00\n"
        "I;other;n;4;2026-01-03 00:00:00\nU;clash;x;2;2026-01-02 00:00:00\n",
    )
    arguments = {
        "ids": ["shop", "sku"],
        "order": "at",
        "order_type": "timestamp",
        "op_field": "op",
        "delimiter": ";",
    }
    result = run(spark, tmp_path, **arguments)
    text = "".join(sorted(path.read_text() for path in (tmp_path / "master").glob("*.csv")))
    assert set(text.splitlines()) == {
        "shop;sku;note;at",
        '1;x;"c; ""d""";2026-01-02 00:00:00',
        "2;x;clash;2026-01-02 00:00:00",
        '3;z;" ""q"""" ";2026-01-01 00:00:00',
        "4;n;other;2026-01-03 00:00:00",
    }
    assert (
        result.counts["conflicts"],
        result.counts["inserts"],
        result.counts["updates"],
        result.counts["deletes"],
    ) == (2, 1, 2, 1)
    assert any("the same order and different content" in note for note in result.notes)


def test_suffixes_order_files_and_positions_order_the_rows_of_a_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.csv", "id,v\n1,old\n2,old\n3,old\n")
    put(tmp_path / "incr" / "b_9.csv", "id,v\n1,first\n2,gone\n4,new\n")
    put(tmp_path / "incr" / "a_10.csv", "id,v\n1,second\n1,third\n")
    put(tmp_path / "incr" / "del_x_10.csv", "id\n2\n4\n")
    arguments = {"ids": ["id"], "order": "file_suffix", "delete_prefix": "del"}
    result = run(spark, tmp_path, **arguments)
    assert cells(tmp_path, header=True) == [["1", "third"], ["3", "old"]]
    assert (result.counts["superseded"], result.counts["deletes_of_unknown"]) == (4, 1)
    put(tmp_path / "incr" / "c_8.csv", "id,v\n1,too late\n5,new\n")
    later = run(spark, tmp_path, **arguments)
    assert cells(tmp_path, header=True) == [["1", "third"], ["3", "old"], ["5", "new"]]
    assert (later.counts["late"], later.counts["inserts"]) == (1, 1)


def test_only_touched_partitions_are_written_also_when_a_record_moves(
    spark: SparkSession, tmp_path: Path
) -> None:
    for country, text in {"de": "1,a\n2,b\n", "fr": "3,c\n", "it": "4,d\n", "es": "5,e\n"}.items():
        put(tmp_path / "master" / f"country={country}" / "a.csv", f"id,name\n{text}")
    before = {path.parent.name: path.stat().st_ino for path in (tmp_path / "master").rglob("a.csv")}
    put(tmp_path / "incr" / "1.csv", "id,country,name\n1,fr,moved\n6,pt,new\n4,it,d\n")
    result = run(spark, tmp_path, ids=["id"])
    files = {path.parent.name: path for path in (tmp_path / "master").rglob("*.csv")}
    assert sorted(files) == ["country=de", "country=es", "country=fr", "country=it", "country=pt"]
    assert [name for name, path in files.items() if path.stat().st_ino == before.get(name)] == [
        "country=it",
        "country=es",
    ]
    rows = read_master(spark, str(tmp_path / "master")).orderBy("id").collect()
    expected = [
        ("1", "moved", "fr"),
        ("2", "b", "de"),
        ("3", "c", "fr"),
        ("4", "d", "it"),
        ("5", "e", "es"),
        ("6", "new", "pt"),
    ]
    assert [(row.id, row.name, row.country) for row in rows] == expected
    assert (
        result.counts["rows_written"],
        result.counts["files_replaced"],
        result.counts["unchanged"],
    ) == (4, 2, 1)
    put(tmp_path / "incr" / "country=it" / "2.csv", "id,name\n4,again\n1,not seen\n")
    fixed = run(spark, tmp_path, ids=["id"], fixed_partitions=True)
    assert (fixed.counts["updates"], fixed.counts["inserts"], fixed.counts["files_replaced"]) == (
        1,
        1,
        1,
    )


@pytest.mark.slow
def test_a_flat_master_gets_the_folders_that_are_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.csv", "id,v,c\n1,m,de\n2,m,fr\n")
    put(tmp_path / "incr" / "b.csv", "id,v,c\n1,n,fr\n")
    result = run(spark, tmp_path, ids=["id"], partition_by=["c"], fixed_partitions=True)
    assert (
        result.counts["updates"],
        result.counts["rows_written"],
        result.counts["files_replaced"],
    ) == (1, 2, 1)
    put(tmp_path / "incr" / "d.csv", "id,v,c\n2,o,it\n")
    assert run(spark, tmp_path, ids=["id"]).counts["updates"] == 1
    rows = read_master(spark, str(tmp_path / "master")).orderBy("id").collect()
    assert [(row.id, row.v, row.c) for row in rows] == [("1", "n", "fr"), ("2", "o", "it")]


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
def test_folders_count_by_their_values_however_they_are_written(
    spark: SparkSession, tmp_path: Path, fixed: bool
) -> None:
    put(tmp_path / "master" / "month=01" / "a.csv", "id,v\n1,old\n2,old\n")
    put(tmp_path / "master" / "month=10" / "a.csv", "id,v\n3,old\n4,old\n")
    put(tmp_path / "incr" / "b.csv", "id,v,month\n1,new,1\n4,new,10\n")
    put(tmp_path / "incr" / "del_c.csv", "id,v,month\n2,,1\n")
    schema = "id STRING, v STRING, month INT"
    counts = run(
        spark, tmp_path, ids=["id"], schema=schema, delete_prefix="del_", fixed_partitions=fixed
    ).counts
    assert (counts["updates"], counts["deletes"], counts["files_replaced"]) == (2, 1, 2)
    rows = read_master(spark, str(tmp_path / "master")).orderBy("id").collect()
    assert [(row.id, row.v, row.month) for row in rows] == [
        ("1", "new", 1),
        ("3", "old", 10),
        ("4", "new", 10),
    ]


def test_an_order_that_is_not_a_number_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for folder, order in (("master", 1.0), ("incr", float("nan"))):
        spark.createDataFrame([(1, order)], "id INT, at DOUBLE").coalesce(1).write.parquet(
            str(tmp_path / folder)
        )
    with pytest.raises(InvalidInputError, match="field 'at', the order, is not a valid DOUBLE"):
        run(spark, tmp_path, ids=["id"], order="at")


@pytest.mark.slow
def test_deletes_of_ids_alone_are_looked_for_in_all_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    for country, text in {"de": "1,m\n", "fr": "2,m\n3,m\n"}.items():
        put(tmp_path / "master" / f"c={country}" / "a.csv", f"id,v\n{text}")
    put(tmp_path / "incr" / "del_a.csv", "id\n1\n3\n")
    counts = run(spark, tmp_path, ids=["id"], delete_prefix="del_", fixed_partitions=True).counts
    assert (counts["deletes"], counts["deletes_of_unknown"]) == (2, 0)
    assert [row.id for row in read_master(spark, str(tmp_path / "master")).collect()] == ["2"]


@pytest.mark.slow
def test_rows_without_names_may_have_one_field_more_for_the_operation(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.csv", "1,m,1\n2,m,1\n")
    put(tmp_path / "incr" / "b.csv", "1,n,2,D\n2,n,2,U\n3,n,2,U\n")
    counts = run(spark, tmp_path, ids=["0"], order="2", op_field="3", header=False).counts
    assert (counts["deletes"], counts["updates"], counts["inserts"]) == (1, 1, 1)
    assert cells(tmp_path, header=False) == [["2", "n", "2"], ["3", "n", "2"]]


@pytest.mark.parametrize(
    "master, increments, output",
    [
        ("parquet", "csv", None),
        pytest.param("avro", "avro", None, marks=pytest.mark.slow),
        pytest.param("csv", "json", "orc", marks=pytest.mark.slow),
        pytest.param("orc", "parquet", "json", marks=pytest.mark.slow),
        pytest.param("csv", "avro", "parquet", marks=pytest.mark.slow),
        pytest.param("orc", "json", "avro", marks=pytest.mark.slow),
    ],
)
def test_increments_and_master_may_have_different_formats(
    spark: SparkSession, tmp_path: Path, master: str, increments: str, output: str | None
) -> None:
    need_spark_parts()
    schema = "id INT, price DECIMAL(9,2), at BIGINT"
    add_avro(spark)
    old = spark.createDataFrame(
        [(1, None, 5), (2, None, 5), (3, None, 5)], "id INT, price INT, at BIGINT"
    )
    old.selectExpr("id", "CAST(id * 1.5 AS DECIMAL(9,2)) AS price", "at").write.option(
        "header", True
    ).format(master).save(str(tmp_path / "master"))
    new = spark.createDataFrame(
        [(1, None, 6), (2, None, 4), (4, None, 6)], "id INT, price INT, at BIGINT"
    )
    new.selectExpr("id", "CAST(id * 10 AS DECIMAL(9,2)) AS price", "at").write.option(
        "header", True
    ).format(increments).save(str(tmp_path / "incr"))
    result = run(spark, tmp_path, ids=["id"], order="at", schema=schema, output_format=output)
    rows = (
        spark.read.format(output or master)
        .schema(schema)
        .load(str(tmp_path / "master"))
        .orderBy("id")
        .collect()
    )
    assert [(row.id, str(row.price), row.at) for row in rows] == [
        (1, "10.00", 6),
        (2, "3.00", 5),
        (3, "4.50", 5),
        (4, "40.00", 6),
    ]
    assert (result.counts["updates"], result.counts["inserts"], result.counts["late"]) == (1, 1, 1)


def test_the_first_increments_create_the_master(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "incr" / "1.csv", "id,day,v\n1,mon,a\n1,tue,b\n2,mon,c\n")
    result = run(spark, tmp_path, ids=["id"], partition_by=["day"], output_format="parquet")
    rows = spark.read.parquet(str(tmp_path / "master")).orderBy("id").collect()
    assert [(row.id, row.v, row.day) for row in rows] == [("1", "b", "tue"), ("2", "c", "mon")]
    assert (result.counts["inserts"], result.counts["superseded"]) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("partition_by", [[], ["v"]])
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_deletes_of_ids_alone_may_empty_the_master(
    spark: SparkSession, tmp_path: Path, kind: str, partition_by: list[str]
) -> None:
    arguments = {
        "ids": ["id"],
        "order": "at",
        "schema": "id STRING, at BIGINT, v STRING",
        "delete_prefix": "del",
        "format": kind,
    }
    arguments |= {"partition_by": partition_by}
    put(
        tmp_path / "incr" / "a.json",
        '{"id": "1", "at": 5, "v": "x"}\n{"id": "2", "at": 5, "v": "y"}\n',
    )
    assert run(spark, tmp_path, **arguments).counts["inserts"] == 2
    put(tmp_path / "incr" / "del_b.json", '{"id": "1"}\n{"id": "2"}\n{"id": "3"}\n')
    counts = run(spark, tmp_path, **arguments).counts
    assert (counts["deletes"], counts["deletes_of_unknown"], counts["rows_written"]) == (2, 1, 0)
    put(tmp_path / "incr" / "del_c.json", '{"id": "1", "at": null}\n')
    with pytest.raises(InvalidInputError, match="field 'at', the order, is missing"):
        run(spark, tmp_path, **arguments)


def test_a_master_is_taken_as_it_is_with_ids_twice_and_without_an_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A mutation that wins replaces all rows of its id.

    One that loses replaces none. A row without an order is the earliest.
    """
    put(
        tmp_path / "master" / "m.csv", "id,at,v\n1,9,a\n1,10,b\n2,9,c\n2,10,d\n3,,e\n4,1,f\n4,1,f\n"
    )
    put(tmp_path / "incr" / "i.csv", "id,at,v\n1,20,won\n2,5,late\n3,-7,won\n")
    run(spark, tmp_path, ids=["id"], order="at")
    left = [["2", "10", "d"], ["2", "9", "c"], ["4", "1", "f"], ["4", "1", "f"]]
    assert cells(tmp_path, header=True) == sorted([["1", "20", "won"], ["3", "-7", "won"], *left])
