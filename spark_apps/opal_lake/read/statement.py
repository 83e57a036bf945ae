"""The plan of a statement: clauses that say which rows it ends, and which rows it adds.

A statement without a source has clauses for every visible row. A statement with a source joins the
visible rows with it, and has clauses for pairs that match and for rows without a match. Of the
clauses for a row or pair, the first whose condition is true applies.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from opal_lake.definition.conditions.condition import Condition, bound_condition
from opal_lake.definition.conditions.expression import Expression, expression
from opal_lake.definition.conditions.faults import ROWS_WHERE, FaultError, Use
from opal_lake.definition.conditions.nodes import Read
from opal_lake.definition.conditions.parser import parse
from opal_lake.definition.conditions.tree import And, Column, Compare, In, Node
from opal_lake.definition.conditions.tree import Literal as Constant
from opal_lake.definition.conditions.typing import Columns
from opal_lake.definition.schema import COMMIT, Field
from opal_lake.definition.table_spec import TableSpec, refuse_commit_column
from opal_lake.errors import InvalidInputError
from opal_lake.key_store.cache.protocol import RunCache
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.region import Region, RegionTest

When = Literal["matched", "not matched", "not matched by source"]
Action = Literal["update", "delete", "insert"]

ON = Use(name="the merge condition", instead="run the merge on Spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A clause of a statement: for which rows it is, and what it does with them.

    Texts are expressions of the engine. `values` are the new values by column; None stands for the
    source's values of all columns.
    """

    when: When
    action: Action
    where: Any = None
    values: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementPlan:
    """A statement on a state of a table.

    - `target` and `other` are the names by which expressions call the table and the source.
    - With `evolves`, the source may lack columns: an update leaves them, an insert has their
      defaults.
    - With `latest`, of several rows of the source with one key only the latest counts.
    - Deletes have the delta of the row that they end, or `at`.
    - With a `region`, only rows of the region end without a row of the source, and only they are
      deleted by a plan without a source. The source is matched by the keys.
    """

    snapshot: Snapshot
    cache: RunCache
    clauses: Sequence[Clause]
    source: Any = None
    on: Any = None
    target: str = "t"
    other: str = "s"
    latest: bool = False
    evolves: bool = False
    at: Any = None
    region: Region | None = None

    @property
    def spec(self) -> TableSpec:
        return self.snapshot.spec

    def of(self, when: When) -> list[Clause]:
        """Return the clauses for one kind of rows, in their order."""
        return [clause for clause in self.clauses if clause.when == when]

    def check(self) -> None:
        """Raise InvalidInputError for clauses that no engine can apply."""
        if self.spec.orders_by_commit:
            self._check_commit_order()
        keys = {field.name.casefold() for field in self.spec.keys}
        known = {field.name.casefold() for field in self.spec.schema.fields}
        for clause in self.clauses:
            if clause.action == "update" and clause.values == {}:
                raise InvalidInputError("the update sets no column; name one in `set`")
            repeated = repeated_name(clause.values or {})
            if repeated is not None:
                raise InvalidInputError(
                    f"the {clause.action} sets column {repeated!r} twice; leave one of the values "
                    "out. Case makes no difference"
                )
            for name in clause.values or {}:
                if name.casefold() not in known:
                    raise InvalidInputError(
                        f"{clause.action} sets {name!r}, and the table has no such column; its "
                        f"columns are {', '.join(self.spec.schema.names)}"
                    )
                if clause.action == "update" and name.casefold() in keys:
                    raise InvalidInputError(
                        f"an update cannot change the key column {name!r}; delete the row, and "
                        "insert it under the new key"
                    )
            if clause.action == "insert":
                self._check_insert(clause)

    def check_source(self, columns: Sequence[str]) -> None:
        """Raise InvalidInputError if a merge's source lacks columns of its clauses.

        The source may have further columns, for its conditions. That of an insert or an overwrite
        has whole rows of the table, which are fitted as those of an ingest.
        """
        given = {name.casefold() for name in columns}
        refuse_repeated(columns)
        refuse_commit_column(self.spec, given)
        for clause in self.clauses:
            if clause.values is not None or clause.action == "delete" or self.evolves:
                continue
            missing = []
            for column in self.spec.schema.own_fields:
                # An inserted row gets the default, an updated one has a value already
                has_default = clause.action == "insert" and column.write is not None
                is_filled = has_default or column.generated is not None
                if column.name.casefold() not in given and not is_filled:
                    missing.append(column.name)
            if missing:
                raise InvalidInputError(
                    f"{clause.action} of all columns needs the columns {', '.join(missing)} in the "
                    "source; add them, or name the columns to set"
                )

    def _refuse_unknown(self, columns: Sequence[str]) -> None:
        schema = self.spec.schema
        unknown = [name for name in columns if schema.find(name) is None]
        if unknown:
            names = ", ".join(f"{name!r}{schema.past_of(name)}" for name in unknown)
            raise InvalidInputError(
                f"the rows have {names}, which the table does not have; leave the unknown columns "
                "out, or add them to the table with alter"
            )

    def _check_commit_order(self) -> None:
        """Raise InvalidInputError for a delta that the built-in column does not allow."""
        filled = f"the table fills its delta column {COMMIT!r} with the time of the job"
        if self.at is not None:
            raise InvalidInputError(f"at={self.at!r}: {filled}; leave out at")
        if self.latest:
            raise InvalidInputError(
                f"duplicates='latest': {filled}, so that no row of the source is later; leave one "
                "row of each key in the source"
            )
        for clause in self.clauses:
            if any(name.casefold() == COMMIT for name in clause.values or {}):
                raise InvalidInputError(f"{clause.action} sets {COMMIT!r}: {filled}; leave it out")

    def _check_insert(self, clause: Clause) -> None:
        """Raise InvalidInputError for an insert without a key or a delta."""
        if clause.values is None:
            return
        given = {name.casefold() for name in clause.values}
        filled = self.spec.schema.commit_id
        required = [field.name for _, field in self.spec.required if field.id != filled]
        missing = [name for name in required if name.casefold() not in given]
        if missing:
            raise InvalidInputError(
                f"an insert needs values for the columns {', '.join(missing)}; add them to its "
                "values"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SidedColumns(Columns):
    """Columns of joined rows: those of the table, and those of the source.

    In the joined rows a column has its side in front of its name, such as `t.amount`. A text may
    leave the side out where only one side has the column. `faults` says why no text can read a
    column, by its name in joined rows in lower case.
    """

    sides: Mapping[str, Sequence[Field]]
    faults: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        sides: Mapping[str, Sequence[Field]],
        use: Use,
        faults: Mapping[str, str] | None = None,
    ) -> "SidedColumns":
        """Return the columns of the given sides, by the sides' names."""
        fields: list[Field] = []
        for side, columns in sides.items():
            fields += [sided(field, side) for field in columns]
        return cls(fields=fields, use=use, sides=sides, faults=faults or {})

    def read(self, column: Column) -> Read:
        joined = self._joined(column)
        fault = self.faults.get(joined.path[0].casefold())
        if fault is not None:
            raise FaultError(column.at, fault)
        return Columns.read(self, joined)

    def _joined(self, column: Column) -> Column:
        """Return a column by its name in joined rows."""
        first, *rest = column.path
        for side in self.sides:
            if rest and first.casefold() == side.casefold():
                path = (side_name(side, rest[0]), *rest[1:])
                return Column(path=path, at=column.at)
        having = [side for side in self.sides if self._has(side, first)]
        if len(having) > 1:
            shown = " or ".join(repr(side_name(side, first)) for side in having)
            raise FaultError(column.at, f"column {first!r} is ambiguous; write {shown}")
        if not having:
            having = list(self.sides)[:1]
        return Column(path=(side_name(having[0], first), *rest), at=column.at)

    def _has(self, side: str, name: str) -> bool:
        if side_name(side, name).casefold() in self.faults:
            return True
        return any(field.name.casefold() == name.casefold() for field in self.sides[side])

    def named(self, fields: Sequence[Field], name: str, column: Column) -> Field:
        try:
            return Columns.named(self, fields, name, column)
        except FaultError as fault:
            if len(self.sides) > 1:
                raise
            # A text over one side need not name it
            (side,) = self.sides
            raise FaultError(fault.at, fault.text.replace(side_name(side, ""), "")) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumns(Columns):
    """The table's columns by their own names, for texts that may name the side.

    They are those that `SidedColumns` finds for the table's side alone.
    """

    side: str

    def read(self, column: Column) -> Read:
        first, *rest = column.path
        path = tuple(rest) if rest and first.casefold() == self.side.casefold() else column.path
        return Columns.read(self, Column(path=path, at=column.at))


