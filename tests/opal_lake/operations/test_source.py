"""Where rows come from, as a JobSpec carries it."""

import json
from typing import Any

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.source import Files, Jdbc, Source, source_from_json, source_to_json

URL = "jdbc:postgresql://db:5432/shop"


@pytest.mark.parametrize(
    "source",
    [
        Files(paths=("s3a://in/orders/*.json",)),
        Files(paths=("a b.csv", "ü"), format="csv", options={"sep": ";"}),
        Files(
            "in",
            format="csv",
            header=False,
            columns=["id", "name"],
            deletes="del*",
            order="file_suffix",
        ),
        Jdbc(url=URL, table="shop.orders", user_env="PGUSER", password_env="PGPASSWORD"),
        Jdbc(url=URL, query="SELECT 1", options={"partitionColumn": "id"}),
    ],
)
def test_a_source_survives_json(source: Source) -> None:
    assert source_from_json(json.loads(json.dumps(source_to_json(source)))) == source


def test_paths_alone_are_short_for_files() -> None:
    assert (
        source_from_json({"files": "in/*.orc"})
        == source_from_json({"files": ["in/*.orc"]})
        == Files(paths=("in/*.orc",))
    )


def test_options_may_be_numbers_and_truths() -> None:
    assert Files(paths=("a.csv",), options={"header": True, "maxColumns": 5}).options == {
        "header": "true",
        "maxColumns": "5",
    }  # type: ignore[dict-item]  # as YAML gives them


@pytest.mark.parametrize(
    "path, expected",
    [
        ("a.csv", "csv"),
        ("a.CSV.gz", "csv"),
        ("s3a://b/*.json.gz", "json"),
        ("a.jsonl", "json"),
        ("a.ndjson.bz2", "json"),
        ("part-0.snappy.parquet", "parquet"),
        ("a.orc", "orc"),
    ],
)
def test_format_of_a_source_follows_from_file_endings(path: str, expected: str) -> None:
    assert Files(paths=(path,)).file_format == expected


@pytest.mark.parametrize("paths", [("folder/",), ("a.txt",), ("a.csv", "a.json")])
def test_unclear_endings_need_a_format(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match="format"):
        _ = Files(paths=paths).file_format
    assert Files(paths=paths, format="csv").file_format == "csv"


@pytest.mark.parametrize(
    "data, message",
    [
        ({}, "a source must be {'files': ...} or {'jdbc': ...}, got the keys"),
        ("a.csv", "a source must be .*, got str"),
        ({"files": ["a.csv"], "jdbc": {}}, "a source must be .*, got the keys"),
        ({"file": ["a.csv"]}, "did you mean 'files'"),
        (
            {"files": {"paths": ["a.csv"], "fromat": "csv"}},
            "'fromat' is unknown; did you mean 'format'",
        ),
        ({"files": {"paths": ["a.csv"], "format": "parqet"}}, "did you mean 'parquet'"),
        ({"files": {"format": "csv"}}, "paths"),
        ({"files": []}, "paths"),
        ({"files": [""]}, "paths"),
        ({"files": 5}, "files must map names to values, got int; write for example "),
        ({"files": {"paths": "a.csv", "options": {"sep": None}}}, "option 'sep'"),
        ({"files": {"paths": "a.csv", "options": ["sep"]}}, "got list"),
        (
            {"files": {"paths": "a.csv", "header": "no"}},
            "header='no' is not a flag; write True or False",
        ),
        (
            {"files": {"paths": "a.csv", "header": False, "options": {"Header": True}}},
            "header=False contradicts the option header='true'",
        ),
        ({"files": {"paths": "a.csv", "columns": ["id"]}}, "add header=False"),
        (
            {"files": {"paths": "a.csv", "header": False, "columns": "id"}},
            "columns='id' is not a list of names; give",
        ),
        (
            {"files": {"paths": "a.csv", "header": False, "columns": ["id", "id"]}},
            "columns names 'id' twice",
        ),
        (
            {"files": {"paths": "a.csv", "deletes": ""}},
            "deletes='' is not a text; write for example deletes='del\\*'",
        ),
        (
            {"files": {"paths": "a.csv", "deletes": "in/del*"}},
            "has a folder, and only names of files are compared",
        ),
        (
            {"files": {"paths": "a.csv", "order": 5}},
            "order=5 is not a text; write for example order='file_suffix'",
        ),
        ({"jdbc": {"url": URL}}, "give either a table or a query"),
        ({"jdbc": {"url": URL, "table": "t", "query": "q"}}, "give either a table or a query"),
        ({"jdbc": {"url": URL, "tabel": "t"}}, "did you mean 'table'"),
        ({"jdbc": {"table": "t"}}, "url"),
        ({"jdbc": {"url": 5, "table": "t"}}, "must be a text"),
        ({"jdbc": {"url": "postgresql://db/shop", "table": "t"}}, "jdbc:"),
        (
            {"jdbc": {"url": URL, "table": "t", "options": {"dbtable": "u"}}},
            "'dbtable' is not an option",
        ),
    ],
)
def test_mistakes_are_named_with_the_right_word(data: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        source_from_json(data)


@pytest.mark.parametrize(
    "url",
    [
        URL + "?user=me&password=hunter2",
        URL + "?sslpassword=hunter2",
        "jdbc:sqlserver://db:1433;database=shop;user=me;password=hunter2;",
        "jdbc:postgresql://me:hunter2@db/shop",
        "jdbc:mysql://address=(host=db)(user=me)(password=hunter2)/shop",
        "jdbc:oracle:thin:me/hunter2@db:1521/shop",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInputError, match="password_env") as caught:
        Jdbc(url=url, table="t")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {"jdbc": {"url": URL, "table": "t", "options": {"password": "hunter2"}}},
        {"files": {"paths": "a.csv", "options": {"fs.s3a.secret.key": "hunter2"}}},
        {"files": "s3a://key:hunter2@bucket/a.csv"},
    ],
)
def test_source_with_secrets_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        source_from_json(data)
    assert "hunter2" not in str(caught.value)
