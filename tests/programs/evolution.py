"""Random changes of a table's definition: columns, defaults, NOT NULL and CHECK constraints."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.opal_lake.write.changed_tables import NEW_TYPES, WIDER, ColumnChanges, Node
from tests.programs.formulas import POOLS, Formula, columns_of, condition, has_literal, literal
from tests.programs.model import TARGET, Check, State, violation

DEFAULT_TYPES = [*NEW_TYPES, "boolean", "timestamp"]
MAX_CHECKS = 2
Change = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Draft:
    """The definition that a list of changes leads to."""

    columns: list[Node]
    checks: dict[str, Check]
    not_null: set[int]
    changes: list[Change] = field(default_factory=list)

    def of(self, state: State) -> State:
        """Return a state with this definition."""
        return replace(
            state,
            columns=self.columns,
            checks=dict(self.checks),
            not_null=frozenset(self.not_null),
        )


class _Reads(dict[int, Any]):
    """A row of nulls that records which columns are read."""

    def __init__(self) -> None:
        dict.__init__(self)
        self.numbers: set[int] = set()

    def get(self, key: int, default: Any = None) -> Any:
        self.numbers.add(key)
        return None


def numbers_of(nodes: Sequence[Node]) -> set[int]:
    """Return the numbers of columns and of their members."""
    numbers = {node.number for node in nodes}
    for node in nodes:
        numbers |= numbers_of(node.parts)
    return numbers


class Evolution(ColumnChanges):
    """Random changes to a draft; columns that a constraint or an expression needs stay."""

    def __init__(self, random: Random, file_format: str) -> None:
        ColumnChanges.__init__(self, random, file_format)
        self.state = State(columns=[])
        self.draft = Draft(columns=[], checks={}, not_null=set())
        # The generated columns by number, and the numbers of the columns that they read
        self.generated: dict[int, Formula] = {}
        self.generating: set[int] = set()
        self.check_names = iter(f"c{number}" for number in range(1, 10_000))

    def drawn(self, state: State, columns: list[Node], kinds: Sequence[str], most: int) -> Draft:
        """Return a draft of a state after some changes of the given kinds."""
        self.draft = Draft(columns=columns, checks=dict(state.checks), not_null=set(state.not_null))
        for _ in range(self.random.randint(1, most)):
            step: Callable[[list[Node]], Change | None]
            step = getattr(self, self.random.choice(kinds))
            change = step(columns)
            if change is not None:
                self.draft.changes.append(change)
        return self.draft

    def is_needed(self, node: Node) -> bool:
        """Return whether a constraint or a generated column of the draft needs a column."""
        needed: set[int] = set()
        if not self.generated.keys().isdisjoint(numbers_of(self.draft.columns)):
            needed |= self.generating
        for check in self.draft.checks.values():
            needed |= check.numbers
        return not needed.isdisjoint(numbers_of([node]))

    def drop(self, columns: list[Node]) -> Change | None:
        path, siblings = self.siblings(columns)
        node = self.random.choice(siblings)
        if node.role or len(siblings) == 1 or self.is_needed(node):
            return None
        siblings.remove(node)
        # NOT NULL of a column goes with it
        self.draft.not_null.discard(node.number)
        return {"drop": f"{path}{node.name}"}

    def widen(self, columns: list[Node]) -> Change | None:
        """Widen a column, but for the types that a role or the file format forbids."""
        path, siblings = self.siblings(columns)
        nodes = [node for node in siblings if node.type in WIDER and self.may_widen(node)]
        if not nodes:
            return None
        node = self.random.choice(nodes)
        wider = WIDER[node.type]
        node.type = wider[0] if node.role else self.random.choice(wider)
        return {"widen": f"{path}{node.name}", "type": node.type}

    def may_widen(self, node: Node) -> bool:
        if node.role in ("delta", "tie") and node.type.startswith("decimal(9"):
            return False
        if node.type == "date":
            is_free = not node.role and not self.is_needed(node)
            return is_free and self.file_format == "parquet"
        return True

    # Defaults

    def add_with_default(self, columns: list[Node]) -> Change:
        """Add a column whose value is known in rows from before it."""
        kinds = [kind for kind in DEFAULT_TYPES if kind != "date" or self.file_format == "parquet"]
        node = self.node(self.free_name(columns), self.random.choice(kinds), is_added=True)
        node.initial = node.write = self.default_value(node.type)
        change = {"add": node.name, "type": node.type, "default": self.given(node.write)}
        return {**change, **self.put(columns, node)}

    def set_default(self, columns: list[Node]) -> Change | None:
        """Set or drop the default of a column for new rows."""
        nodes = [node for node in columns if self.may_have_default(node)]
        if not nodes:
            return None
        node = self.random.choice(nodes)
        if node.write is not None and self.random.random() < 0.4:
            node.write = None
            return {"drop_default": f"`{node.name}`"}
        node.write = self.default_value(node.type)
        return {"set_default": f"`{node.name}`", "value": self.given(node.write)}

    def may_have_default(self, node: Node) -> bool:
        is_own = node.role in ("key", "delta") or node.number in self.generated
        return not node.parts and not is_own

    def default_value(self, kind: str) -> Any:
        return self.random.choice([value for value in POOLS[kind] if has_literal(value)])

    def given(self, value: Any) -> Any:
        """Return a default as a change takes it: a text is a literal of SQL."""
        if isinstance(value, str) or self.random.random() < 0.5:
            return literal(value)
        return value

    # Constraints

    def add_check(self, columns: list[Node]) -> Change | None:
        """Add a CHECK constraint, mostly one that all rows meet."""
        if len(self.draft.checks) >= MAX_CHECKS:
            return None
        name = next(self.check_names)
        for _ in range(self.random.choice([1, 8])):
            check = self.check(columns)
            if check is None:
                continue
            self.draft.checks[name] = check
            if violating(self.draft.of(self.state)) is None:
                break
        if name not in self.draft.checks:
            return None
        return {"add_constraint": name, "check": self.draft.checks[name].formula.text}

    def check(self, columns: list[Node]) -> Check | None:
        """Return a random constraint on one or two columns."""
        read = self.random.sample(columns, min(len(columns), self.random.choice([1, 1, 2])))
        named = columns_of(self.random, {TARGET: read}, may_be_short=True)
        named = [replace(column, text=column.text.removeprefix(f"{TARGET}.")) for column in named]
        if not named:
            return None
        formula = condition(self.random, named, 1)
        reads = _Reads()
        formula.value({TARGET: reads})
        needed = [node for node in read if node.number in reads.numbers]
        return Check(formula=formula, numbers=frozenset(numbers_of(needed)))

    def drop_check(self, _: list[Node]) -> Change | None:
        if not self.draft.checks:
            return None
        name = self.random.choice([*self.draft.checks])
        del self.draft.checks[name]
        return {"drop_constraint": name.upper() if self.random.random() < 0.2 else name}

    def set_not_null(self, columns: list[Node]) -> Change | None:
        nodes = [node for node in columns if node.role not in ("key", "delta")]
        nodes = [node for node in nodes if node.number not in self.draft.not_null]
        if not nodes or len(self.draft.not_null) >= MAX_CHECKS:
            return None
        node = self.random.choice(nodes)
        self.draft.not_null.add(node.number)
        return {"set_not_null": f"`{node.name}`"}

    def drop_not_null(self, columns: list[Node]) -> Change | None:
        nodes = [node for node in columns if node.number in self.draft.not_null]
        if not nodes:
            return None
        node = self.random.choice(nodes)
        self.draft.not_null.remove(node.number)
        return {"drop_not_null": f"`{node.name}`"}

    def misfits(self, state: State) -> Iterator[Change]:
        """Yield changes that the table has to refuse."""
        self.draft = Draft(
            columns=list(state.columns), checks=dict(state.checks), not_null=set(state.not_null)
        )
        for node in state.columns:
            if node.role == "key" or self.is_needed(node):
                yield {"drop": f"`{node.name}`"}
            if node.role == "key" or node.number in self.generated:
                yield {"set_default": f"`{node.name}`", "value": 1}
            if node.role in ("key", "delta"):
                yield {"drop_not_null": f"`{node.name}`"}
        yield {"drop_constraint": "unknown"}


def violating(state: State) -> str | None:
    """Return why a row that is visible or pending violates the constraints, or None."""
    pending = [row for row in state.rows.values() if row.processed is None and not row.deleted]
    for row in (*state.visible, *pending):
        reason = violation(state, row.values, is_stored=True)
        if reason is not None:
            return reason
    return None


def has_dropped(before: State, after: State) -> bool:
    return not numbers_of(before.columns) <= numbers_of(after.columns)


def has_constrained(before: State, after: State) -> bool:
    """Return whether a later state has a constraint that an earlier one lacks."""
    known = [check.formula for check in before.checks.values()]
    new = [check for check in after.checks.values() if check.formula not in known]
    return bool(new) or not after.not_null <= before.not_null


def same_definition(left: State, right: State) -> bool:
    return (left.columns, left.checks, left.not_null) == (
        right.columns,
        right.checks,
        right.not_null,
    )


def named_generated(columns: Sequence[Node], generated: Mapping[int, Formula]) -> dict[str, str]:
    """Return the expressions of generated columns by their names."""
    names = {node.number: node.name for node in columns}
    return {names[number]: formula.text for number, formula in generated.items()}
