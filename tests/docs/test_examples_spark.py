"""Python and `opal` of the README and the docs, run as they are written.

Only the paths of tables differ. Printed text is what the docs show.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import StructType

from opal_lake.cli import main
from opal_lake.exit_codes import OK
from opal_spark import OpalTable
from tests.docs.build import ROOT, TABLE_PAGES, example_with, examples, with_places
from tests.fixtures_cli import SOURCES, metadata, opal_commands
from tests.fixtures_postgres import USER, Postgres
from tests.fixtures_spark import spark

__all__ = ["metadata", "opal_commands", "spark"]

pytestmark = pytest.mark.spark

JDBC = "import Jdbc"
DRIVER = "org.postgresql:postgresql:42.7.8"


@pytest.fixture(autouse=True)
def own_time_zone(spark: SparkSession) -> Any:
    """Restore the session's time zone, which the tutorial sets and the tests share."""
    yield
    spark.conf.unset("spark.sql.session.timeZone")


def run_page(
    page: str, places: dict[str, str], names: dict[str, Any], *, left_out: str | None = None
) -> dict[str, Any]:
    """Run the Python blocks of a page in their order, in one namespace.

    A text block is what the block before it prints.
    """
    printed = ""
    for example in examples(page, "python", "text"):
        if left_out is not None and left_out in example.text:
            continue
        if example.language == "text":
            assert printed.strip() == example.text.strip(), example
            continue
        with redirect_stdout(StringIO()) as output:
            exec(compile(example.with_places(places), str(example), "exec"), names)
        printed = output.getvalue()
    return names


def run_console(page: str, places: dict[str, str]) -> None:
    for example in examples(page, "console"):
        for command in example.commands:
            if command.startswith("opal "):
                assert main(shlex.split(with_places(command, places))[1:]) == OK, (
                    f"{example}: {command}"
                )


def changes(spark: SparkSession) -> Any:
    return spark.sql(
        "SELECT 1L AS order_id, 150D AS total, 'I' AS op, TIMESTAMP '2026-10-01 09:00:00Z' AS "
        "updated_at, 'NL' AS country"
    )


def one_hour_from_now() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def readme(spark: SparkSession, folder: Path) -> None:
    run_page(
        "README.md",
        {"/lake/": f"{folder}/", "2026-11-02T09:00:00Z": one_hour_from_now()},
        {"spark": spark, "df": changes(spark)},
    )
    assert [
        row["order_id"]
        for row in OpalTable.for_path(spark, str(folder / "orders")).read().collect()
    ] == [1]
    run_console("README.md", {"/lake/": f"{folder}/"})


def tutorial(spark: SparkSession, folder: Path) -> None:
    names = run_page("docs/tutorials/table.md", {"/lake/": f"{folder}/"}, {})
    assert names["spark"].sql("SELECT count(*) FROM orders").first()[0] == 3
    run_console("docs/tutorials/table.md", {"/lake/": f"{folder}/"})


def new_orders(spark: SparkSession, uri: str, partition_by: Sequence[str] = ()) -> OpalTable:
    """Return a table of orders with one row, as the how-to guides take for granted."""
    orders = OpalTable.create(
        spark,
        uri,
        changes(spark).schema,
        keys=["order_id"],
        delta="updated_at",
        partition_by=partition_by,
    )
    orders.ingest(changes(spark), metadata="inline")
    return orders


def ingest(spark: SparkSession, folder: Path) -> None:
    (folder / "in" / "orders").mkdir(parents=True)
    (folder / "in" / "orders" / "1.csv").write_text(
        "order_id,country,total,op,updated_at\n"
        "1,NL,150,I,2026-10-01T09:00:00Z\n"
        "2,DE,ten,I,2026-10-01T09:00:00Z\n"
    )
    (folder / "in" / "products").mkdir()
    (folder / "in" / "products" / "a_1.csv").write_text("1,a\n2,b\n")
    (folder / "in" / "products" / "del_2.csv").write_text("2\n")
    names = run_page(
        "docs/how-to/ingest.md",
        {"/lake/": f"{folder}/", "/in/": f"{folder}/in/"},
        {"spark": spark},
        left_out=JDBC,
    )
    names["orders"].metagen()
    rows = names["orders"].read().orderBy("order_id").collect()
    assert [row["order_id"] for row in rows] == [1, 9]
    assert [tuple(row) for row in names["products"].read().collect()] == [(1, "a", 1)]


def read(spark: SparkSession, folder: Path) -> None:
    names = run_page(
        "docs/how-to/read.md",
        {"/lake/": f"{folder}/"},
        {
            "spark": spark,
            "monday": changes(spark),
            "tuesday": changes(spark),
            "orders": new_orders(spark, str(folder / "shop" / "orders")),
        },
    )
    assert [row["order_id"] for row in names["orders"].read().collect()] == [1]
    totals = spark.sql("SELECT * FROM totals").first()
    assert totals == spark.sql("SELECT * FROM same_totals").first() == (150.0, 1)


