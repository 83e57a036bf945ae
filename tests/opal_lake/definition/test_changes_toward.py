"""The changes that lead from a table's columns to those of a schema."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from opal_lake.definition.changes.apply import changed
from opal_lake.definition.changes.toward import WantedColumns, changes_toward
from opal_lake.definition.schema import Field, Struct, arrow_schema, type_name
from opal_lake.definition.sql_schema import arrow_of_sql
from opal_lake.definition.table_spec import TableLayout, TableSpec, plan_spec
from opal_lake.errors import InvalidInputError

CREATED = (
    "id BIGINT, total DECIMAL(10,2), place STRUCT<city: STRING, zip: INT>, n INT, at TIMESTAMP"
)


def spec_of(schema: str) -> TableSpec:
    return plan_spec(arrow_of_sql(schema), TableLayout(keys=["id"], delta="at"))


def led(
    spec: TableSpec,
    schema: str,
    renamed: Mapping[str, str] | None = None,
    dropped: Sequence[str] = (),
) -> tuple[TableSpec, list[dict[str, Any]], list[str]]:
    """Return the spec after the changes toward a schema, the changes, and the notes."""
    wanted = WantedColumns(columns=arrow_of_sql(schema), renamed=renamed or {}, dropped=dropped)
    changes, notes = changes_toward(spec.schema, wanted)
    after = changed(spec, changes)[0] if changes else spec
    assert changes_toward(after.schema, wanted)[0] == []  # once is enough
    return after, [change.to_json() for change in changes], notes


def columns_of(spec: TableSpec) -> list[tuple[str, str]]:
    return [(field.name, type_name(field.type)) for field in spec.schema.fields]


def test_a_schema_adds_renames_widens_and_drops() -> None:
    spec = spec_of(CREATED)
    schema = (
        "id BIGINT, amount DECIMAL(12,2), note STRING, "
        "place STRUCT<street: STRING, town: STRING>, n BIGINT, at TIMESTAMP"
    )
    after, changes, notes = led(
        spec, schema, {"amount": "total", "place.town": "city"}, ["place.zip"]
    )
    assert arrow_schema(after.schema) == arrow_of_sql(schema)
    assert changes == [
        {"rename": "total", "to": "amount"},
        {"widen": "amount", "type": "DECIMAL(12,2)"},
        {"add": "note", "type": "STRING", "after": "amount"},
        {"add": "place.street", "type": "STRING", "first": True},
        {"rename": "place.city", "to": "town"},
        {"drop": "place.zip"},
        {"widen": "n", "type": "BIGINT"},
    ]
    assert notes == []
    assert after.schema.field("amount").id == spec.schema.field("total").id


def test_members_of_a_renamed_struct_are_named_by_its_new_name() -> None:
    after, _, _ = led(
        spec_of(CREATED),
        "id BIGINT, total DECIMAL(10,2), spot STRUCT<town: STRING>, n INT, at TIMESTAMP",
        {"spot": "place", "spot.town": "city"},
        ["spot.zip"],
    )
    assert ("spot", "STRUCT<town: STRING>") in columns_of(after)


def test_lists_and_maps_are_compared_by_their_parts() -> None:
    spec = spec_of("id BIGINT, at TIMESTAMP, tags ARRAY<STRUCT<w: INT>>, m MAP<STRING, FLOAT>")
    wanted = "id BIGINT, at TIMESTAMP, tags ARRAY<STRUCT<w: BIGINT, x: INT>>, m MAP<STRING, DOUBLE>"
    _, changes, _ = led(spec, wanted)
    assert changes == [
        {"widen": "tags.element.w", "type": "BIGINT"},
        {"add": "tags.element.x", "type": "INT", "after": "w"},
        {"widen": "m.value", "type": "DOUBLE"},
    ]


def test_a_member_is_not_added_under_a_name_that_another_one_had() -> None:
    spec = spec_of("id BIGINT, at TIMESTAMP, place STRUCT<city: STRING>")
    wanted = "id BIGINT, at TIMESTAMP, place STRUCT<town: STRING>"
    renamed, _, _ = led(spec, wanted, {"place.town": "city"})
    with pytest.raises(InvalidInputError, match=r"'place.city', which the table calls 'town'"):
        led(renamed, "id BIGINT, at TIMESTAMP, place STRUCT<city: STRING>")


def test_names_in_another_case_are_the_same() -> None:
    assert led(spec_of("id BIGINT, at TIMESTAMP"), "ID BIGINT, At TIMESTAMP")[1] == []


def test_the_schema_of_before_a_widening_changes_nothing() -> None:
    widened, _, _ = led(
        spec_of("id BIGINT, n INT, at TIMESTAMP"), "id BIGINT, n BIGINT, at TIMESTAMP"
    )
    _, changes, notes = led(widened, "id BIGINT, n INT, at TIMESTAMP")
    assert (changes, notes) == ([], ["column 'n' stays BIGINT: it was widened"])


def test_a_column_that_was_added_stays_without_the_schema() -> None:
    added, _, _ = led(spec_of("id BIGINT, at TIMESTAMP"), "id BIGINT, extra INT, at TIMESTAMP")
    _, changes, notes = led(added, "id BIGINT, at TIMESTAMP")
    assert (changes, notes) == ([], ["column 'extra' stays, which the schema lacks"])


def test_a_column_is_new_after_a_drop() -> None:
    spec = spec_of("id BIGINT, n INT, at TIMESTAMP")
    without, _, _ = led(spec, "id BIGINT, at TIMESTAMP", dropped=["n"])
    again, _, notes = led(without, "id BIGINT, n STRING, at TIMESTAMP")
    assert again.schema.field("n").id > spec.schema.last_id
    assert notes == [
        "column 'n' is new: values of the dropped column of this name stay in older versions"
    ]


@pytest.mark.parametrize(
    "schema, renamed, dropped, message",
    [
        ("id BIGINT, n INT", {}, [], "the table has a column 'at', which the schema lacks"),
        ("id BIGINT, n INT, at TIMESTAMP", {}, ["n"], "dropped names 'n', which the schema has"),
        ("id BIGINT, n STRING, at TIMESTAMP", {}, [], "'n' is INT and cannot become STRING"),
        ("id BIGINT, n ARRAY<INT>, at TIMESTAMP", {}, [], "is INT, and the schema has ARRAY<INT>"),
        (
            "id BIGINT, m INT, at TIMESTAMP",
            {"m": "x"},
            ["n"],
            "neither 'm' nor its former name 'x'",
        ),
        ("id BIGINT, n INT, at TIMESTAMP", {"z": "n"}, [], "former name of 'z', which the schema"),
        (
            "id BIGINT, n INT, m INT, at TIMESTAMP",
            {"m": "n"},
            [],
            "former name 'n', which the schema has too",
        ),
        ("id BIGINT, at TIMESTAMP", {}, ["n.x y"], "the table has a column 'n'"),
        ("id BIGINT, n INT", {}, ["at"], "column 'at' cannot be dropped"),
    ],
)
def test_what_a_schema_cannot_say_is_an_error(
    schema: str, renamed: dict[str, str], dropped: list[str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        led(spec_of("id BIGINT, n INT, at TIMESTAMP"), schema, renamed, dropped)


def test_a_column_next_to_its_former_name_is_an_error() -> None:
    both, _, _ = led(
        spec_of("id BIGINT, at TIMESTAMP"), "id BIGINT, at TIMESTAMP, total INT, amount INT"
    )
    with pytest.raises(InvalidInputError, match="has both 'amount' and 'total', its former name"):
        led(both, "id BIGINT, at TIMESTAMP, amount INT", {"amount": "total"})


def test_a_former_name_is_no_new_column() -> None:
    renamed, _, _ = led(
        spec_of("id BIGINT, n INT, at TIMESTAMP"), "id BIGINT, m INT, at TIMESTAMP", {"m": "n"}
    )
    with pytest.raises(InvalidInputError, match="'n', which the table calls 'm' since"):
        led(renamed, "id BIGINT, n INT, m INT, at TIMESTAMP")


WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(5,1)": "DECIMAL(9,1)"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the model: `tag` stays the same through all changes."""

    name: str
    tag: int
    kind: "str | tuple[Column, ...]"

    @property
    def sql(self) -> str:
        if isinstance(self.kind, str):
            return f"{self.name} {self.kind}"
        return f"{self.name} STRUCT<{', '.join(member.sql for member in self.kind)}>"


