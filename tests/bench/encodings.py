"""Fresh files by the encoding of their columns.

It is chosen by a sample, as Opal does; plain; or in dictionaries, Parquet's default.

python -m tests.bench.encodings [--rows 1000,10000,50000,500000] [--rounds 9]
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from opal_lake.data import data_file
from opal_lake.data.columns import physical_schema
from opal_lake.data.encodings import Encodings, plan_encodings
from opal_lake.definition.table_spec import TableSpec
from tests.opal_stream.orders import new_spec, order


def without_dictionaries(table: pa.Table, *, may_be_dense: bool = False) -> Encodings:
    return replace(plan_encodings(table, may_be_dense=may_be_dense), dictionary=())


def in_dictionaries(table: pa.Table, *, may_be_dense: bool = False) -> Encodings:
    return replace(
        plan_encodings(table, may_be_dense=may_be_dense),
        dictionary=tuple(table.column_names),
        delta=(),
    )


WAYS: dict[str, Callable[..., Encodings]] = {
    "by a sample": plan_encodings,
    "without dictionaries": without_dictionaries,
    "in dictionaries": in_dictionaries,
}


def fresh_rows(spec: TableSpec, rows: int) -> pa.Table:
    """Orders of random keys, as a flush of a stream encodes them."""
    keys = np.random.default_rng(1).integers(0, max(rows, 4), rows)
    table = pa.Table.from_pylist([order(int(key), moment) for moment, key in enumerate(keys)])
    named = {field.name: field.physical for field in spec.schema.fields}
    table = table.rename_columns([named.get(name, name) for name in table.column_names])
    schema = physical_schema(spec)
    return pa.Table.from_arrays(
        [
            table[it.name] if it.name in table.column_names else pa.nulls(rows, it.type)
            for it in schema
        ],
        schema.names,
    ).cast(schema)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1000,10000,50000,500000")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    spec = new_spec()
    for rows in map(int, given.rows.split(",")):
        table, took_ms, size = fresh_rows(spec, rows), defaultdict[str, list[float]](list), {}
        for _ in range(given.rounds):
            for name, way in WAYS.items():
                data_file.plan_encodings = way  # type: ignore[attr-defined, assignment]
                began = time.perf_counter()
                size[name] = len(data_file.encode_file(table, spec).data)
                took_ms[name].append(1e3 * (time.perf_counter() - began))
        sampled = statistics.median(took_ms["by a sample"])
        for name in WAYS:
            median = statistics.median(took_ms[name])
            print(
                f"{rows:>9,} rows {name:>21}: {median:8.2f} ms, {median / sampled:5.2f}x, "
                f"{size[name] / rows:6.1f} bytes a row",
                flush=True,
            )


if __name__ == "__main__":
    main()