def read_changes(spark: SparkSession, folder: Path) -> None:
    orders = new_orders(spark, str(folder / "shop" / "orders"))
    names = run_page(
        "docs/how-to/changes.md",
        {"/lake/": f"{folder}/"},
        {"spark": spark, "orders": orders, "OpalTable": OpalTable, "StructType": StructType},
    )
    rows = names["order_changes"].read().collect()
    assert {(row["order_id"], row["change"]) for row in rows} == {(1, "insert")}


def statements(spark: SparkSession, folder: Path) -> None:
    orders = new_orders(spark, str(folder / "orders"))
    new = changes(spark).withColumn("order_id", lit(2).cast("long"))
    later = changes(spark).withColumn("updated_at", lit("2026-11-02 09:00:00Z").cast("timestamp"))
    deleted = later.withColumn("op", lit("D"))
    names = {"orders": orders, "new_rows": new, "rows": deleted}
    run_page("docs/how-to/statements.md", {}, names)
    assert [row["order_id"] for row in orders.read().collect()] == [2]


def sql_tables(spark: SparkSession, folder: Path) -> None:
    places = {"/lake": str(folder / "lake")}
    (folder / "nightly.sql").write_text("DESCRIBE lake.mart.countries;")
    try:
        run_page("docs/how-to/sql-tables.md", places, {})
        run_console("docs/how-to/sql-tables.md", places)
    finally:
        spark.conf.unset("spark.opal.catalog.lake")


def by_sql(spark: SparkSession, folder: Path) -> None:
    new_orders(spark, str(folder / "shop" / "orders"))
    french = changes(spark).withColumns({"order_id": lit(2).cast("long"), "country": lit("FR")})
    try:
        names = run_page(
            "docs/how-to/sql.md",
            {"/lake/": f"{folder}/"},
            {"spark": spark, "new_orders": changes(spark).union(french)},
        )
        assert names["counts"].first()["num_affected_rows"] == 2
        assert names["then"].count() == names["now"].count() == 1
        assert spark.table("totals").collect() == [("NL", 150.0)]
    finally:
        spark.conf.unset("spark.opal.catalog.lake")


def overwrite(spark: SparkSession, folder: Path) -> None:
    orders = new_orders(spark, str(folder / "orders"), partition_by=["country"])
    belgian = changes(spark).withColumns({"order_id": lit(2).cast("long"), "country": lit("BE")})
    orders.ingest(belgian, metadata="inline")
    run_page("docs/how-to/overwrite.md", {}, {"orders": orders, "rows": changes(spark)})
    assert orders.read().count() == 0
    operations = [commit.operation for commit in orders.commits()]
    assert operations[:2] == ["drop_partition", "overwrite"]


def time_travel(spark: SparkSession, folder: Path) -> None:
    orders = new_orders(spark, str(folder / "orders"))
    run_page(
        "docs/how-to/time-travel.md",
        {"2026-11-24T09:00:00Z": one_hour_from_now()},
        {"spark": spark, "orders": orders},
    )
    users = new_orders(spark, str(Path.cwd() / "lake" / "users"))
    users.ingest(changes(spark), metadata="inline")
    run_console("docs/how-to/time-travel.md", {})


def change_columns(spark: SparkSession, folder: Path) -> None:
    orders = new_orders(spark, str(folder / "orders"))
    run_page("docs/how-to/columns.md", {}, {"spark": spark, "orders": orders})
    users = new_orders(spark, str(Path.cwd() / "lake" / "users"))
    run_console("docs/how-to/columns.md", {})
    assert users.read().columns == ["note", "order_id", "amount", "op", "updated_at"]


def business_snapshots(spark: SparkSession, folder: Path) -> None:
    names = run_page(
        "docs/how-to/business-snapshots.md",
        {"/lake/": f"{folder}/"},
        {"spark": spark, "OpalTable": OpalTable, "StructType": StructType},
    )
    friday = names["homes"].read(business_snapshot="2022-07-15").collect()
    assert [row["city"] for row in friday] == ["Wuhan"]


def move_from(spark: SparkSession, folder: Path) -> None:
    page = "docs/how-to/from-delta-or-iceberg.md"
    run_page(page, {"/lake/": f"{folder}/"}, {"spark": spark})
    old_table(spark)
    run_console(page, {})


def old_table(spark: SparkSession) -> None:
    spark.sql("SELECT id, id AS at, 'NL' AS country FROM range(10)").write.parquet(
        f"{Path.cwd()}/old/users"
    )


