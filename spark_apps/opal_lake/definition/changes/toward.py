"""The changes that lead from a table's columns to those of a schema (`table.alter(schema=...)`).

A schema does not show whether a column is new or renamed: `renamed` names these. Columns that were
added, and that a schema lacks, stay unless `dropped` names them. A repeat changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from opal_lake.definition.changes.change import Change
from opal_lake.definition.changes.columns import AddColumn, DropColumn, RenameColumn, WidenColumn
from opal_lake.definition.changes.paths import parts_of, path_of, path_text
from opal_lake.definition.schema import (
    Array,
    Atomic,
    DataType,
    Field,
    Map,
    Schema,
    Struct,
    atomic_type_name,
    is_widening,
    member_formerly_called,
    schema_of_arrow,
    type_name,
)
from opal_lake.errors import InvalidInputError

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedColumns:
    """The columns that a table should have.

    `renamed` has the former name of columns and members, by the path that they should have.
    `dropped` are paths of columns and members that the table should no longer have.
    """

    columns: pa.Schema
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise InvalidInputError for columns that contradict each other."""
        wanted = {_folded(path) for path in _paths_of(schema_of_arrow(self.columns).fields)}
        for text in self.dropped:
            if _folded(path_of(text)) in wanted:
                raise InvalidInputError(
                    f"dropped names {text!r}, which the schema has; remove it from one of them"
                )
        for text in self.renamed:
            if _folded(path_of(text)) not in wanted:
                raise InvalidInputError(
                    f"renamed gives the former name of {text!r}, which the schema lacks; write "
                    "{new path: former name}, such as {'a.b': 'c'}"
                )
        for former in self.former.values():
            if _folded(former) in wanted:
                raise InvalidInputError(
                    f"renamed has the former name {path_text(former)!r}, which the schema has too. "
                    "The table would not show whether the column is renamed already: use a list of "
                    "changes instead"
                )

    @property
    def former(self) -> dict[Path, Path]:
        """The former path of each renamed column, by its new path in lower case."""
        paths: dict[Path, Path] = {}
        for text, name in self.renamed.items():
            path = path_of(text)
            paths[_folded(path)] = (*path[:-1], *path_of(name))
        return paths


def changes_toward(schema: Schema, wanted: WantedColumns) -> tuple[list[Change], list[str]]:
    """Return the changes to the wanted columns, and notes about other columns.

    Raises InvalidInputError where a column can have no such type, or where it is unclear which
    column of the table is meant.
    """
    walk = _Walk(
        schema=schema,
        former=wanted.former,
        dropped={_folded(path_of(text)) for text in wanted.dropped},
    )
    walk.compare((), schema.own_fields, schema_of_arrow(wanted.columns).fields)
    return walk.changes, walk.notes


