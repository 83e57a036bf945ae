"""New columns: what a batch has, and the table or its nested columns lack."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

V = TypeVar("V")
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
PastOf = Callable[[str], str]  # what became of a column that had a name, for a message


def no_past(_: str) -> str:
    """Return that nothing is known of a column."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumns:
    """The columns that messages of a batch have and the table lacks.

    - `columns` have the types of all messages together; null where a table has no such type.
    - `names` are the columns of each message, by its position in the batch.
    - `members` are new members of nested columns, which a table cannot get.
    - `types` are the types of a message's own columns, by position, where messages differ.
    - With `is_of_schemas` the types come from the schemas of messages, not from their values.
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
        """Return these columns for a larger batch, with message N at `positions[N]`."""
        return replace(
            self,
            names=_moved(self.names, positions),
            members=_moved(self.members, positions),
            types=_moved(self.types, positions),
        )

    def own(self, position: int) -> pa.Schema:
        """Return the types of a message's new columns, perhaps among other columns."""
        return self.types.get(position, self.columns)

    def of_first_message(self) -> "NewColumns":
        """Return the new columns and members of the first message alone."""
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
        """Return these columns with the types of the messages' own schemas, by position."""
        types: dict[int, pa.Schema] = dict(self.types)
        # Most messages have the same schema: each pair of objects is joined once
        joined: dict[tuple[int, int], pa.Schema] = {}
        for position, of_schema in by_position.items():
            own = self.own(position)
            key = (id(of_schema), id(own))
            if of_schema and key not in joined:
                fields = [(field.name, of_schema.get(field.name, field.type)) for field in own]
                joined[key] = pa.schema(fields)
            types[position] = joined.get(key, own)
        if not joined:
            return self
        typed = replace(self, types=types, is_of_schemas=True)
        return replace(typed, columns=_columns_of(typed))

    def paths(self, position: int) -> tuple[str, ...]:
        """Return the paths of the new members of a message."""
        return tuple(member.path for member in self.members.get(position, ()))

    def text(self, position: int, past_of: PastOf = no_past) -> str:
        """Return the message about the columns and members of a message."""
        return new_columns_text(self.names.get(position, ()), self.paths(position), past_of)


def _moved(by_position: Mapping[int, V], positions: "range | list[int]") -> dict[int, V]:
    return {positions[position]: value for position, value in by_position.items()}


def new_columns_text(
    names: Sequence[str], paths: Sequence[str] = (), past_of: PastOf = no_past
) -> str:
    """Return the message about columns and members that the table lacks.

    It is short: a message may have thousands of them, of any length. `past_of` returns what became
    of a column that had a name.
    """
    texts: list[str] = []
    if names:
        texts.append(f"the table has no column{_shown(names, past_of)}")
    if paths:
        texts.append(f"the table has no member{_shown(paths)}, and nested columns cannot get more")
    return "; ".join(texts)


def _shown(names: Sequence[str], past_of: PastOf = no_past) -> str:
    """Return names to stand behind a noun, with its plural s: `s 'a', 'b' and 3 more`."""
    shown: list[str] = []
    for name in names[:_SHOWN]:
        text = repr(name)
        if len(name) > _SHOWN_LETTERS:
            text = repr(f"{name[:_SHOWN_LETTERS]}...")
        shown.append(f"{text}{past_of(name)}")
    plural = "" if len(names) == 1 else "s"
    text = f"{plural} {', '.join(shown)}"
    if len(names) > _SHOWN:
        text += f" and {len(names) - _SHOWN:,} more"
    return text


def with_members(new: NewColumns | None, members: Members) -> NewColumns | None:
    """Return new columns with members; None if there is neither."""
    if not members:
        return new
    return replace(new or NewColumns(columns=pa.schema([]), names={}), members=members)


def merge_new_columns(parts: Iterable[NewColumns | None]) -> NewColumns | None:
    """Join the new columns of parts of a batch; None if no part has any.

    A column gets the widest of its types, or the first one if none holds the others.
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
    """Return a type that holds the first type, and each later one that fits to it."""
    widest_kind = kinds[0]
    for kind in kinds[1:]:
        pair = [pa.schema([("", widest_kind)]), pa.schema([("", kind)])]
        try:
            unified = pa.unify_schemas(pair, promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            continue
        widest_kind = unified.field(0).type
    return widest_kind


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

    Returns the other messages' new columns, and why each split off message is bad, by position.
    A table cannot have two columns that differ in case only, and without the member its values
    would be lost silently. `filled` are the columns that are filled from elsewhere: members that
    are like one of them, in any case, are left out.
    """
    own_by_case = {name.casefold(): name for name in names}
    ignored: set[str] = set()
    twins: dict[str, str] = {}  # by name of a new column: the table's column that is like it
    for name in given.columns.names:
        twin = own_by_case.get(name.casefold())
        if twin in filled:
            ignored.add(name)
        elif twin is not None:
            twins[name] = twin
    new = _without(given, names=ignored)
    if new is None:
        return None, {}
    wrong = _why_like(new, twins)
    if not wrong:
        return new, {}
    return _without(new, wrong), wrong


def _why_like(new: NewColumns, twins: Mapping[str, str]) -> dict[int, str]:
    """Return why messages are bad that write a name in another case, by position.

    `twins` has the table's column for each new column that is like it.
    """
    wrong: dict[int, str] = {}
    for position, members in new.members.items():
        for member in members:
            if member.like:
                wrong[position] = _by_case(f"member {member.path!r}", f"member {member.like!r}")
                break
    if twins:
        for position, columns in new.names.items():
            for name in columns:
                if name in twins:
                    wrong[position] = _by_case(f"member {name!r}", f"column {twins[name]!r}")
    return wrong


def split_by_member(new: NewColumns) -> tuple[NewColumns | None, dict[int, str]]:
    """Split off the messages with new members, which no table can get, and say why."""
    wrong = {position: new_columns_text((), new.paths(position)) for position in new.members}
    if not wrong:
        return new, wrong
    return _without(new, wrong), wrong


def split_by_refused_column(
    new: NewColumns, refused: Mapping[tuple[str, str], str]
) -> tuple[NewColumns | None, dict[int, str]]:
    """Split off the messages with columns that the table refused, and say why.

    `refused` has the reasons by name and type. A message is bad if the table refused the type that
    the message itself has, or the type that the remaining messages have together.
    """
    wrong: dict[int, str] = {}
    for position, names in new.names.items():
        _refuse(wrong, position, names, new.own(position), refused)
    remaining: NewColumns | None = new
    if wrong:
        remaining = _without(new, wrong)
    if remaining is not None:
        for position, names in remaining.names.items():
            _refuse(wrong, position, names, remaining.columns, refused)
    if not wrong:
        return new, wrong
    return _without(new, wrong), wrong


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
    """Leave out messages by position, and columns by name; return None if none remain."""
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
