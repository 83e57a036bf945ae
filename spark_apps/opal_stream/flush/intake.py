"""The intake of messages: it decodes them, learns new schemas, and adds new columns.

It also stops the stream at a message that the options do not accept.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import pyarrow as pa

from opal_lake.definition.added_columns import plan_added, refuse_former, unknown_columns
from opal_lake.definition.schema import Schema, check_names
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.table import Table
from opal_lake.write.spec_change import with_new_columns
from opal_stream.errors import BadMessageError, NewColumnsError
from opal_stream.flush.writer import RETRYABLE
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.formats.schemas.new_columns import new_columns_text
from opal_stream.operations.reading import FormatOptions
from opal_stream.same_table import follow

_NO_COLUMN = (
    "a map in JSON, a union of several types, a decimal of more than 38 digits, "
    "or an object without members"
)
# The refused columns that are remembered. There may be more: each message may have other names
MAX_REFUSED = 1_000
logger = logging.getLogger(__name__)


class Intake:
    """The decoder of a stream, which follows the table's current columns.

    `settle()` commits the messages that were read before the current batch. `settle_before(batch,
    position)` commits them together with the messages of the batch before a position.
    """

    def __init__(
        self,
        table: Table,
        formats: FormatOptions,
        on_bad_message: str,
        settle: Callable[[], None],
        settle_before: Callable[[MessageBatch, int], None],
    ) -> None:
        self._head = table.log.head()
        self.decoder = Decoder(self._head.spec, formats)
        self._table = table
        self._formats = formats
        self._on_bad_message = on_bad_message
        self._settle = settle
        self._settle_before = settle_before

    def take(self, batch: MessageBatch) -> Iterator[tuple[MessageBatch, Decoded]]:
        """Yield a batch in parts, each with its rows.

        A part ends where a new schema begins.

        Messages of older schemas are settled before a new one is learned.
        """
        while len(batch):
            unseen = self.decoder.unseen(batch)
            part = batch if unseen is None else batch.slice(0, unseen)
            if len(part):
                yield part, self._decoded(part)
            if unseen is None:
                return
            self._settle()
            self.learn(batch.values[unseen], batch.keys[unseen])
            batch = batch.slice(unseen)

    def follow(self, spec: TableSpec | None) -> None:
        """Decode for the columns of `spec` from now on, if they have changed."""
        if spec is not None and spec.schema != self.decoder.spec.schema:
            self.decoder = self.decoder.renewed(spec)

    def _follow_head(self) -> None:
        """Decode for the columns of the newest version from now on.

        Messages that were decoded before are settled first. A message that is read after a change
        of columns may use the new names at once. If the store fails, the columns stay, and the next
        flush waits for the store.
        """
        with suppress(*RETRYABLE):
            self._head = follow(self._table.log, self._head, is_checked=False)
        if self._head.spec.schema != self.decoder.spec.schema:
            self._settle()
            self.follow(self._head.spec)

    def _decoded(self, batch: MessageBatch) -> Decoded:
        """Return the rows of a batch, by the names that the table's columns have now.

        Add its new columns to the table if the options say so.

        Raises BadMessageError or NewColumnsError for the first message that stops the stream, after
        the messages before it were committed.
        """
        remembered = self.decoder.refused
        # Not while a batch is decoded: it may need all the columns that it made the table refuse
        while len(remembered) > MAX_REFUSED:
            oldest = next(iter(remembered))
            del remembered[oldest]
        self._follow_head()
        decoded = self.decoder.decode(batch)
        adds_columns = self._formats.on_new_columns == "add"
        failed_add: NewColumnsError | None = None
        while decoded.new is not None and adds_columns and failed_add is None:
            try:
                self.add_or_refuse(batch.source(decoded.new.first), decoded.new.columns)
                decoded = self.decoder.decode(batch)
            except NewColumnsError as error:
                failed_add = error
        refused: dict[int, str] = {}  # by position: why a bad message stops the stream
        if self._on_bad_message == "fail":
            # Messages that are bad for their new columns are put aside by --on-new-columns
            refused = {bad.position: bad.reason for bad in decoded.bad if not bad.has_new_columns}
        new = decoded.new
        stops = [*refused]
        if new is not None:
            stops += new.positions
        if not stops:
            return decoded
        first = min(stops)
        self._settle_before(batch, first)
        if new is None or first in refused:
            _refuse(batch, first, refused[first])
        if failed_add is not None:
            raise failed_add
        schema = self.decoder.spec.schema
        names, paths = new.names.get(first, ()), new.paths(first)
        raise new_columns_error(batch.source(first), names, paths, schema)

    def learn(self, value: bytes | None, key: bytes | None = None) -> None:
        """Learn the schemas of a message's value and key; use the table's current columns."""
        self.decoder.learn(value, key)
        self.follow(self._table.log.head().spec)

    def add_or_refuse(self, source: str, columns: pa.Schema) -> None:
        """Add columns to the table, or remember which of them it refuses.

        `source` names the first message that has them. Raises NewColumnsError for a refused column,
        unless bad messages are put aside: then messages with it are bad.
        """
        try:
            self.add_columns(source, columns)
            return
        except NewColumnsError:
            if self._on_bad_message != "quarantine":
                raise
        reason_by_name = _why_unfit(self._table.log.head().spec.schema, columns)
        unfit: dict[pa.Field, str] = {}
        fit: list[pa.Field] = []
        for column in columns:
            if column.name in reason_by_name:
                unfit[column] = reason_by_name[column.name]
            else:
                fit.append(column)
        self._remember(source, unfit)
        if not fit:
            return
        try:
            self.add_columns(source, pa.schema(fit))
        except NewColumnsError as error:  # each column fits alone, but not all together
            self._remember(source, dict.fromkeys(fit, str(error.__cause__)))

    def _remember(self, source: str, reasons: Mapping[pa.Field, str]) -> None:
        """Remember why columns cannot be added, and log each reason once."""
        for column, reason in reasons.items():
            self.decoder.refused[column.name, str(column.type)] = reason
        names_by_reason: dict[str, list[str]] = {}
        for column, reason in reasons.items():
            names_by_reason.setdefault(reason, []).append(column.name)
        for reason, names in names_by_reason.items():
            text = new_columns_text(names)
            logger.warning("%s: %s: %s. Such messages are put aside", source, text, reason)

    def add_columns(self, source: str, columns: pa.Schema) -> None:
        """Add columns to the table; settle the messages before the one at `source` first.

        Another process may add the same columns at the same time. Raises NewColumnsError if the
        table refuses one.
        """
        self._settle()
        log = self._table.log
        try:
            _check_types(columns)
            head = with_new_columns(
                log, log.head(), "add", lambda spec: unknown_columns(spec.schema, columns)
            )
        except (InvalidInputError, RecursionError) as error:
            pronoun = "it" if len(columns) == 1 else "them"
            problem = f"{new_columns_text(columns.names)}, and cannot get {pronoun}"
            raise NewColumnsError(
                f"{source}: {problem}: {error}. Leave such columns out with "
                "on_new_columns='ignore', or put such messages aside with "
                "on_new_columns='quarantine'"
            ) from error
        names = ", ".join(columns.names)
        logger.warning("%s: added to the table: columns %s", source, names)
        self.follow(head.spec)


def _check_types(columns: Iterable[pa.Field]) -> None:
    """Raise InvalidInputError for a column whose values no type of a table can hold.

    The readers of schemas give such a column the type null.
    """
    for column in columns:
        if pa.types.is_null(column.type):
            raise InvalidInputError(f"{column.name!r} is {_NO_COLUMN}")


def _why_unfit(schema: Schema, columns: pa.Schema) -> dict[str, str]:
    """Return by name why columns cannot be added.

    Columns that can be added are left out.
    """
    unfit: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for column in columns:
        try:
            _check_types([column])
            refuse_former(schema, [column.name])
            plan_added(schema, unknown_columns(schema, pa.schema([column])))
            # Of two new columns whose names differ in case only, the second one is unfit
            spelling = spellings.setdefault(column.name.casefold(), column.name)
            check_names(dict.fromkeys([spelling, column.name]))
        except InvalidInputError as error:
            unfit[column.name] = str(error)
    return unfit


def _refuse(batch: MessageBatch, position: int, reason: str) -> NoReturn:
    problem = f"{batch.source(position)}: {reason.rstrip(' .?!')}"
    raise BadMessageError(
        f"{problem}. Correct the source, or put such messages aside with "
        "on_bad_message='quarantine'"
    )


def new_columns_error(
    source: str, names: Sequence[str], paths: Sequence[str], schema: Schema
) -> NewColumnsError:
    """Return the error of a message with new columns.

    It names the options that accept them.

    `paths` are new members of nested columns, which no table can get. `schema` has the table's
    columns.
    """
    text = new_columns_text(names, paths, schema.past_of)
    remedy = (
        "Add the columns with on_new_columns='add' or by opal add-columns, leave them out with "
        "on_new_columns='ignore', or put such messages aside with on_new_columns='quarantine'"
    )
    if paths:
        remedy = (
            "Leave the members out with on_new_columns='ignore', or put such messages aside with "
            "on_new_columns='quarantine'"
        )
    if any(schema.former(name) for name in names):
        remedy = (
            "Let the source use the new name, rename the table's column back with opal alter, or "
            "put such messages aside with on_new_columns='quarantine'"
        )
    return NewColumnsError(f"{source}: {text}. {remedy}")
