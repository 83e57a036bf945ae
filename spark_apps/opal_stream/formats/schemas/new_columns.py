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
    """Their types, null where a table has none, and at which positions of a batch which of them are. `members` a table cannot get.

    `types` are those that a position has itself, where positions differ. With `is_of_schemas` they
    are what a schema says of the message, whatever others have.
    """

    columns: pa.Schema
    found: Mapping[int, tuple[str, ...]]
    members: Members = field(default_factory=dict)
    types: Mapping[int, pa.Schema] = field(default_factory=dict)
    is_of_schemas: bool = False

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
        types = {positions[position]: own for position, own in self.types.items()}
        return replace(self, found=found, members=members, types=types)

    def own(self, position: int) -> pa.Schema:
        """Return the types that a position has, perhaps among those of others."""
        return self.types.get(position, self.columns)

    def of_first(self) -> "NewColumns":
        """Return what the first message has, without what only others have."""
        names = self.found.get(self.first, ())
        own = self.own(self.first)
        return NewColumns(
            columns=pa.schema([own.field(name) for name in names]),
            found={self.first: names} if names else {},
            members={self.first: self.members[self.first]} if self.first in self.members else {},
            is_of_schemas=self.is_of_schemas,
        )

    def of_types(self, by_position: Mapping[int, Mapping[str, pa.DataType]]) -> "NewColumns":
        """Return them with the types that schemas beside the messages say, where there are some."""
        types: dict[int, pa.Schema] = dict(self.types)
        made: dict[tuple[int, int], pa.Schema] = {}
        for position, said in by_position.items():
            own = self.own(position)
            key = (id(said), id(own))
            if said and key not in made:
                made[key] = pa.schema([(one.name, said.get(one.name, one.type)) for one in own])
            types[position] = made.get(key, own)
        if not made:
            return self
        typed = replace(self, types=types, is_of_schemas=True)
        return replace(typed, columns=_columns_of(typed))

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
    if len(given) <= 1:
        return given[0] if given else None
    kinds: dict[str, list[pa.DataType]] = {}
    for part in given:
        for column in part.columns:
            kinds.setdefault(column.name, []).append(column.type)
    return NewColumns(
        columns=pa.schema([(name, widest(of_parts)) for name, of_parts in kinds.items()]),
        found={position: names for part in given for position, names in part.found.items()},
        members={position: paths for part in given for position, paths in part.members.items()},
        types={position: part.own(position) for part in given for position in part.found},
        is_of_schemas=any(part.is_of_schemas for part in given),
    )


def widest(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Of types that go together; the first one's otherwise."""
    widest = kinds[0]
    for kind in kinds[1:]:
        pair = [pa.schema([("", widest)]), pa.schema([("", kind)])]
        try:
            widest = pa.unify_schemas(pair, promote_options="permissive").field(0).type
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            continue
    return widest


def _columns_of(new: NewColumns) -> pa.Schema:
    """Return the types of columns by those that the positions have, in the order of columns."""
    kinds: dict[str, list[pa.DataType]] = {}
    seen: set[tuple[tuple[str, ...], int]] = set()
    for position in sorted(new.found):
        names, own = new.found[position], new.own(position)
        if (names, id(own)) in seen:
            continue
        seen.add((names, id(own)))
        for name in names:
            kinds.setdefault(name, []).append(own.field(name).type)
    return pa.schema([(name, widest(kinds[name])) for name in new.columns.names if name in kinds])


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
    """Split off the messages with columns that the table refused, by name and type, and say why.

    A message is refused for its own type first. What others have together may be refused then.
    """
    wrong: dict[int, str] = {}
    for position, names in new.found.items():
        _refuse(wrong, position, names, new.own(position), refused)
    left = _without(new, wrong) if wrong else new
    if left is not None:
        for position, names in left.found.items():
            _refuse(wrong, position, names, left.columns, refused)
    return (_without(new, wrong) if wrong else new), wrong


def _refuse(
    wrong: dict[int, str],
    position: int,
    names: Iterable[str],
    types: pa.Schema,
    refused: Mapping[tuple[str, str], str],
) -> None:
    """Note why a message is bad, if one of its columns is refused."""
    for name in names:
        reason = refused.get((name, str(types.field(name).type)))
        if reason is not None:
            wrong[position] = f"{new_columns_text([name])}, and cannot get it: {reason}"
            return


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
    if not found and not members:
        return None
    types = {position: own for position, own in new.types.items() if position in found}
    remaining = replace(new, found=found, members=members, types=types)
    return replace(remaining, columns=_columns_of(remaining))
