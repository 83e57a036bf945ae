"""Messages become the same rows in Spark's tasks as without Spark."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from opal_lake.definition.table_spec import TableLayout, plan_spec
from opal_spark.engine.failures import as_opal_error
from opal_spark.streams.decode import Met, decoded_rows, met_in
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoder
from opal_stream.operations.reading import FormatOptions
from tests.fixtures_kafka import Registry
from tests.opal_spark.streams.messages import frame
from tests.opal_stream.formats.build import FIRST, avro, record
from tests.opal_stream.orders import batch, new_spec, order

pytestmark = pytest.mark.spark


def met(spark: SparkSession, decoder: Decoder, messages: MessageBatch) -> Met:
    with pytest.raises(Exception, match="the driver must decide about a message") as failure:
        decoded_rows(frame(spark, messages).coalesce(1), decoder).collect()
    unknown = met_in(str(as_opal_error(failure.value)))
    assert unknown is not None
    return unknown


def test_rows_bad_messages_tombstones_and_message_columns_are_those_of_a_stream_without_spark(
    spark: SparkSession,
) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("of.day", pa.date32()),
            ("price", pa.decimal128(9, 2)),
            ("op", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("place", pa.int64()),
            ("trace", pa.string()),
            ("local", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())),
        ]
    )
    spec = plan_spec(schema, TableLayout(keys=["id"], delta="at", deletes="op = 'D'"))
    options = FormatOptions(
        columns={"place": "@offset", "trace": "@header.trace"}, on_new_columns="ignore"
    )
    values = [
        {
            "id": 1,
            "of.day": "2026-11-25",
            "price": 1.25,
            "at": 1_700_000_000_123,
            "local": "2026-11-25 01:02:03",
            "tags": ["a", "b"],
        },
        b"nope",
        {"id": 2, "at": "2026-11-25T01:02:03Z", "op": "D", "other": 1},
        None,
        {"id": None, "at": 5},
    ]
    messages = batch(
        values,
        keys=[None, None, None, b"7", None],
        headers=[[("trace", b"x"), ("trace", b"y")], [], [], [], []],
    )
    expected = Decoder(spec, options).decode(messages).rows
    rows = decoded_rows(frame(spark, messages).coalesce(1), Decoder(spec, options))
    assert rows.columns == expected.column_names
    assert rows.toArrow().cast(expected.schema).to_pylist() == expected.to_pylist()


def test_a_task_names_columns_that_the_table_lacks_and_the_driver_is_to_decide(
    spark: SparkSession,
) -> None:
    unknown = met(
        spark,
        Decoder(new_spec(), FormatOptions()),
        batch([order(1), order(2, colour="red", size=1)]),
    )
    assert (unknown.source, unknown.names, unknown.columns) == (
        "orders/3@101",
        ("colour", "size"),
        pa.schema([("colour", pa.string()), ("size", pa.int64())]),
    )


def test_a_task_names_members_that_a_nested_column_lacks(spark: SparkSession) -> None:
    spec = new_spec(
        id=pa.int64(),
        op=pa.string(),
        at=pa.timestamp("us", "UTC"),
        address=pa.struct([("city", pa.string())]),
    )
    values = [
        {"id": 1, "at": 5, "address": {"city": "x"}},
        {"id": 2, "at": 5, "address": {"zip": "1"}},
    ]
    unknown = met(spark, Decoder(spec, FormatOptions()), batch(values))
    assert (unknown.source, unknown.names, unknown.paths) == ("orders/3@101", (), ("address.zip",))


def test_a_task_names_the_heads_of_a_message_with_new_schemas_until_the_driver_has_learned_them(
    spark: SparkSession, registry: Registry
) -> None:
    registry.register(1, FIRST)
    registry.register(2, "long", "orders-key")
    decoder = Decoder(new_spec(), FormatOptions(format="avro", registry=registry.url))
    value, key = avro(1, FIRST, record(1)), avro(2, "long", 7)
    messages = batch([value, None], keys=[None, key])
    unknown = met(spark, decoder, messages)
    assert (unknown.source, unknown.value_head, unknown.key_head) == (
        "orders/3@100",
        value[:5],
        None,
    )
    decoder.learn(unknown.value_head, unknown.key_head)
    unknown = met(spark, decoder, messages)
    assert (unknown.source, unknown.value_head, unknown.key_head) == ("orders/3@101", None, key[:5])
    decoder.learn(unknown.value_head, unknown.key_head)
    rows = decoded_rows(frame(spark, messages).coalesce(1), decoder).collect()
    assert sorted(row.id for row in rows) == [1, 7]
    assert registry.asked == [1, 2], "tasks ask for no schema that the driver has"


def test_other_errors_hold_nothing_to_decide() -> None:
    assert met_in("a message cannot go into the table: {}") is None
