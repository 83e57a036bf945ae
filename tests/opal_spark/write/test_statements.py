"""Statements on Spark: clauses, names, types, errors, and the same rows as in this process."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opal_lake.errors import InvalidInputError
from opal_lake.read.statement import Clause, StatementPlan
from opal_spark import OpalTable
from opal_spark.read.rows_by_id import IdLimits
from opal_spark.read.statement import statement_rows
from tests.opal_spark.build import content, create, frame
from tests.opal_spark.twin import arrow_of

ROWS = [("ax", 1, 10), ("bow", 1, 20), ("cup", 1, 30)]


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> OpalTable:
    table = create(spark, tmp_path / "t")
    table.ingest(frame(spark, ROWS), metadata="inline")
    return table


def changes(
    spark: SparkSession, *rows: tuple[Any, ...], ddl: str = "sku STRING, at BIGINT, price INT"
) -> DataFrame:
    return spark.createDataFrame(list(rows), ddl)


def test_update_takes_texts_columns_and_values(table: OpalTable) -> None:
    table.update({"price": "price * 2 + length(sku)"}, where="sku LIKE 'b%' OR t.price > 20")
    table.update({"price": F.col("price") + 1, "at": 5}, where=F.col("t.sku") == "ax")
    assert content(table.read()) == [("ax", 5, 11), ("bow", 1, 43), ("cup", 1, 63)]
    result = table.update({"price": -7, "at": "at + 1"}, where="sku = 'ax'")
    assert result.counts["updated"] == 1
    assert content(table.read())[0] == ("ax", 6, -7)
    table.update({"price": None}, where="sku = 'ax'")
    assert table.get([{"sku": "ax"}])["price"].to_pylist() == [None]
    assert table.check() == []


def test_delete_ends_rows_of_a_condition_of_keys_or_all(table: OpalTable) -> None:
    assert table.delete("sku IN ('ax', 'no')").counts["deleted"] == 1
    assert content(table.read()) == ROWS[1:]
    assert table.delete("price >= 30", at=9).counts["deleted"] == 1
    assert content(table.read(event_time=8)) == ROWS[1:]
    assert content(table.read()) == [ROWS[1]]
    assert table.delete().counts["deleted"] == 1
    assert table.delete().version is None
    assert content(table.read()) == []
    assert table.check() == []


def test_texts_with_escapes_mean_what_they_mean_in_spark(
    spark: SparkSession, table: OpalTable
) -> None:
    table.insert(changes(spark, ("tab\t", 1, 1), ("tab\\t", 1, 2)))
    assert table.delete(r"sku = 'tab\t'").counts["deleted"] == 1
    assert table.delete('sku = "ax"').counts["deleted"] == 1
    assert content(table.read()) == [*ROWS[1:], ("tab\\t", 1, 2)]


def test_insert_refuses_existing_keys(spark: SparkSession, table: OpalTable) -> None:
    result = table.insert(changes(spark, ("dye", 1, 40)))
    assert result.counts["inserted"] == 1
    with pytest.raises(InvalidInputError, match=r"already.*\"ax\""):
        table.insert(changes(spark, ("ax", 2, 1), ("eel", 1, 1)))
    assert content(table.read()) == [*ROWS, ("dye", 1, 40)]
    arrow = pa.table({"sku": ["elk"], "at": [1], "price": pa.array([5], pa.int32())})
    table.insert(arrow)
    assert content(table.read()) == [*ROWS, ("dye", 1, 40), ("elk", 1, 5)]


ON = ["t.sku = s.sku", "s.sku = t.sku AND true", "t.sku <=> s.sku"]


@pytest.mark.parametrize("on", ON)
def test_merge_applies_the_first_clause_that_fits(
    spark: SparkSession, table: OpalTable, on: str
) -> None:
    source = changes(
        spark, ("ax", 2, 1), ("bow", 2, 2), ("dye", 2, 4), ("eel", 2, 5), ("fig", 2, -1)
    )
    result = (
        table.merge(source, on=on)
        .when_matched_delete(where="s.price = 1")
        .when_matched_update({"price": "t.price + s.price", "at": "s.at"}, where="s.price < 9")
        .when_matched_update({"price": "1 / 0"})
        .when_not_matched_insert({"sku": "upper(sku)", "at": "at"}, where="price = 4")
        .when_not_matched_insert_all(where="price > 0")
        .execute()
    )
    assert (result.counts["inserted"], result.counts["updated"]) == (2, 1)
    assert result.counts["deleted"] == 1
    assert content(table.read()) == [
        ("DYE", 2, None),
        ("bow", 2, 22),
        ("cup", 1, 30),
        ("eel", 2, 5),
    ]
    assert table.check() == []


@pytest.mark.parametrize("on", ON)
def test_merge_changes_rows_without_a_source(
    spark: SparkSession, table: OpalTable, on: str
) -> None:
    source = changes(spark, ("ax", 2, 1), ("dye", 2, 4))
    (
        table.merge(source, on=on)
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .when_not_matched_by_source_delete(where="price > 25")
        .when_not_matched_by_source_update({"price": "-price"})
        .execute()
    )
    assert content(table.read()) == [("ax", 2, 1), ("bow", 1, -20), ("dye", 2, 4)]
    table.merge(source, on=on).when_not_matched_by_source_delete().execute()
    assert content(table.read()) == [("ax", 2, 1), ("dye", 2, 4)]


def test_merge_names_the_sides_as_it_is_asked(spark: SparkSession, table: OpalTable) -> None:
    source = changes(spark, ("ax", 3, 7), ddl="`the key` STRING, at BIGINT, `{new}.price` INT")
    merge = table.merge(source, on="a.sku = `b c`.`the key`", target="a", source_alias="b c")
    values = {"price": "`b c`.`{new}.price`", "at": "`b c`.at"}
    merge.when_matched_update(values, where=F.col("`{new}.price`") == 7).execute()
    assert content(table.read())[0] == ("ax", 3, 7)


def test_nulls_match_nothing_and_are_not_inserted(spark: SparkSession, table: OpalTable) -> None:
    source = changes(spark, (None, 2, 1), ("ax", 2, 1))
    merge = table.merge(source, on="t.sku = s.sku").when_matched_update_all()
    assert merge.execute().counts["updated"] == 1
    with pytest.raises(InvalidInputError, match="nothing was changed"):
        merge.when_not_matched_insert_all().execute()
    skipped = merge.when_not_matched_insert_all(where="s.sku IS NOT NULL").execute()
    assert skipped.counts["inserted"] == 0


@pytest.mark.parametrize("on", ON)
def test_several_rows_of_a_key_are_an_error_unless_the_latest_counts(
    spark: SparkSession, table: OpalTable, on: str
) -> None:
    source = changes(spark, ("ax", 3, 3), ("ax", 4, 4), ("ax", 2, 2), ("dye", 2, 2), ("dye", 1, 1))
    for clauses in (
        table.merge(source, on=on).when_matched_update_all(),
        table.merge(source, on=on).when_not_matched_insert_all(),
    ):
        with pytest.raises(InvalidInputError, match="more than once"):
            clauses.execute()
    latest = table.merge(source, on=on, duplicates="latest")
    latest.when_matched_update_all().when_not_matched_insert_all().execute()
    assert content(table.read()) == [("ax", 4, 4), *ROWS[1:], ("dye", 2, 2)]
    deleted = table.merge(source, on=on).when_matched_delete().execute()
    assert deleted.counts["deleted"] == 2
    assert table.check() == []


def test_values_that_a_column_cannot_hold_are_errors(spark: SparkSession, table: OpalTable) -> None:
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        try:
            table.update({"price": "price * 1.5 + 0.0"}, where="sku = 'ax' AND price < 15")
            for fraction in ("price + 0.5", "price + 0.5D", "price + CAST(0.5 AS FLOAT)"):
                with pytest.raises(InvalidInputError, match=r"'price' in the update is 15\.5 in"):
                    table.update({"price": fraction}, where="sku = 'ax'")
            with pytest.raises(InvalidInputError, match="'price' in the update is 3000000000 in"):
                table.update({"price": "CAST(3000000000 AS BIGINT)"})
            with pytest.raises(InvalidInputError, match=r"is STRING, and column 'price' is INT"):
                table.update({"price": "'7'"})
            with pytest.raises(InvalidInputError, match=r"is BOOLEAN, and column 'at' is BIGINT"):
                table.update({"at": "price > 1"})
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")
    assert content(table.read()) == [("ax", 1, 15), *ROWS[1:]]


def test_keys_of_other_types_match_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    schema = spark.createDataFrame([], "id INT, at BIGINT, name STRING").schema
    table = OpalTable.create(spark, str(tmp_path / "t"), schema, keys=["id"], delta="at")
    table.insert(changes(spark, (1, 1, "a"), (2, 1, "b"), ddl="id SMALLINT, at INT, name STRING"))
    wide = changes(spark, (1, 2, "A"), (2**40, 2, "far"), ddl="id BIGINT, at INT, name STRING")
    table.merge(wide, on="t.id = s.id").when_matched_update_all().execute()
    text = changes(spark, ("02", 2, "B"), ddl="id STRING, at INT, name STRING")
    table.merge(text, on="t.id = s.id").when_matched_update({"name": "s.name"}).execute()
    rows = [(row.id, row.at, row.name) for row in table.read().orderBy("id").collect()]
    assert [(row[0], row[2]) for row in rows] == [(1, "A"), (2, "B")]
    with pytest.raises(InvalidInputError, match="1099511627776"):
        table.merge(wide, on="t.id = s.id").when_not_matched_insert_all().execute()


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_columns_of_all_types_stay_as_they_were(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    rows = spark.sql(
        "SELECT id, id AS at, CAST(id AS DECIMAL(20, 3)) AS amount, current_timestamp() AS seen, "
        "TIMESTAMP_NTZ '1890-01-01 00:00:00.000001' AS local, DATE '0101-01-01' AS day, "
        "array(id, NULL) AS list, named_struct('a b', id, 'seen', current_timestamp()) AS parts, "
        "map('k', current_timestamp()) AS pairs, unhex('00FF') AS bytes, CAST(id AS FLOAT) AS real "
        "FROM range(3)"
    ).localCheckpoint()
    layout: Any = {"keys": ["id"], "delta": "at", "file_format": file_format}
    table = OpalTable.create(spark, str(tmp_path / "t"), rows.schema, **layout)
    table.insert(rows)
    before = table.read().drop("amount").orderBy("id").collect()
    assert before == rows.drop("amount").orderBy("id").collect()
    source = spark.range(2)
    table.merge(source, on="t.id = s.id").when_matched_update({"amount": "t.amount + 1"}).execute()
    table.update({"amount": "amount + 1"}, where="id = 2")
    table.update({"amount": "amount + 1"}, where="id >= 0 AND real >= 0")
    assert table.read().drop("amount").orderBy("id").collect() == before
    assert [float(row.amount) for row in table.read().orderBy("id").collect()] == [2, 3, 4]


def delete_plan(table: OpalTable, where: Any) -> StatementPlan:
    clauses = [Clause(when="matched", action="delete", where=where)]
    return StatementPlan(snapshot=table.log.head(), cache=table.cache, clauses=clauses)


def test_merge_on_keys_and_a_condition_on_keys_scan_no_file(
    spark: SparkSession, table: OpalTable
) -> None:
    source = changes(spark, ("ax", 2, 1))
    scans: dict[str, bool] = {}
    for on in ("t.sku = s.sku", "t.sku <=> s.sku"):
        plan = replace(delete_plan(table, None), source=source, on=on)
        scans[on] = bool(statement_rows(spark, plan).inputFiles())
    assert [*scans.values()] == [False, True]
    for where in ("sku = 'ax'", "price > 1000", "sku = 'ax' OR price = 10"):
        spark.sparkContext.setJobGroup(where, where)
        statement_rows(spark, delete_plan(table, where))
        scans[where] = bool(spark.sparkContext.statusTracker().getJobIdsForGroup(where))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert [*scans.values()][2:] == [False, False, True]


def test_rows_are_the_same_by_their_ids_and_by_a_scan(spark: SparkSession, tmp_path: Path) -> None:
    table = OpalTable.create(
        spark, str(tmp_path / "t"), changes(spark).schema, keys=["sku"], delta="at"
    )
    for at in (1, 2):
        table.upsert(changes(spark, *((f"s{number}", at, number) for number in range(40))))
    table.compact()
    table.upsert(changes(spark, *((f"s{number}", 3, number) for number in range(5))))
    conditions = [("price < 20", 20), ("price + 1 < 21", 20), (F.col("t.price") < 7, 7)]
    # In this process, in tasks, and by a scan of all columns
    for limits in (IdLimits(), IdLimits(own_rows=0), IdLimits(few=0, share=0)):
        for where, number in conditions:
            rows = statement_rows(spark, delete_plan(table, where), limits)
            assert bool(rows.inputFiles()) == (limits.few == 0), where
            keys = sorted(row.sku for row in rows.collect())
            assert keys == sorted(f"s{sku}" for sku in range(number)), (limits, where)
    assert statement_rows(spark, delete_plan(table, "price < 0")).collect() == []
    table.update({"price": "price + 100"}, where="price < 20")
    assert table.delete("price + 1 > 111 OR at = 3").counts["deleted"] == 14
    prices = sorted(row.price for row in table.read().collect())
    assert prices == [*range(20, 40), *range(105, 111)]


def test_wrong_texts_are_errors_and_change_nothing(spark: SparkSession, table: OpalTable) -> None:
    source = changes(spark, ("ax", 2, 1))
    version = table.describe()["version"]

    def merge() -> Any:
        return table.merge(source, on="t.sku = s.sku")

    for wrong in (
        lambda: table.update({"price": "prise"}),
        lambda: table.update({"price": "1"}, where="price"),
        lambda: table.delete("price >"),
        lambda: table.delete("max(price) > 1"),
        lambda: table.update({"price": "explode(array(1, 2))"}),
        lambda: merge().when_matched_update({"price": "price"}).execute(),
        lambda: merge().when_matched_delete(where="s.price").execute(),
        lambda: merge().when_not_matched_insert({"sku": "t.sku", "at": "at"}).execute(),
        lambda: merge().when_not_matched_by_source_update({"price": "s.price"}).execute(),
        lambda: table.merge(source, on="sku = s.sku").when_matched_delete().execute(),
        lambda: table.merge(source, on="s.price").when_matched_delete().execute(),
    ):
        with pytest.raises((AnalysisException, InvalidInputError)):
            wrong()
    with pytest.raises(InvalidInputError, match="more than one column"):
        table.insert(changes(spark, ("a", 1, 1), ddl="sku STRING, at BIGINT, AT INT"))
    with pytest.raises(InvalidInputError, match="_opal_segment"):
        table.insert(changes(spark, ("a", 1, 1), ddl="sku STRING, at BIGINT, _opal_segment INT"))
    with pytest.raises(InvalidInputError, match="pass a DataFrame"):
        table.insert([("a", 1, 1)])
    with pytest.raises(InvalidInputError, match="would get another key"):
        table.merge(source, on="t.price = 20").when_matched_update_all().execute()
    assert content(table.read()) == ROWS
    assert table.describe()["version"] == version


def test_columns_of_a_merge_are_named_by_their_side(spark: SparkSession, table: OpalTable) -> None:
    source = changes(spark, ("ax", 2, 1), ("dye", 2, 4))
    on = F.col("t.sku") == source["sku"]
    (
        table.merge(source, on=on)
        .when_matched_update({"price": F.col("s.price") + F.col("t.price"), "at": F.col("s.at")})
        .when_not_matched_insert({"sku": F.col("s.sku"), "at": F.col("at"), "price": F.lit(7)})
        .execute()
    )
    assert content(table.read()) == [("ax", 2, 11), *ROWS[1:], ("dye", 2, 7)]
    merge = table.merge(source, on="t.sku = s.sku")
    of_frame = r"such as df\['price'\], is unknown here; .*F.col\('s.price'\)"
    with pytest.raises(InvalidInputError, match=of_frame):
        merge.when_matched_update({"price": source["price"]}).execute()
    with pytest.raises(InvalidInputError, match=of_frame):
        merge.when_matched_delete(where=source["price"] > 0).execute()
    with pytest.raises(InvalidInputError, match=of_frame):
        table.update({"price": table.read()["price"] + 1})
    assert len(content(table.read())) == 4


def test_tables_of_arrow_are_sources_of_all_statements(table: OpalTable) -> None:
    rows = pa.table({"sku": ["ax", "dye"], "at": [2, 2], "price": pa.array([5, 6], pa.int32())})
    with_note = rows.append_column("note", pa.array(["n", None]))
    merge = table.merge(with_note, on="t.sku = s.sku").with_schema_evolution()
    result = merge.when_matched_update_all().when_not_matched_insert_all().execute()
    assert result.notes == ("added column 'note'",)
    shown = [("ax", 2, 5, "n"), ("bow", 1, 20, None), ("cup", 1, 30, None), ("dye", 2, 6, None)]
    columns = ["sku", "at", "price", "note"]
    assert sorted(map(tuple, table.read(columns=columns).collect())) == shown
    table.overwrite(with_note.slice(1), where="price > 5")
    twice = pa.concat_tables([with_note, with_note])
    latest = table.merge(twice, on="t.sku = s.sku", duplicates="latest")
    assert latest.when_matched_update_all().execute().counts["updated"] == 2
    assert table.check() == []


@pytest.mark.parametrize(
    "values",
    [
        pa.array([6, 7], pa.uint64()),
        pa.array([1001, 1000], pa.timestamp("ns")),
        pa.array([[{"x": 1001}], None], pa.list_(pa.struct([("x", pa.timestamp("ns"))]))),
    ],
)
def test_values_of_arrow_that_spark_would_lose_are_errors(
    table: OpalTable, values: pa.Array
) -> None:
    rows = pa.table({"sku": ["ax", "dye"], "at": [2, 2], "more": values})
    merge = table.merge(rows, on="t.sku = s.sku").with_schema_evolution()
    with pytest.raises(InvalidInputError, match="cast the column in Arrow first"):
        merge.when_matched_update_all().execute()
    assert content(table.read()) == ROWS


def test_merge_adds_the_columns_of_its_source(spark: SparkSession, table: OpalTable) -> None:
    wider = changes(
        spark, ("ax", 2, "x"), ("dye", 2, "y"), ddl="sku STRING, at BIGINT, note STRING"
    )
    merge = table.merge(wider, on="t.sku = s.sku").with_schema_evolution()
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    rows = [tuple(row) for row in table.read(where="note IS NOT NULL").orderBy("sku").collect()]
    assert rows == [("ax", 2, 10, "x"), ("dye", 2, None, "y")]


SETS = ("price + 1", "price * at", "-price", "NULL", "7", "coalesce(price, 1)")
WHERES = (
    "price > 15",
    "sku IN ('a', 'd', 'z')",
    "sku = 'b'",
    "price IS NULL OR at = 2",
    "NOT price < 20 AND sku != 'c'",
    None,
)


def random_statement(table: Any, rows: Any, rng: random.Random) -> Any:
    """Run a random statement; the same numbers make the same one on either engine."""
    kind = rng.choice(["update", "delete", "insert", "merge", "merge", "merge"])
    where, value = rng.choice(WHERES), rng.choice(SETS)
    if kind == "update":
        return table.update({"price": value, "at": "at + 1"}, where=where)
    if kind == "delete":
        return table.delete(where or "price > 40")
    if kind == "insert":
        return table.insert(rows)
    on = rng.choice(["t.sku = s.sku", "t.sku = s.sku", "t.sku = s.sku AND t.at <= s.at"])
    merge = table.merge(rows, on=on, duplicates=rng.choice(["fail", "latest"]))
    if rng.random() < 0.3:
        merge = merge.when_matched_delete(where="s.price > 60")
    if rng.random() < 0.7:
        merge = merge.when_matched_update_all(where="s.at >= t.at")
    if rng.random() < 0.5:
        values = {"price": "t.price + s.price", "at": "t.at + 1"}
        merge = merge.when_matched_update(values, where="t.price IS NOT NULL")
    if rng.random() < 0.5:
        merge = merge.when_not_matched_insert({"sku": "sku", "at": "at"}, where="price < 30")
    if rng.random() < 0.2:
        merge = merge.when_not_matched_by_source_update({"price": value}, where="price > 30")
    return merge.when_not_matched_insert_all().execute()


def outcome(table: Any, rows: Any, seed: float) -> Any:
    """Return the counts of a random statement, or the beginning of its error."""
    try:
        counts = random_statement(table, rows, random.Random(seed)).counts
    except InvalidInputError as error:
        return str(error).split(":")[0]
    return {name: counts[name] for name in ("inserted", "updated", "deleted")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_statements_make_the_same_rows_on_both_engines(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    on_spark, local = create(spark, tmp_path / "spark"), create(spark, tmp_path / "local")
    on_arrow = arrow_of(local)
    for _ in range(8):
        values = [(rng.choice("abcdef"), rng.randint(1, 4), rng.randint(1, 70)) for _ in range(3)]
        rows = frame(spark, values, slices=1)
        number = rng.random()
        expected = outcome(on_arrow, rows.toArrow(), number)
        assert outcome(on_spark, rows, number) == expected
        assert content(on_spark.read()) == content(local.read())
    assert on_spark.check() == []
