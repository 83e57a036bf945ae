"""Types of values without a schema."""

import pyarrow as pa

from opal_stream.formats.schemas.inferred import inferred_columns, plain_type


def test_inferred_times_are_text_and_null_members_are_not_columns() -> None:
    assert plain_type(pa.timestamp("s")) == pa.string()
    assert plain_type(
        pa.struct([("a", pa.null()), ("b", pa.list_(pa.timestamp("s")))])
    ) == pa.struct([("b", pa.list_(pa.string()))])
    assert plain_type(pa.list_(pa.null())) is None
    new = inferred_columns({"x": pa.array([None, 1]), "y": pa.array([2.5, 1.5]), "z": pa.nulls(2)})
    assert new is not None
    assert new.columns == pa.schema([("x", pa.int64()), ("y", pa.float64())])
    assert new.names == {0: ("y",), 1: ("x", "y")}
    assert inferred_columns({"z": pa.nulls(2)}) is None
