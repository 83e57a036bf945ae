"""What a batch has beside the columns of the table, and beside the members of its nested columns."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

Known = frozenset[str] | None  # names of the table's columns; None: nobody asks for others
_SHOWN, _SHOWN_LETTERS = 10, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Of a nested column, as `address.zip`; `[]` stands for the elements of a list and the values of a map.

    `like` is the column's own one that differs in case only.
    """

    path: str
    like: str | None = None


Members = Mapping[int, tuple[Member, ...]]  # by position in a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumns:
    """Their types, null where a table has none, and at which positions of a batch which of them are. `members` a table cannot get."""

    columns: pa.Schema
    found: Mapping[int, tuple[str, ...]]
    members: Members = field(default_factory=dict)

    @property
    def positions(self) -> list[int]:
        return sorted({*self.found, *self.members})

    @property
    def first(self) -> int:
        return self.positions[0]

    def moved(self, positions: "range | list[int]") -> "NewColumns":
        """In a batch in which the values stand at these positions."""
        found = {positions[position]: names for position, names in self.found.items()}
        members = {positions[position]: paths for position, paths in self.members.items()}
        return replace(self, found=found, members=members)

    def of_first(self) -> "NewColumns":
        """Return what the first message has, without what only others have."""
        names = self.found.get(self.first, ())
        return NewColumns(
            columns=pa.schema([self.columns.field(name) for name in names]),
            found={self.first: names} if names else {},
            members={self.first: self.members[self.first]} if self.first in self.members else {},
        )

    def of_types(self, types: Mapping[str, pa.DataType]) -> "NewColumns":
        """Of better types, where there are some."""
        return replace(
            self,
            columns=pa.schema(
                [(field.name, types.get(field.name, field.type)) for field in self.columns]
            ),
        )

    def paths(self, position: int) -> tuple[str, ...]:
        """Of the members that are at a position."""
        return tuple(member.path for member in self.members.get(position, ()))

    def text(self, position: int) -> str:
        """What the table lacks of a message."""
        return new_columns_text(self.found.get(position, ()), self.paths(position))


def new_columns_text(names: Sequence[str], paths: Sequence[str] = ()) -> str:
    """A message may have thousands of them, of any length."""
    columns = f"the table has no column{_shown(names)}" if names else ""
    members = (
        f"the table has no member{_shown(paths)}, and nested columns cannot get more"
        if paths
        else ""
    )
    return "; ".join(filter(None, (columns, members)))


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(
        repr(name if len(name) <= _SHOWN_LETTERS else f"{name[:_SHOWN_LETTERS]}...")
        for name in names[:_SHOWN]
    )
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{'' if len(names) == 1 else 's'} {shown}{more}"


def with_members(new: NewColumns | None, members: Members) -> NewColumns | None:
    """Both, if there is one of both."""
    return (
        replace(new or NewColumns(columns=pa.schema([]), found={}), members=members)
        if members
        else new
    )


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
            names = set(columns.names)
            others = [field for field in part.columns if field.name not in names]
            columns = pa.schema([*columns, *others])
    found = {position: names for part in given for position, names in part.found.items()}
    return NewColumns(
        columns=columns,
        found=found,
        members={position: paths for part in given for position, paths in part.members.items()},
    )


def is_new(name: str, known: Known) -> bool:
    return known is not None and name not in known


def apart_by_case(
    given: NewColumns, names: Iterable[str], filled: Container[str] = ()
) -> tuple[NewColumns | None, dict[int, str]]:
    """Without those that the table has but for their case, and why the messages that have such are bad.

    A table can have no second column of that name, and to leave the member out would lose its values without a word. But of a column that
    is filled from elsewhere members are left out, however they are written.
    """
    own = {name.casefold(): name for name in names}
    new = _without(
        given, names={name for name in given.columns.names if own.get(name.casefold()) in filled}
    )
    if new is None:
        return None, {}
    same = {name: own[name.casefold()] for name in new.columns.names if name.casefold() in own}
    inner = {
        position: twin
        for position, members in new.members.items()
        if (twin := next((one for one in members if one.like), None))
    }
    if not same and not inner:
        return new, {}
    wrong = {
        position: _by_case(f"member {twin.path!r}", f"member {twin.like!r}")
        for position, twin in inner.items()
    }
    wrong |= {
        position: _by_case(f"member {name!r}", f"column {same[name]!r}")
        for position, found in new.found.items()
        for name in found
        if name in same
    }
    return _without(new, wrong), wrong


def apart_by_member(new: NewColumns) -> tuple[NewColumns | None, dict[int, str]]:
    """Without what no table can get, and why the messages that have such are bad."""
    wrong = {position: new_columns_text((), new.paths(position)) for position in new.members}
    return (_without(new, wrong) if wrong else new), wrong


def apart_by_column(
    new: NewColumns, refused: Mapping[tuple[str, str], str]
) -> tuple[NewColumns | None, dict[int, str]]:
    """Split off the messages with columns that the table refused, by name and type, and say why."""
    reasons = {
        column.name: refused[column.name, str(column.type)]
        for column in new.columns
        if (column.name, str(column.type)) in refused
    }
    wrong: dict[int, str] = {}
    for position, names in new.found.items():
        if name := next((name for name in names if name in reasons), None):
            wrong[position] = f"{new_columns_text([name])}, and cannot get it: {reasons[name]}"
    return (_without(new, wrong) if wrong else new), wrong


def _by_case(member: str, own: str) -> str:
    return f"{member} differs from {own} in case only; write it as the table does"


def _without(
    new: NewColumns, positions: Container[int] = (), names: Container[str] = ()
) -> NewColumns | None:
    """Of the messages at other positions, and without columns of these names."""
    others = {position: given for position, given in new.found.items() if position not in positions}
    found = {
        position: left
        for position, given in others.items()
        if (left := tuple(name for name in given if name not in names))
    }
    members = {
        position: inner for position, inner in new.members.items() if position not in positions
    }
    wanted = {name for left in found.values() for name in left}
    columns = pa.schema([column for column in new.columns if column.name in wanted])
    return NewColumns(columns=columns, found=found, members=members) if found or members else None
