"""Key hashes: no two keys share their bytes, and the bytes never change."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opal_lake.definition.key_hash import canonical_bytes, given_keys, hash_keys, hashes_from_bytes
from opal_lake.definition.schema import Atomic, arrow_type
from opal_lake.definition.table_spec import KEY_TYPES
from opal_lake.errors import InvalidInputError

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "key_hashes.json").read_text(encoding="utf-8")
)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-128, 127),
    "long": LONG,
    "string": st.text(
        st.characters(exclude_categories=["Cs"]) | st.sampled_from("0123456789:,-sn"), max_size=12
    ),
    "binary": st.binary(max_size=6) | st.sampled_from([b"1:", b"0:0:", b"5,"]),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(7,3)": st.decimals(-9999, 9999, places=3),
    "decimal(38,38)": st.decimals("-0.99", "0.99", places=38),
    "decimal(38,0)": st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
}
KEYS = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4).flatmap(
    lambda names: st.tuples(st.just(names), st.tuples(*(VALUES[name] for name in names)))
)


def types(*names: str) -> list[Atomic]:
    return [Atomic(name=name) for name in names]


def column(name: str, *values: Any) -> pa.Array:
    return pa.array(values, arrow_type(Atomic(name=name)))


def key_bytes(names: list[str], values: tuple[Any, ...]) -> bytes:
    columns = [column(name, value) for name, value in zip(names, values, strict=True)]
    result: bytes = canonical_bytes(columns, types(*names))[0].as_py()
    return result


def decode(key: bytes) -> list[tuple[str, bytes]]:
    """Read the grammar of the module's docstring from the left, by the bytes of the key alone."""
    tags, rest = key.split(b":", 1)
    fields = []
    for number, tag in enumerate(tags.decode(), start=1):
        if number == len(tags):
            field, rest = rest, b""
        elif tag in "sx":
            length, rest = rest.split(b":", 1)
            field, rest = rest[: int(length)], rest[int(length) :]
        else:
            field, rest = rest.split(b",", 1)
        fields.append((tag, field))
    return fields


def meaning(name: str, value: Any) -> tuple[str, Any]:
    match name, value:
        case "string", text:
            return "s", text.encode()
        case "binary", data:
            return "x", data
        case "boolean", flag:
            return "b", int(flag)
        case "date", day:
            return "d", day.toordinal() - date(1970, 1, 1).toordinal()
        case (("timestamp" | "timestamp_ntz"), moment):
            past = moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
            return ("t" if name == "timestamp" else "w"), (
                past.days * 86400 + past.seconds
            ) * 1_000_000 + past.microseconds
    return "n", Decimal(value)


def parsed(tag: str, field: bytes) -> Any:
    if tag in "sx":
        return field
    return Decimal(field.decode()) if tag == "n" else int(field)


@given(KEYS)
def test_a_key_can_be_read_back_from_its_bytes_so_that_no_two_keys_share_them(
    key: tuple[list[str], tuple[Any, ...]],
) -> None:
    names, values = key
    read = decode(key_bytes(names, values))
    assert [(tag, parsed(tag, field)) for tag, field in read] == [
        meaning(*pair) for pair in zip(names, values, strict=True)
    ]


@given(VALUES["decimal(7,3)"])
def test_a_number_has_one_text(number: Decimal) -> None:
    text = key_bytes(["decimal(7,3)"], (number,))[2:].decode()
    assert text == (f"{number:.3f}".rstrip("0").rstrip(".") if number else "0")


@given(KEYS)
def test_hash_of_a_given_key_is_the_begin_of_its_sha256(
    key: tuple[list[str], tuple[Any, ...]],
) -> None:
    names, values = key
    digest = sha256(key_bytes(names, values)).digest()
    assert tuple(hash_keys(given_keys([values], types(*names)), types(*names))[0].tolist()) == (
        int.from_bytes(digest[:8], "big"),
        int.from_bytes(digest[8:16], "big"),
    )


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: "-".join(case["types"]))
def test_golden_hashes_never_change(case: dict[str, Any]) -> None:
    values = [
        bytes.fromhex(value) if name == "binary" else value
        for name, value in zip(case["types"], case["values"], strict=True)
    ]
    high, low = hash_keys(given_keys([values], types(*case["types"])), types(*case["types"]))[
        0
    ].tolist()
    assert (
        f"{high:016x}{low:016x}"
        == case["hash"]
        == sha256(case["bytes"].encode("latin-1")).hexdigest()[:32]
    )


def test_golden_hashes_cover_every_key_type() -> None:
    assert {name for case in GOLDEN for name in case["types"]} >= set(KEY_TYPES)


def test_widening_a_column_keeps_its_hashes() -> None:
    names = ["byte", "short", "integer", "long", "decimal(5,0)", "decimal(5,2)", "decimal(38,20)"]
    assert (
        len({tuple(hash_keys(given_keys([(-7,)], types(name)), types(name))[0]) for name in names})
        == 1
    )


