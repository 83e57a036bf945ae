"""New columns: what a batch has, and the table or its nested columns lack."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

Known = frozenset[str] | None  # names of the table's columns; None if others are not reported
_SHOWN, _SHOWN_LETTERS = 10, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a nested column, as `address.zip`.

    `[]` in its path stands for the elements of a list and the values of a map. `like` is the
    column's own member that differs in case only.
    """

    path: str
    like: str | None = None


Members = Mapping[int, tuple[Member, ...]]  # by position in a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumns:
    """The columns that messages of a batch have and the table lacks.

    - `columns` have the types of all messages together; null where a table has no such type.
    - `names` are the columns of each message, by its position in the batch.
    - `members` are new members of nested columns, which a table cannot get.
    - `types` are those that a message has itself, where messages differ.
    - With `is_of_schemas` the types are those of a message's schema, whatever others have.
    """

    columns: pa.Schema
    names: Mapping[int, tuple[str, ...]]
    members: Members = field(default_factory=dict)
    types: Mapping[int, pa.Schema] = field(default_factory=dict)
    is_of_schemas: bool = False

    @property
    def positions(self) -> list[int]:
        return sorted({*self.names, *self.members})

    @property
    def first(self) -> int:
        return self.positions[0]

    def moved(self, positions: "range | list[int]") -> "NewColumns":
        """Return them for a batch in which the values are at these positions."""
        names = {positions[position]: own for position, own in self.names.items()}
        members = {positions[position]: paths for position, paths in self.members.items()}
        types = {positions[position]: own for position, own in self.types.items()}
        return replace(self, names=names, members=members, types=types)

    def own(self, position: int) -> pa.Schema:
        """Return the types that a message has, perhaps among those of others."""
        return self.types.get(position, self.columns)

    def of_first_message(self) -> "NewColumns":
        """Return what the first message has, without what only others have."""
        first = self.first
        names = self.names.get(first, ())
        members = self.members.get(first, ())
        own = self.own(first)
        return NewColumns(
            columns=pa.schema([own.field(name) for name in names]),
            names={first: names} if names else {},
            members={first: members} if members else {},
            is_of_schemas=self.is_of_schemas,
        )

    def with_schema_types(
        self, by_position: Mapping[int, Mapping[str, pa.DataType]]
    ) -> "NewColumns":
        """Return them with the types of schemas in the messages, where they have some."""
        types: dict[int, pa.Schema] = dict(self.types)
        # Most messages have the same schema: each pair of objects is joined once
        joined: dict[tuple[int, int], pa.Schema] = {}
        for position, of_schema in by_position.items():
            own = self.own(position)
            key = (id(of_schema), id(own))
            if of_schema and key not in joined:
                joined[key] = pa.schema(
                    [(column.name, of_schema.get(column.name, column.type)) for column in own]
                )
            types[position] = joined.get(key, own)
        if not joined:
            return self
        typed = replace(self, types=types, is_of_schemas=True)
        return replace(typed, columns=_columns_of(typed))

    def paths(self, position: int) -> tuple[str, ...]:
        """Return the paths of the new members of a message."""
        return tuple(member.path for member in self.members.get(position, ()))

    def text(self, position: int) -> str:
        """Return the message about the columns and members of a message."""
        return new_columns_text(self.names.get(position, ()), self.paths(position))


def new_columns_text(names: Sequence[str], paths: Sequence[str] = ()) -> str:
    """Return the message about columns and members that the table lacks.

    It is short: a message may have thousands of them, of any length.
    """
    texts: list[str] = []
    if names:
        texts.append(f"the table has no column{_shown(names)}")
    if paths:
        texts.append(f"the table has no member{_shown(paths)}, and nested columns cannot get more")
    return "; ".join(texts)


def _shown(names: Sequence[str]) -> str:
    shown: list[str] = []
    for name in names[:_SHOWN]:
        if len(name) > _SHOWN_LETTERS:
            name = f"{name[:_SHOWN_LETTERS]}..."
        shown.append(repr(name))
    plural = "" if len(names) == 1 else "s"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{plural} {', '.join(shown)}{more}"


def with_members(new: NewColumns | None, members: Members) -> NewColumns | None:
    """Return new columns with members; None if there is neither."""
    if not members:
        return new
    return replace(new or NewColumns(columns=pa.schema([]), names={}), members=members)


