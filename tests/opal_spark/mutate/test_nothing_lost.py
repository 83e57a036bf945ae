"""No member, value or row of an increment is lost, moved or changed silently."""

import json
from pathlib import Path
from random import Random

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from opal_lake.errors import InvalidInputError
from opal_spark.mutate import read_master
from opal_spark.mutate.record import several_values
from tests.fixtures_spark import need_spark_parts
from tests.opal_spark.mutate.folders import put, run

AB = pa.struct([("a", pa.int32()), ("b", pa.int32())])
BA = pa.struct([("b", pa.int32()), ("a", pa.int32())])
ABC = pa.struct([*AB, ("c", pa.int32())])
JSON_MASTER = '{"id": 1, "s": {"a": 1}, "l": [{"q": 1}]}\n'


def rows_of(spark: SparkSession, folder: Path) -> list[dict[str, object]]:
    rows = read_master(spark, str(folder / "master")).orderBy("id").collect()
    return [row.asDict(recursive=True) for row in rows]


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "line, said",
    [
        ('{"id": 2, "s": {"a": 1, "zz": 2}}', "unknown key 'zz' in column 's'"),
        ('{"id": 2, "l": [{"q": 1}, {"zz": 2}]}', "unknown key 'zz' in column 'l.element'"),
        ('{"id": 2, "s": {"A": 99}}', "unknown key 'A' in column 's'"),
        ('{"id": 2, "s": {"a": 1, "a": 2}}', "the line is not plain JSON, or has a key twice"),
        ('{"id": 2} {"id": 3}', "more than one JSON value on a line"),
        ('{"id": 2}, {"id": 3}', "more than one JSON value on a line"),
        ('{"id": 2} and more', "more than one JSON value on a line"),
        ('{"id": 2}],[{"id": 3}', "more than one JSON value on a line"),
        ('{"id": 2}]', "more than one JSON value on a line"),
        ('{"id": 2} ]garbage', "more than one JSON value on a line"),
    ],
)
def test_json_text_that_spark_ignores_makes_the_row_bad(
    spark: SparkSession, tmp_path: Path, line: str, said: str
) -> None:
    put(tmp_path / "master" / "a.json", JSON_MASTER)
    good = '{"id": 9, "s": {"a": null}, "l": [null, {"q": null}, {}]}'
    put(tmp_path / "incr" / "1.json", f"{good}\n{line}\n")
    with pytest.raises(InvalidInputError, match=rf"1\.json, line 2: {said}.*Nothing was changed"):
        run(spark, tmp_path, ids=["id"])
    counts = run(spark, tmp_path, ids=["id"], on_bad_rows="quarantine").counts
    assert (counts["inserts"], counts["rejected"]) == (1, 1)
    [rejected] = (tmp_path / "master.mutate" / "rejected").rglob("*.json")
    aside = json.loads(rejected.read_text())
    assert (aside["line"], aside["reason"], aside["row"]) == (2, said, line)
    filled = {"id": 9, "s": {"a": None}, "l": [None, {"q": None}, {"q": None}]}
    assert rows_of(spark, tmp_path) == [json.loads(JSON_MASTER), filled]


