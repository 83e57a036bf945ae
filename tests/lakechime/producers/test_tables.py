"""The tables to watch, as words and as a file."""

from pathlib import Path

import pytest

from lakechime import InvalidEventError
from lakechime.producers.delta import DeltaSource
from lakechime.producers.hive import HiveSource
from lakechime.producers.iceberg import IcebergLocation, IcebergSource
from lakechime.producers.opal import OpalLocation
from lakechime.producers.outbox import Target
from lakechime.producers.tables import read_tables, tables_of_words

FILE = """
interval: 1m
tables:
  - {table: shop.orders, format: opal, path: "s3://lake/orders", options: {endpoint_url: "http://s3"}}
  - {format: opal, path: lake/users}
  - table: web.clicks
    format: iceberg
    identifier: web.clicks
    catalog: prod
    branch: audit
    options: {uri: "https://catalog"}
  - {table: web.views, format: delta, path: /lake/views, cluster: east}
  - {table: web.logs, format: hive, path: /lake/logs, keys: [dt, hour], marker: _SUCCESS}
"""


def test_words_name_tables_of_each_format() -> None:
    words = (
        "lake/users",
        "a=opal:s3://lake/a",
        "b=iceberg:prod:web.b",
        "c=iceberg:s3://lake/c",
        "d=delta:/lake/d",
        "e=hive:/lake/e",
    )
    assert tables_of_words(words, "east") == {
        "east/lake/users": OpalLocation(path="lake/users", cluster="east"),
        "east/a": OpalLocation(path="s3://lake/a", name="a", cluster="east"),
        "east/b": IcebergSource(
            location=IcebergLocation(catalog="prod", identifier="web.b"),
            target=Target(table="b", cluster="east"),
        ),
        "east/c": IcebergSource(
            location=IcebergLocation(path="s3://lake/c"), target=Target(table="c", cluster="east")
        ),
        "east/d": DeltaSource(path="/lake/d", target=Target(table="d", cluster="east")),
        "east/e": HiveSource(path="/lake/e", target=Target(table="e", cluster="east")),
    }


@pytest.mark.parametrize("word", ["a=/lake/a", "a=hudi:/lake/a", "a=delta:", "=delta:/lake/a"])
def test_words_without_a_table_are_refused(word: str) -> None:
    with pytest.raises(InvalidEventError, match=r"FORMAT:LOCATION|needs a name"):
        tables_of_words([word])


def test_file_of_tables_names_sources_and_interval(tmp_path: Path) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text(FILE, encoding="utf-8")
    tables = read_tables(str(file))
    assert tables.interval_seconds == 60
    assert tables.sources["shop.orders"] == OpalLocation(
        path="s3://lake/orders", name="shop.orders", options={"endpoint_url": "http://s3"}
    )
    assert tables.sources["lake/users"] == OpalLocation(path="lake/users")
    location = IcebergLocation(
        identifier="web.clicks", catalog="prod", properties={"uri": "https://catalog"}
    )
    assert tables.sources["web.clicks"] == IcebergSource(
        location=location, target=Target(table="web.clicks"), branch="audit"
    )
    assert tables.sources["east/web.views"] == DeltaSource(
        path="/lake/views", target=Target(table="web.views", cluster="east")
    )
    assert tables.sources["web.logs"] == HiveSource(
        path="/lake/logs", target=Target(table="web.logs"), keys=("dt", "hour"), marker="_SUCCESS"
    )


@pytest.mark.parametrize(
    "text, said",
    [
        ("tables: []", "has no list of tables"),
        ("tables: [{format: opal, path: a}]\nevery: 3s", "unknown keys every"),
        ("[1]", "not a mapping"),
        ("tables: [", "cannot be read"),
        ("tables: [{table: a, format: opal, path: a}]\ninterval: soon", "interval"),
        ("tables: [{table: a, format: opal, path: a}]\ninterval: 0s", "at least 1s"),
        ("tables: [{table: a, format: hudi}, 7]", "table 1: .*no known format.*table 2"),
        ("tables: [{table: a, format: delta}]", "needs a path"),
        ("tables: [{format: delta, path: a}]", "needs a name"),
        ("tables: [{table: a, format: delta, path: a, keys: [dt]}]", "has the unknown keys keys"),
        ("tables: [{table: a, format: hive, path: a, keys: dt}]", "write a list"),
        ("tables: [{table: a, format: iceberg}]", "give either its identifier"),
        (
            "tables: [{table: a, format: opal, path: a}, {table: a, format: delta, path: b}]",
            "a is listed twice",
        ),
    ],
)
def test_faults_of_a_file_of_tables_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidEventError, match=f"(?s){said}"):
        read_tables(str(file))


def test_missing_file_of_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidEventError, match="cannot be read"):
        read_tables(f"{tmp_path}/none.yaml")