def merge_new_columns(parts: Iterable[NewColumns | None]) -> NewColumns | None:
    """Join the new columns of parts of a batch.

    Of two types of a column the wider one counts, or the first one.
    """
    given = [part for part in parts if part is not None]
    if len(given) <= 1:
        if given:
            return given[0]
        return None
    kinds: dict[str, list[pa.DataType]] = {}
    names: dict[int, tuple[str, ...]] = {}
    members: dict[int, tuple[Member, ...]] = {}
    types: dict[int, pa.Schema] = {}
    for part in given:
        for column in part.columns:
            kinds.setdefault(column.name, []).append(column.type)
        names |= part.names
        members |= part.members
        types |= {position: part.own(position) for position in part.names}
    return NewColumns(
        columns=pa.schema([(name, widest(of_parts)) for name, of_parts in kinds.items()]),
        names=names,
        members=members,
        types=types,
        is_of_schemas=any(part.is_of_schemas for part in given),
    )


def widest(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """Return the widest of types that go together, otherwise the first one."""
    widest = kinds[0]
    for kind in kinds[1:]:
        pair = [pa.schema([("", widest)]), pa.schema([("", kind)])]
        try:
            widest = pa.unify_schemas(pair, promote_options="permissive").field(0).type
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            continue
    return widest


def _columns_of(new: NewColumns) -> pa.Schema:
    """Return the new columns, each with the widest type that a message has for it.

    They are in the order of `new.columns`.
    """
    kinds: dict[str, list[pa.DataType]] = {}
    seen: set[tuple[tuple[str, ...], int]] = set()
    for position in sorted(new.names):
        names = new.names[position]
        own = new.own(position)
        # Messages of one schema share it: each pair of names and types is looked at once
        if (names, id(own)) in seen:
            continue
        seen.add((names, id(own)))
        for name in names:
            kinds.setdefault(name, []).append(own.field(name).type)
    used = [name for name in new.columns.names if name in kinds]
    return pa.schema([(name, widest(kinds[name])) for name in used])


def is_new(name: str, known: Known) -> bool:
    return known is not None and name not in known


def split_by_case(
    given: NewColumns, names: Iterable[str], filled: Container[str] = ()
) -> tuple[NewColumns | None, dict[int, str]]:
    """Split off the messages with columns that differ from the table's in case only.

    They are bad: a table cannot have a second column of that name, and without the member its
    values would be lost silently. Members like a column that is `filled` from elsewhere are left
    out, however they are written.
    """
    own = {name.casefold(): name for name in names}
    left_out = {name for name in given.columns.names if own.get(name.casefold()) in filled}
    new = _without(given, names=left_out)
    if new is None:
        return None, {}
    wrong: dict[int, str] = {}
    for position, members in new.members.items():
        for member in members:
            if member.like:
                wrong[position] = _by_case(f"member {member.path!r}", f"member {member.like!r}")
                break
    twins = {name: own[name.casefold()] for name in new.columns.names if name.casefold() in own}
    if twins:
        for position, columns in new.names.items():
            for name in columns:
                if name in twins:
                    wrong[position] = _by_case(f"member {name!r}", f"column {twins[name]!r}")
    if not wrong:
        return new, {}
    return _without(new, wrong), wrong


def split_by_member(new: NewColumns) -> tuple[NewColumns | None, dict[int, str]]:
    """Split off the messages with new members, which no table can get, and say why."""
    wrong = {position: new_columns_text((), new.paths(position)) for position in new.members}
    return (_without(new, wrong) if wrong else new), wrong


def split_by_refused_column(
    new: NewColumns, refused: Mapping[tuple[str, str], str]
) -> tuple[NewColumns | None, dict[int, str]]:
    """Split off the messages with columns that the table refused, and say why.

    `refused` has the reasons by name and type. A message is refused for its own type first. The
    type that the others have together may be refused then.
    """
    wrong: dict[int, str] = {}
    for position, names in new.names.items():
        _refuse(wrong, position, names, new.own(position), refused)
    left = _without(new, wrong) if wrong else new
    if left is not None:
        for position, names in left.names.items():
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
    """Return what other messages have of other columns; None if that is nothing."""
    by_position: dict[int, tuple[str, ...]] = {}
    for position, given in new.names.items():
        if position in positions:
            continue
        others = tuple(name for name in given if name not in names)
        if others:
            by_position[position] = others
    members = {
        position: inner for position, inner in new.members.items() if position not in positions
    }
    if not by_position and not members:
        return None
    types = {position: own for position, own in new.types.items() if position in by_position}
    remaining = replace(new, names=by_position, members=members, types=types)
    return replace(remaining, columns=_columns_of(remaining))