def side_name(side: str, name: str) -> str:
    """Return the name that a column of a side has in joined rows."""
    return f"{side}.{name}"


def sided(field: Field, side: str) -> Field:
    """Return a field under the name that it has in joined rows."""
    return Field(
        id=field.id, name=side_name(side, field.name), physical=field.physical, type=field.type
    )


def refuse_repeated(columns: Sequence[str]) -> None:
    """Raise InvalidInputError for columns of a source that have one name."""
    repeated = repeated_name(columns)
    if repeated is not None:
        raise InvalidInputError(
            f"the source has more than one column {repeated!r}; select or rename its columns"
        )


def repeated_name(names: Iterable[str]) -> str | None:
    """Return a name that appears again, maybe in another case; None if none does."""
    known: set[str] = set()
    for name in names:
        if name.casefold() in known:
            return name
        known.add(name.casefold())
    return None


def text_only(given: Any, what: str) -> str:
    """Return an expression that is a text; raise InvalidInputError for another one."""
    if not isinstance(given, str):
        raise InvalidInputError(
            f"{what} is a {type(given).__name__}; give a text, or run the statement on Spark"
        )
    return given


def condition_of(given: Any, columns: SidedColumns) -> Condition:
    """Return the condition of a clause over joined rows."""
    return bound_condition(text_only(given, columns.use.name), columns)


