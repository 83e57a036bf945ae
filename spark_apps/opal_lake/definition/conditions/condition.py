"""Conditions: texts that are parsed, bound to columns and evaluated over rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from opal_lake.definition.conditions.evaluate import Answers, evaluate
from opal_lake.definition.conditions.faults import ANY_USE, FaultError, Use, invalid, quote
from opal_lake.definition.conditions.nodes import Read, Typed, all_of
from opal_lake.definition.conditions.parser import parse_text
from opal_lake.definition.conditions.tree import Node
from opal_lake.definition.conditions.typing import Columns, bind
from opal_lake.definition.schema import Field
from opal_lake.errors import InvalidInputError

DIVIDES_BY_ZERO = "divides by zero"
SOME_ROW = "some row"
GUARD = "guard the division, for example x <> 0 AND y / x > 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition on rows of certain columns."""

    text: str
    tree: Node
    typed: Typed
    use: Use = ANY_USE

    @property
    def column_names(self) -> list[str]:
        """The top-level columns that the condition reads."""
        names: dict[str, None] = {}  # a dict keeps the order of the first uses
        for node in all_of(self.typed):
            if isinstance(node, Read):
                names[node.path[0]] = None
        return list(names)

    @property
    def failure(self) -> str:
        """The message for a row without an answer; the row is not named."""
        return f"{self.use.name} {quote(self.text)} {DIVIDES_BY_ZERO}"

    def failure_in(self, where: str) -> str:
        """Return the message for a row without an answer at `where`, with the remedy."""
        return f"{self.failure} in {where}; {GUARD}"

    def answers(self, rows: pa.Table | pa.RecordBatch) -> Answers:
        """Return the answer for each row: true, false, null, or that it failed."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        parts = [evaluate(self.typed, batch) for batch in batches]
        if len(parts) == 1:
            return parts[0]
        # An empty array first: concat_arrays refuses an empty list
        values = [pa.array([], pa.bool_())]
        failed = [pa.array([], pa.bool_())]
        for part in parts:
            values.append(part.values)
            if part.failed is None:
                failed.append(pa.repeat(False, len(part.values)))
            else:
                failed.append(part.failed)
        return Answers(values=pa.concat_arrays(values), failed=pa.concat_arrays(failed))

    def holds(self, rows: pa.Table | pa.RecordBatch, *, numbered: bool = True) -> pa.BooleanArray:
        """Return a mask of the rows for which the condition is true.

        Raises InvalidInputError for a row without an answer. The message has the number of the
        row. With `numbered=False`, for rows that the caller has combined, it has none.
        """
        answers = self.answers(rows)
        if answers.failed is not None:
            first_failed = pc.index(answers.failed, True).as_py()  # -1 if no row failed
            if first_failed >= 0:
                where = f"row {first_failed}, counted from 0" if numbered else SOME_ROW
                raise InvalidInputError(self.failure_in(where))
        return pc.fill_null(answers.values, False)


def condition(text: str, fields: Sequence[Field], use: Use = ANY_USE) -> Condition:
    """Parse a condition and bind it to columns.

    Raises InvalidInputError with the position of a fault and the remedy.
    """
    return bound_condition(text, Columns(fields=fields, use=use))


def bound_condition(text: str, columns: Columns) -> Condition:
    """Do as `condition`, for columns that are found by rules of their own."""
    use = columns.use
    try:
        tree = parse_text(text, use)
        typed = bind(tree, columns)
    except FaultError as fault:
        raise invalid(use, text, fault) from None
    return Condition(text=text, tree=tree, typed=typed, use=use)
