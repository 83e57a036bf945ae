"""Avro: files whose schemas differ, types that Avro lacks, and files that are none."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from opal_lake.errors import InvalidInputError
from opal_spark.mutate import read_master
from tests.fixtures_spark import need_spark_parts
from tests.opal_spark.mutate.folders import put, put_avro, run


@pytest.mark.slow
def test_files_of_several_schemas_are_merged_and_types_that_avro_lacks_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Files differ in the order of fields, in a narrower type, and in a missing field.

    The merge runs twice, so that written files are read.
    """
    put_avro(
        tmp_path / "master" / "shop=01" / "a.avro",
        {"id": "int", "size": "int"},
        [{"id": 1, "size": 5}, {"id": 2, "size": 5}],
    )
    put_avro(
        tmp_path / "master" / "shop=02" / "b.avro",
        {"note": "string", "id": "long"},
        [{"id": 3, "note": "x"}],
    )
    put_avro(
        tmp_path / "incr" / "1.avro",
        {"shop": "string", "size": "int", "id": "int", "note": "string"},
        [{"id": 1, "shop": "02", "size": 6}],
    )
    put_avro(
        tmp_path / "incr" / "2.avro",
        {"id": "long", "note": "string", "size": "long", "shop": "string"},
        [{"id": 4, "shop": "01", "size": 7}],
    )
    arguments = {"ids": ["id"], "schema": "id BIGINT, size SMALLINT, note STRING, shop STRING"}
    counts = run(spark, tmp_path, **arguments).counts
    assert (counts["updates"], counts["inserts"], counts["files_replaced"]) == (1, 1, 2)
    put_avro(tmp_path / "incr" / "del.avro", {"id": "int"}, [{"id": 3}])
    assert run(spark, tmp_path, **arguments, delete_prefix="del").counts["deletes"] == 1
    rows = read_master(spark, str(tmp_path / "master")).orderBy("id").collect()
    assert [(row.id, row["size"], row.note, row.shop) for row in rows] == [
        (1, 6, None, "02"),
        (2, 5, None, "01"),
        (4, 7, None, "01"),
    ]


@pytest.mark.parametrize(
    "name, data, said",
    [
        (
            "text.avro",
            b"id,v\n1,a\n",
            r"^{incr}/text\.avro is not an Avro file, or is damaged: .* begins with b'id,v'",
        ),
        (
            "cut.avro",
            b"Obj\x01\x04\x16avro.schema",
            r"^{incr}/cut\.avro is not an Avro file, or is damaged: its header is cut off",
        ),
    ],
)
def test_a_file_that_is_not_avro_fails_before_anything_is_replaced(
    spark: SparkSession, tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    old = put_avro(
        tmp_path / "master" / "a.avro", {"id": "int", "v": "string"}, [{"id": 1, "v": "old"}]
    )
    (tmp_path / "incr").mkdir()
    (tmp_path / "incr" / name).write_bytes(data)
    with pytest.raises(
        InvalidInputError, match=said.replace("{incr}", re.escape(str(tmp_path / "incr")))
    ):
        run(spark, tmp_path, ids=["id"])
    assert old.exists()
    assert (tmp_path / "incr" / name).read_bytes() == data


def test_fields_and_ids_are_checked_as_in_other_formats(
    spark: SparkSession, tmp_path: Path
) -> None:
    put_avro(tmp_path / "master" / "a.avro", {"id": "int", "v": "string"}, [{"id": 1, "v": "old"}])
    bad = put_avro(
        tmp_path / "incr" / "1.avro", {"id": "int", "w": "string"}, [{"id": 1, "w": "new"}]
    )
    with pytest.raises(
        InvalidInputError, match=r"1\.avro.* unknown field 'w'.* field 'v' is missing"
    ):
        run(spark, tmp_path, ids=["id"])
    put_avro(bad, {"id": "int", "v": "string"}, [{"id": None, "v": "new"}])
    with pytest.raises(InvalidInputError, match=r"1\.avro: the id 'id' is missing"):
        run(spark, tmp_path, ids=["id"])


def test_a_name_that_avro_cannot_hold_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    need_spark_parts()
    put(tmp_path / "incr" / "1.csv", "id,first name\n1,a\n")
    for dry_run in (True, False):
        with pytest.raises(
            InvalidInputError,
            match=r"Avro cannot hold a field called 'first name'.*Nothing was changed",
        ):
            run(spark, tmp_path, ids=["id"], output_format="avro", dry_run=dry_run)
    assert (tmp_path / "incr" / "1.csv").exists()