def is_one_object(line: str) -> bool:
    """Return whether Python's reader of JSON takes the line as one object."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except ValueError:
        return False
    return isinstance(value, dict)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def test_a_line_is_one_value_exactly_if_python_reads_it_as_one(spark: SparkSession) -> None:
    random = Random(3)
    parts = ['{"id": 2}', '{"a]": [1, {}]}', *'{}[],:" 01', '"a"', '"a": 1', "null", "x", "\\", "]"]
    lines = {
        f'{{"id": {number}}}' + "".join(random.choices(parts, k=random.randint(0, 6)))
        for number in range(3_000)
    }
    lines |= {"".join(random.choices(parts, k=random.randint(1, 8))) for _ in range(3_000)}
    lines = {line for line in lines if line.strip().startswith("{")}
    given = spark.createDataFrame([(line,) for line in sorted(lines)], ["line"])
    judged = given.select("line", several_values(F.col("line"))).collect()
    assert [line for line, several in judged if several == is_one_object(line)] == []
    assert sum(not several for _, several in judged) > 100


def test_values_within_json_are_not_rounded(spark: SparkSession, tmp_path: Path) -> None:
    schema = "id INT, s STRUCT<a: DECIMAL(9,2)>, m MAP<STRING, INT>"
    put(tmp_path / "master" / "a.json", '{"id": 1, "s": {"a": 1.25}, "m": {"x": 1}}\n')
    put(tmp_path / "incr" / "1.json", '{"id": 2, "s": {"a": 1.239}}\n')
    with pytest.raises(InvalidInputError, match=r"column 's\.a' is not a valid DECIMAL\(9,2\)"):
        run(spark, tmp_path, ids=["id"], schema=schema)
    put(tmp_path / "incr" / "1.json", '{"id": 2, "s": {"a": 1.5}, "m": {"y": 2}}\n')
    run(spark, tmp_path, ids=["id"], schema=schema)
    assert [(str(row["s"]["a"]), row["m"]) for row in rows_of(spark, tmp_path)] == [
        ("1.25", {"x": 1}),
        ("1.50", {"y": 2}),
    ]


@pytest.mark.parametrize(
    "line, said",
    [
        ('{"id": 2} {"id": 3}', "more than one JSON value on a line"),
        ('{"id": 2, "s": {"a": 1.239}}', "column 's.a' is not a valid DECIMAL"),
        ('{"id": 2, "s": {"a": 1, "zz": 1}}', "unknown key 'zz' in column 's'"),
        ('{"id": 2, "s": {"a": 1, "a": 2}}', "the line is not plain JSON, or has a key twice"),
    ],
)
def test_json_of_a_master_that_would_be_lost_is_left_alone(
    spark: SparkSession, tmp_path: Path, line: str, said: str
) -> None:
    text = f'{{"id": 1, "s": {{"a": 1}}}}\n\n{line}\n'
    put(tmp_path / "master" / "a.json", text)
    put(tmp_path / "incr" / "1.json", '{"id": 9}\n')
    schema = "id INT, s STRUCT<a: DECIMAL(9,2)>"
    with pytest.raises(InvalidInputError, match=rf"a\.json, line 3: .*{said}"):
        run(spark, tmp_path, ids=["id"], schema=schema)
    assert (tmp_path / "master" / "a.json").read_text() == text


def put_nested(path: Path, number: int, kind: pa.StructType, *, within: str = "struct") -> None:
    """Write a row of Parquet or Avro whose members hold the numbers of their letters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [kind.field(at).name for at in range(kind.num_fields)]
    members: object = {name: "abc".index(name) + 1 for name in names}
    if path.suffix == ".avro":
        need_spark_parts()
        record = {
            "type": "record",
            "name": "s",
            "fields": [{"name": n, "type": "int"} for n in names],
        }
        fields = [{"name": "id", "type": "int"}, {"name": "s", "type": record}]
        with path.open("wb") as file:
            schema = {"type": "record", "name": "row", "fields": fields}
            fastavro.writer(file, schema, [{"id": number, "s": members}])
        return
    whole: pa.DataType = kind
    if within == "list":
        members, whole = [members], pa.list_(kind)
    if within == "map":
        members, whole = [("key", members)], pa.map_(pa.string(), kind)
    ids = pa.array([number], pa.int32())
    pq.write_table(pa.table({"id": ids, "s": pa.array([members], whole)}), path)


@pytest.mark.slow_but_one
@pytest.mark.parametrize("kind", [ABC, BA, pa.struct([("a", pa.int32())])], ids=str)
@pytest.mark.parametrize(
    "ending, within, path",
    [
        ("parquet", "struct", "s"),
        ("parquet", "list", "s.element"),
        ("parquet", "map", "s.value"),
        ("avro", "struct", "s"),
    ],
)
def test_members_of_columnar_increments_are_the_master_s(
    spark: SparkSession,
    tmp_path: Path,
    kind: pa.StructType,
    ending: str,
    within: str,
    path: str,
) -> None:
    put_nested(tmp_path / "master" / f"a.{ending}", 1, AB, within=within)
    put_nested(tmp_path / "incr" / f"b.{ending}", 2, kind, within=within)
    said = rf"files of its form: column '{path}' has the fields \[.*\] instead of \['a', 'b'\]"
    with pytest.raises(InvalidInputError, match=said):
        run(spark, tmp_path, ids=["id"])
    put_nested(tmp_path / "incr" / f"b.{ending}", 2, AB, within=within)
    assert run(spark, tmp_path, ids=["id"]).counts["inserts"] == 1