def maintenance(spark: SparkSession, folder: Path) -> None:
    rows = spark.sql("SELECT id AS customer_id, now() AS created_at FROM range(10)")
    orders = OpalTable.create(
        spark, str(folder / "orders"), rows.schema, keys=["customer_id"], delta="created_at"
    )
    for _ in range(2):
        orders.ingest(rows, metadata="inline")
    names = run_page("docs/how-to/maintenance.md", {}, {"orders": orders})
    orders.ingest(rows, metadata="inline")  # a single file is in order by itself
    exec(example_with("docs/how-to/maintenance.md", "zorder(").text, names)
    assert {"compact", "zorder"} <= {commit["operation"] for commit in orders.history()}
    old_table(spark)
    assert (
        main(shlex.split("bootstrap lake/users old/users --format parquet --key id --delta at"))
        == OK
    )
    run_console("docs/how-to/maintenance.md", {})


def mutate(spark: SparkSession, folder: Path) -> None:
    """Every command of the page, the shell's as well."""
    for example in examples("docs/how-to/plain-folders.md", "console"):
        for command in example.commands:
            if command.startswith("opal "):
                assert main(shlex.split(command)[1:]) == OK, f"{example}: {command}"
            else:
                subprocess.run(command, shell=True, cwd=folder, check=True)
    names = run_page("docs/how-to/plain-folders.md", {}, {"spark": spark})
    assert names["result"].version is None  # all is done
    assert sorted((row.id, row.name, row.stock) for row in names["rows"].collect()) == [
        ("1", "fitbit", "82"),
        ("3", "misfit", "21"),
        ("4", "kindle", "96"),
        ("5", "lenovo", "7"),
    ]


# How to run each page of TABLE_PAGES
SCRIPTS: dict[str, Callable[[SparkSession, Path], None]] = {
    "README.md": readme,
    "docs/tutorials/table.md": tutorial,
    "docs/how-to/business-snapshots.md": business_snapshots,
    "docs/how-to/changes.md": read_changes,
    "docs/how-to/columns.md": change_columns,
    "docs/how-to/from-delta-or-iceberg.md": move_from,
    "docs/how-to/ingest.md": ingest,
    "docs/how-to/maintenance.md": maintenance,
    "docs/how-to/plain-folders.md": mutate,
    "docs/how-to/read.md": read,
    "docs/how-to/overwrite.md": overwrite,
    "docs/how-to/sql-tables.md": sql_tables,
    "docs/how-to/sql.md": by_sql,
    "docs/how-to/statements.md": statements,
    "docs/how-to/time-travel.md": time_travel,
}
# The pages that a newcomer runs first; the tests of all others are marked as slow
QUICK = ("README.md", "docs/tutorials/table.md")


@pytest.mark.usefixtures("opal_commands")
@pytest.mark.parametrize(
    "page",
    [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in TABLE_PAGES],
)
def test_examples_run_and_print_the_text_of_the_page(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SCRIPTS[page](spark, tmp_path)


@pytest.mark.postgres
def test_the_example_of_a_database_runs(
    spark: SparkSession, tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql(f"ADD JAR ivy://{DRIVER}?transitive=false")
    monkeypatch.setenv("DB_USER", USER)
    monkeypatch.setenv("DB_PASSWORD", postgres.password)
    postgres.execute(
        "DROP TABLE IF EXISTS orders",
        "CREATE TABLE orders (id bigint, at bigint)",
        "INSERT INTO orders VALUES (1, 1)",
    )
    orders = OpalTable.create(
        spark,
        str(tmp_path / "t"),
        spark.range(1).selectExpr("id", "id AS at").schema,
        keys=["id"],
        delta="at",
    )
    example = example_with("docs/how-to/ingest.md", JDBC)
    names = {"orders": orders}
    exec(
        compile(
            example.with_places({"jdbc:postgresql://db/shop": postgres.url}), str(example), "exec"
        ),
        names,
    )
    orders.metagen()
    assert [row["id"] for row in orders.read().collect()] == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("opal_commands")
def test_the_commands_for_a_cluster_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is packed, and the app submitted.

    tests/opal_spark/cli/test_pack.py runs jobs with such an archive.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    table = OpalTable.create(
        spark,
        str(tmp_path / "orders"),
        changes(spark).schema,
        keys=["order_id"],
        delta="updated_at",
    )
    table.ingest(changes(spark))
    run_console("docs/how-to/clusters.md", {})
    assert (tmp_path / "environment.tar.gz").is_file()
    [command] = [
        line
        for example in examples("docs/how-to/clusters.md", "console")
        for line in example.commands
        if "spark-submit" in line
    ]
    program, *words = shlex.split(command.replace("s3a://lake/orders", str(tmp_path / "orders")))
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == OK, done.stderr[-2000:]
    assert table.read().count() == 1