@dataclass(slots=True, kw_only=True)
class _Walk:
    """A comparison of the columns of a table with wanted ones, level by level."""

    schema: Schema
    former: Mapping[Path, Path]
    dropped: set[Path]
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self, parent: Path, own: Sequence[Field], wanted: Sequence[Field]) -> None:
        """Compare the columns of a table, or the members of a struct."""
        by_name = {column.name.casefold(): column for column in own}
        matched: set[int] = set()
        before: str | None = None
        for column in wanted:
            path = (*parent, column.name)
            existing = by_name.get(column.name.casefold())
            if existing is None:
                existing = self._renamed(path, by_name, own)
            else:
                self._refuse_both(path, by_name)
            if existing is None:
                self._add(path, column, before)
            else:
                matched.add(existing.id)
                self._compare_types(path, existing, column.type)
            before = column.name
        for column in own:
            if column.id not in matched:
                self._leave_or_drop((*parent, column.name), column)

    def _renamed(
        self, path: Path, by_name: Mapping[str, Field], own: Sequence[Field]
    ) -> Field | None:
        """Return the column that gets a new name; None if the column is new."""
        former = self.former.get(_folded(path))
        if former is None:
            self._refuse_former(path, own)
            return None
        existing = by_name.get(former[-1].casefold())
        if existing is None:
            raise InvalidInputError(
                f"the table has neither {path_text(path)!r} nor its former name "
                f"{path_text(former)!r}; correct renamed, or remove the name from it to add a "
                "new column"
            )
        self.changes.append(RenameColumn(path_text(former), path_text(path[-1:])))
        return existing

    def _refuse_both(self, path: Path, by_name: Mapping[str, Field]) -> None:
        """Raise InvalidInputError if the table has a column and its former name as well."""
        former = self.former.get(_folded(path))
        if former is not None and former[-1].casefold() in by_name:
            raise InvalidInputError(
                f"the table has both {path_text(path)!r} and {path_text(former)!r}, its former "
                "name by renamed: it is unclear which of them has the values. Drop or rename one "
                "of them, or remove the name from renamed"
            )

    def _refuse_former(self, path: Path, own: Sequence[Field]) -> None:
        """Raise InvalidInputError for a new column with a name that another column had."""
        if len(path) == 1:
            renamed = self.schema.former(path[0])
        else:
            renamed = member_formerly_called(own, path[-1])
        if renamed is not None:
            raise InvalidInputError(
                f"the schema has {path_text(path)!r}, which the table calls {renamed.name!r} since "
                "it was renamed; write the new name, or rename the column back with "
                f"renamed={{{path_text(path)!r}: {renamed.name!r}}}"
            )

    def _add(self, path: Path, column: Field, before: str | None) -> None:
        if len(path) == 1 and self.schema.had(path[0]):
            self.notes.append(
                f"column {path_text(path)!r} is new: values of the dropped column of this name "
                "stay in older versions"
            )
        after = None if before is None else path_text([before])
        kind = type_name(column.type)
        self.changes.append(AddColumn(path_text(path), kind, after=after, first=before is None))

    def _leave_or_drop(self, path: Path, column: Field) -> None:
        """Drop a column that is not wanted any more; leave others, with a note."""
        text = path_text(path)
        if _folded(path) in self.dropped:
            self.changes.append(DropColumn(text))
        elif self.schema.is_added(column):
            self.notes.append(f"column {text!r} stays, which the schema lacks")
        else:
            raise InvalidInputError(
                f"the table has a column {text!r}, which the schema lacks; add it to the schema, "
                f"or name it in dropped=[{text!r}]"
            )

    def _compare_types(self, path: Path, own: Field, wanted: DataType) -> None:
        match own.type, wanted:
            case Struct(fields=members), Struct(fields=wanted_members):
                self.compare(path, members, wanted_members)
            case (Array(), Array()) | (Map(), Map()):
                pairs = zip(parts_of(own.type), parts_of(wanted), strict=True)
                for own_part, wanted_part in pairs:
                    self._compare_types((*path, own_part.name), own_part, wanted_part.type)
            case Atomic(name=name), Atomic(name=wanted_name):
                self._widen(path, own, name, wanted_name)
            case _:
                raise InvalidInputError(
                    f"column {path_text(path)!r} is {type_name(own.type)}, and the schema has "
                    f"{type_name(wanted)}; add a column of another name"
                )

    def _widen(self, path: Path, own: Field, name: str, wanted: str) -> None:
        text = path_text(path)
        if name == wanted:
            return
        if is_widening(name, wanted):
            self.changes.append(WidenColumn(text, atomic_type_name(wanted)))
        elif wanted in own.earlier:
            # As for a pipeline that still requests the table as it was created
            self.notes.append(f"column {text!r} stays {atomic_type_name(name)}: it was widened")
        else:
            raise InvalidInputError(
                f"column {text!r} is {atomic_type_name(name)} and cannot become "
                f"{atomic_type_name(wanted)}; add a column of another name"
            )


def _paths_of(fields: Sequence[Field], parent: Path = ()) -> Iterator[Path]:
    """Yield the paths of columns and of all their parts."""
    for column in fields:
        path = (*parent, column.name)
        yield path
        yield from _paths_of(parts_of(column.type), path)


def _folded(path: Path) -> Path:
    return tuple(name.casefold() for name in path)