def target_condition(text: str, plan: StatementPlan) -> Condition:
    """Return a condition over the table's own rows, which have no side in their names."""
    fields = plan.spec.schema.fields
    return bound_condition(text, TargetColumns(fields=fields, use=ROWS_WHERE, side=plan.target))


def values_of(
    values: Mapping[str, Any], spec: TableSpec, columns: SidedColumns
) -> dict[str, Expression]:
    """Return the expressions of a clause over joined rows, by column."""
    fields = {field.name.casefold(): field for field in spec.schema.fields}
    expressions: dict[str, Expression] = {}
    for name, given in values.items():
        field = fields[name.casefold()]
        expressions[field.name] = expression(given, field, columns)
    return expressions


def conjuncts(tree: Node) -> Sequence[Node]:
    """Return the parts of a tree that all have to be true."""
    return tree.parts if isinstance(tree, And) else (tree,)


def region_test(plan: StatementPlan, condition: Condition | None) -> RegionTest:
    """Return the test of a plan's region; `condition` is its `where`, if it has one."""
    assert plan.region is not None
    return RegionTest(
        side=plan.target,
        condition=condition,
        partitions=plan.region.partitions,
        spec=plan.spec,
    )


def overwrite_clauses() -> list[Clause]:
    """Return the clauses of an overwrite: rows of the source come, others end."""
    return [
        Clause(when="matched", action="update"),
        Clause(when="not matched", action="insert"),
        Clause(when="not matched by source", action="delete"),
    ]


def is_on_keys(plan: StatementPlan) -> bool:
    """Return whether rows match exactly if all their key columns are equal.

    Only the plain form is recognised: one equality for each key column, joined by AND.
    """
    if plan.region is not None:
        return True
    if not isinstance(plan.on, str):
        return False
    try:
        parts = conjuncts(parse(plan.on, ON))
    except InvalidInputError:
        # A text of the engine's own language, which is wider
        return False
    keys = {field.name.casefold() for field in plan.spec.keys}
    matched = [_key_matched(part, plan) for part in parts]
    return len(matched) == len(keys) and set(matched) == keys


def _key_matched(part: Node, plan: StatementPlan) -> str | None:
    """Return the column that an equality such as `t.id = s.id` compares on both sides."""
    if not isinstance(part, Compare) or part.op != "=":
        return None
    sides = {}
    for column in (part.left, part.right):
        if not isinstance(column, Column) or len(column.path) != 2:
            return None
        side, name = column.path
        sides[side.casefold()] = name.casefold()
    names = {plan.target.casefold(), plan.other.casefold()}
    if sides.keys() != names or len(set(sides.values())) != 1:
        return None
    return sides[plan.target.casefold()]


def keys_of_condition(where: Any, spec: TableSpec, target: str) -> list[dict[str, Any]] | None:
    """Return the keys that a condition names; None if it does not name all keys.

    A condition names keys by `key = value` for each key column, or by `key IN (...)` for a single
    one. Further conditions may be joined by AND.
    """
    if not isinstance(where, str):
        return None
    try:
        parts = conjuncts(parse(where, ROWS_WHERE))
    except InvalidInputError:
        return None
    names = {field.name.casefold(): field.name for field in spec.keys}
    values: dict[str, list[Any]] = {}
    for part in parts:
        named = _named_values(part, target)
        if named is not None and named[0] in names:
            values.setdefault(names[named[0]], named[1])
    if len(values) != len(names):
        return None
    if len(names) == 1:
        ((name, keys),) = values.items()
        return [{name: key} for key in keys]
    if any(len(keys) != 1 for keys in values.values()):
        return None
    return [{name: keys[0] for name, keys in values.items()}]


def _named_values(part: Node, target: str) -> tuple[str, list[Any]] | None:
    """Return a column and its values, of `column = value` or `column IN (values)`."""
    if isinstance(part, In) and not part.negated:
        name = _plain_name(part.value, target)
        # No key is null, so that a null names none
        values = [member.value for member in part.members if member.value is not None]
        return None if name is None else (name, values)
    if isinstance(part, Compare) and part.op == "=":
        for column, value in ((part.left, part.right), (part.right, part.left)):
            name = _plain_name(column, target)
            if name is not None and isinstance(value, Constant) and value.value is not None:
                return name, [value.value]
    return None


def _plain_name(node: Node, target: str) -> str | None:
    """Return the name of a top-level column of the table."""
    if not isinstance(node, Column):
        return None
    *side, name = node.path
    if side and [part.casefold() for part in side] != [target.casefold()]:
        return None
    return name.casefold()
