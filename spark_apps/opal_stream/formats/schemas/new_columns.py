"""What a batch has beside the columns of the table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

Known = frozenset[str] | None  # names of the table's columns; None: nobody asks for others


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumns:
    """Their types, null where a table has none, and at which positions of a batch which of them are."""

    columns: pa.Schema
    found: Mapping[int, tuple[str, ...]]

    @property
    def first(self) -> int:
        return min(self.found)

    def moved(self, positions: "range | list[int]") -> "NewColumns":
        """In a batch in which the values stand at these positions."""
        return NewColumns(columns=self.columns, found={positions[position]: names for position, names in self.found.items()})

    def of_types(self, types: Mapping[str, pa.DataType]) -> "NewColumns":
        """Of better types, where there are some."""
        return NewColumns(columns=pa.schema([(field.name, types.get(field.name, field.type)) for field in self.columns]), found=self.found)


def merged(parts: Iterable[NewColumns | None]) -> NewColumns | None:
    """Of two types of a column the wider one, or the first one."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    columns = given[0].columns
    for part in given[1:]:
        try:
            columns = pa.unify_schemas([columns, part.columns], promote_options="permissive")
        except pa.ArrowTypeError:
            others = [field for field in part.columns if field.name not in columns.names]
            columns = pa.schema([*columns, *others])
    return NewColumns(columns=columns, found={position: names for part in given for position, names in part.found.items()})


def is_new(name: str, known: Known) -> bool:
    return known is not None and name not in known


def apart_by_case(new: NewColumns, names: Iterable[str]) -> tuple[NewColumns | None, dict[int, str]]:
    """Without those that are columns of the table but for their case, and why the messages that have such are bad.

    A table can have no second column of that name, and to leave the member out would lose its values without a word.
    """
    own = {name.casefold(): name for name in names}
    same = {name: own[name.casefold()] for name in new.columns.names if name.casefold() in own}
    if not same:
        return new, {}
    wrong = {
        position: f"member {name!r} differs from column {same[name]!r} in case only; write it as the table does"
        for position, found in new.found.items()
        for name in found
        if name in same
    }
    columns = pa.schema([field for field in new.columns if field.name not in same])
    found = {position: names for position, names in new.found.items() if position not in wrong}
    return NewColumns(columns=columns, found=found) if columns and found else None, wrong


def new_of_schemas(columns_of: Callable[[bytes], pa.Schema], heads: Mapping[int, bytes]) -> NewColumns | None:
    """Of values that name their schema: all of its columns that the table lacks, whether a value has them or not."""
    new = {head: columns for head in set(heads.values()) if (columns := columns_of(head))}
    parts = [
        NewColumns(columns=columns, found={position: tuple(columns.names) for position, other in heads.items() if other == head})
        for head, columns in sorted(new.items())
    ]
    return merged(parts)