class Model:
    """Columns that change at random, and what a schema cannot say about the last change."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.tags = count()
        self.columns = self._new_columns(depth=0)
        self.renamed: dict[str, str] = {}
        self.dropped: list[str] = []

    @property
    def schema(self) -> str:
        return ", ".join(["id BIGINT", "at TIMESTAMP", *(column.sql for column in self.columns)])

    def change(self) -> None:
        self.renamed, self.dropped = {}, []
        self.columns = self._changed(self.columns, "")

    def _new_columns(self, depth: int) -> tuple[Column, ...]:
        return tuple(self._new_column(depth) for _ in range(self.chance.randrange(1, 5)))

    def _new_column(self, depth: int) -> Column:
        tag = next(self.tags)
        kind: str | tuple[Column, ...] = self.chance.choice([*WIDER, "STRING", "BIGINT"])
        if depth < 2 and self.chance.random() < 0.3:
            kind = self._new_columns(depth + 1)
        return Column(name=f"c{tag}", tag=tag, kind=kind)

    def _changed(self, columns: tuple[Column, ...], parent: str) -> tuple[Column, ...]:
        after: list[Column] = []
        for column in columns:
            draw = self.chance.random()
            if draw > 0.85 and len(columns) > 1:
                self.dropped.append(f"{parent}{column.name}")
                continue
            if draw < 0.2:
                name = f"r{next(self.tags)}"
                self.renamed[f"{parent}{name}"] = column.name
                column = replace(column, name=name)
            after.append(self._with_other_kind(column, f"{parent}{column.name}."))
            if self.chance.random() < 0.2:
                after.append(self._new_column(depth=parent.count(".")))
        return tuple(after or [self._new_column(depth=2)])

    def _with_other_kind(self, column: Column, inside: str) -> Column:
        if not isinstance(column.kind, str):
            return replace(column, kind=self._changed(column.kind, inside))
        if self.chance.random() < 0.3:
            return replace(column, kind=WIDER.get(column.kind, column.kind))
        return column


def ids_of(fields: Sequence[Field], columns: Sequence[Column]) -> dict[int, int]:
    """Return the field id of each column of the model, by its tag."""
    ids: dict[int, int] = {}
    for field, column in zip(fields, columns, strict=True):
        ids[column.tag] = field.id
        if isinstance(field.type, Struct) and not isinstance(column.kind, str):
            ids |= ids_of(field.type.fields, column.kind)
    return ids


@pytest.mark.parametrize("seed", range(100))
def test_random_schemas_are_reached_and_columns_stay_themselves(seed: int) -> None:
    model = Model(seed)
    spec = spec_of(model.schema)
    known: dict[int, int] = {}
    for _ in range(4):
        model.change()
        spec, _, _ = led(spec, model.schema, model.renamed, model.dropped)
        assert arrow_schema(spec.schema) == arrow_of_sql(model.schema)
        ids = ids_of(spec.schema.fields[2:], model.columns)
        assert known.items() <= {**known, **ids}.items()
        assert len(set(ids.values())) == len(ids)
        known |= ids