@pytest.mark.parametrize("kind", [BA, ABC], ids=str)
def test_files_of_an_avro_master_have_the_same_members(
    spark: SparkSession, tmp_path: Path, kind: pa.StructType
) -> None:
    put_nested(tmp_path / "master" / "a.avro", 1, AB)
    put_nested(tmp_path / "master" / "b.avro", 2, kind)
    put(tmp_path / "incr" / "del_c.csv", "id\n1\n")
    said = r"master/[ab]\.avro: column 's' has the fields \[.*\] instead of"
    with pytest.raises(InvalidInputError, match=said):
        run(spark, tmp_path, ids=["id"], delete_prefix="del_")
    with pytest.raises(InvalidInputError, match=said):
        read_master(spark, str(tmp_path / "master"))


@pytest.mark.slow_but_one
@pytest.mark.parametrize(
    "ending, schema, lost",
    [
        ("parquet", "id INT, s STRUCT<a: INT, b: INT>", "s.c"),
        ("parquet", "id INT", "s"),
        ("avro", "id INT", "s"),
    ],
)
def test_a_schema_that_lacks_fields_of_the_master_is_refused(
    spark: SparkSession, tmp_path: Path, ending: str, schema: str, lost: str
) -> None:
    put_nested(tmp_path / "master" / f"a.{ending}", 1, ABC)
    put(tmp_path / "incr" / "1.json", '{"id": 2}\n')
    said = rf"the master has fields that schema= \(--schema\) lacks: {lost}\. .*Nothing was changed"
    with pytest.raises(InvalidInputError, match=said):
        run(spark, tmp_path, ids=["id"], schema=schema)
    assert (tmp_path / "master" / f"a.{ending}").exists()


OP_MASTER = {
    "csv": "id,kind,at\n1,I,1\n2,I,1\n",
    "json": '{"id": "1", "kind": "I"}\n{"id": "2", "kind": "I"}\n',
}
OP_DELETE = {"csv": "id,kind,at\n1,D,2\n", "json": '{"id": "1", "kind": "D"}\n'}


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_an_operation_field_that_no_record_has_is_refused(
    spark: SparkSession, tmp_path: Path, ending: str
) -> None:
    if ending == "parquet":
        for folder, kind in (("master", "I"), ("incr", "D")):
            (tmp_path / folder).mkdir()
            table = pa.table({"id": ["1"], "kind": [kind]})
            pq.write_table(table, tmp_path / folder / "a.parquet")
    else:
        put(tmp_path / "master" / f"a.{ending}", OP_MASTER[ending])
        put(tmp_path / "incr" / f"a.{ending}", OP_DELETE[ending])
    for op_field in ("kin", "KIND"):
        said = rf"names the field '{op_field}', .*; known are id, kind"
        with pytest.raises(InvalidInputError, match=said):
            run(spark, tmp_path, ids=["id"], op_field=op_field)
        with pytest.raises(InvalidInputError, match=said):
            run(spark, tmp_path, ids=["id"], op_field=op_field, dry_run=True)
    assert run(spark, tmp_path, ids=["id"], op_field="kind").counts["deletes"] == 1


def test_an_operation_field_that_only_some_increments_have_is_accepted(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.json", '{"id": "1"}\n{"id": "2"}\n')
    put(tmp_path / "incr" / "1.json", '{"id": "3"}\n{"id": "2", "op": "D"}\n')
    counts = run(spark, tmp_path, ids=["id"], op_field="op").counts
    assert (counts["inserts"], counts["deletes"]) == (1, 1)
    put(tmp_path / "incr" / "del_2.csv", "id\n1\n")
    arguments = {"ids": ["id"], "op_field": "op", "delete_prefix": "del_"}
    assert run(spark, tmp_path, **arguments).counts["deletes"] == 1


def test_an_operation_field_without_deletes_is_accepted(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "master" / "a.csv", "id,v\n1,x\n")
    put(tmp_path / "incr" / "1.csv", "id,v,op\n1,y,U\n")
    assert run(spark, tmp_path, ids=["id"], op_field="op").counts["updates"] == 1
