"""The face of the language: a text that is parsed once, bound and answered."""

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
GUARD = "guard the division, as in x <> 0 AND y / x > 1"


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
        reads = [node.path[0] for node in all_of(self.typed) if isinstance(node, Read)]
        return list(dict.fromkeys(reads))

    @property
    def failure(self) -> str:
        """The message for a row without an answer; the row is not named."""
        return f"{self.use.name} {quote(self.text)} {DIVIDES_BY_ZERO}"

    def failure_in(self, where: str) -> str:
        """Return the message for a row without an answer, and the remedy."""
        return f"{self.failure} in {where}; {GUARD}"

    def answers(self, rows: pa.Table | pa.RecordBatch) -> Answers:
        """Return the answer for each row: true, false or null, or none at all."""
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        parts = [evaluate(self.typed, batch) for batch in batches]
        if len(parts) == 1:
            return parts[0]
        # First an empty array: without a batch the type would be unknown
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
        """Return for which rows the condition is true.

        A row without an answer is an error. It names the row, unless the caller has put the rows
        together (`numbered`).
        """
        answers = self.answers(rows)
        if answers.failed is not None:
            row = pc.index(answers.failed, True).as_py()
            if row >= 0:
                where = f"row {row}, counted from 0" if numbered else SOME_ROW
                raise InvalidInputError(self.failure_in(where))
        return pc.fill_null(answers.values, False)


def condition(text: str, fields: Sequence[Field], use: Use = ANY_USE) -> Condition:
    """Parse a condition and bind it to columns.

    InvalidInputError shows the place of a fault, and the remedy.
    """
    try:
        tree = parse_text(text, use)
        typed = bind(tree, Columns(fields=fields, use=use))
    except FaultError as fault:
        raise invalid(use, text, fault) from None
    return Condition(text=text, tree=tree, typed=typed, use=use)