def test_equal_looking_values_of_different_types_have_different_hashes() -> None:
    number, text = pa.array([1]), pa.array(["1"])
    keys = [([number], [name]) for name in ("long", "date", "timestamp", "timestamp_ntz")]
    keys += [([text], ["string"]), ([text], ["binary"]), ([pa.array([True])], ["boolean"])]
    assert len(
        {canonical_bytes(columns, types(*names))[0].as_py() for columns, names in keys}
    ) == len(keys)


@pytest.mark.parametrize(
    "name,physical,values",
    [
        (
            "timestamp",
            pa.int64(),
            [
                datetime(1, 1, 1, tzinfo=UTC),
                datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            ],
        ),
        (
            "timestamp_ntz",
            pa.int64(),
            [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)],
        ),
        ("date", pa.int32(), [date(1, 1, 1), date(9999, 12, 31)]),
    ],
)
def test_integers_of_orc_files_hash_as_their_dates_and_times(
    name: str, physical: pa.DataType, values: list[Any]
) -> None:
    logical = column(name, *values)
    assert np.array_equal(
        hash_keys([logical.cast(physical)], types(name)), hash_keys([logical], types(name))
    )


def test_slices_and_chunks_hash_like_whole_arrays() -> None:
    names = ["string", "decimal(7,3)", "boolean", "date"]
    rows = [("a" * row, Decimal(row) / 8, row % 2 == 0, date(2026, 1, 1 + row)) for row in range(9)]
    columns = [
        column(name, *values) for name, values in zip(names, zip(*rows, strict=True), strict=True)
    ]
    whole = hash_keys(columns, types(*names))
    assert np.array_equal(
        hash_keys([item.slice(3, 4) for item in columns], types(*names)), whole[3:7]
    )
    chunked = [pa.chunked_array([item.slice(0, 2), item.slice(2)]) for item in columns]
    assert np.array_equal(hash_keys(chunked, types(*names)), whole)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_empty_column_has_no_hashes(name: str) -> None:
    for empty in (column(name), pa.chunked_array([], arrow_type(Atomic(name=name)))):
        assert hash_keys([empty], types(name)).shape == (0, 2)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_null_is_not_a_key(name: str) -> None:
    with pytest.raises(InvalidInputError, match="key column 2 is null in 1 of 1 rows"):
        hash_keys([pa.array([1]), column(name, None)], types("long", name))


@pytest.mark.parametrize(
    "values,names,message",
    [
        ((1,), ("long", "long"), "the key has 2 columns"),
        ((None,), ("long",), "is not a valid BIGINT"),
        ((True,), ("long",), "key value 1"),
        (("1.5",), ("decimal(3,0)",), "key value 1"),
        ((Decimal("0.001"),), ("decimal(7,2)",), "finer than the column"),
        ((10**6,), ("decimal(7,2)",), "too large"),
        (("1E5",), ("decimal(7,2)",), "plain digits"),
        ((1,), ("string",), "value of type str"),
        (("1",), ("binary",), "value of type bytes"),
        ((1,), ("boolean",), "value of type bool"),
        ((datetime(2026, 1, 1),), ("timestamp",), "has no zone"),
        ((1.0,), ("double",), "key value 1"),
    ],
)
def test_a_key_that_no_row_can_have_is_refused(
    values: tuple[Any, ...], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        hash_keys(given_keys([values], types(*names)), types(*names))


def test_types_without_exact_equality_cannot_be_keys() -> None:
    with pytest.raises(InvalidInputError, match="type DOUBLE cannot be a key"):
        canonical_bytes([pa.array([1.0])], types("double"))
    with pytest.raises(InvalidInputError, match="at least one"):
        canonical_bytes([], [])


@pytest.mark.parametrize(
    "shape",
    [
        lambda hashes: hashes,
        lambda hashes: hashes.cast(pa.large_binary()),
        lambda hashes: hashes.cast(pa.binary(16)),
        lambda hashes: pa.chunked_array([hashes.slice(0, 2), hashes.slice(2, 0), hashes.slice(2)]),
    ],
    ids=["binary", "large", "fixed", "chunked"],
)
def test_hashes_from_spark_equal_those_of_hash_keys(shape: Callable[[pa.Array], Any]) -> None:
    expected = hash_keys([pa.array(range(6))], types("long"))
    shipped = shape(pa.array([sha256(f"n:{key}".encode()).digest()[:16] for key in range(6)]))
    assert np.array_equal(hashes_from_bytes(shipped), expected)
    assert np.array_equal(hashes_from_bytes(shipped.slice(1, 4)), expected[1:5])
    assert hashes_from_bytes(shipped.slice(6)).shape == (0, 2)


@pytest.mark.parametrize("hashes", [[b"short"], [b"x" * 15, b"x" * 17], [None]])
def test_hashes_of_another_length_are_refused(hashes: list[bytes | None]) -> None:
    with pytest.raises(InvalidInputError, match=r"key hash"):
        hashes_from_bytes(pa.array(hashes, pa.binary()))
