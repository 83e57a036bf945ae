"""The intake of messages: new schemas, new columns, and messages that stop the stream."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import pyarrow as pa

from opal_lake.definition.added_columns import plan_added, unknown_columns
from opal_lake.definition.schema import Schema, check_names
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.table import Table
from opal_lake.write.spec_change import with_new_columns
from opal_stream.errors import BadMessageError, NewColumnsError
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded, Decoder
from opal_stream.formats.schemas.new_columns import new_columns_text
from opal_stream.operations.reading import FormatOptions

_NO_COLUMN = (
    "a map in JSON, a union of several types, a decimal of more than 38 digits, "
    "or an object without members"
)
MAX_REFUSED = 1_000  # refused columns that are remembered: each message may have other names
logger = logging.getLogger(__name__)


class Intake:
    """The decoder of a stream, kept at the table's current columns.

    `settle` commits what was read so far, `settle_before` also what a batch holds before a
    position.
    """

    def __init__(
        self,
        table: Table,
        formats: FormatOptions,
        on_bad_message: str,
        settle: Callable[[], None],
        settle_before: Callable[[MessageBatch, int], None],
    ) -> None:
        self.decoder = Decoder(table.log.head().spec, formats)
        self._table = table
        self._formats = formats
        self._on_bad_message = on_bad_message
        self._settle = settle
        self._settle_before = settle_before

    def take(self, batch: MessageBatch) -> Iterator[tuple[MessageBatch, Decoded]]:
        """Yield a batch in parts, each of which ends before a new schema.

        What was read by older schemas is settled before a new one is learned.
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
        """Use the table's current columns: somebody may have added some."""
        if spec is not None and spec.schema != self.decoder.spec.schema:
            self.decoder = self.decoder.renewed(spec)

    def _decoded(self, batch: MessageBatch) -> Decoded:
        remembered = self.decoder.refused
        # Not while a batch is decoded: it may need all that it has refused itself
        while len(remembered) > MAX_REFUSED:
            del remembered[next(iter(remembered))]
        decoded = self.decoder.decode(batch)
        unfit: NewColumnsError | None = None
        while decoded.new is not None and self._formats.on_new_columns == "add" and unfit is None:
            try:
                self.add_or_refuse(batch.source(decoded.new.first), decoded.new.columns)
                decoded = self.decoder.decode(batch)
            except NewColumnsError as error:
                unfit = error
        refused: dict[int, str] = {}
        if self._on_bad_message == "fail":
            # Those with new columns are bad by --on-new-columns, which puts them aside
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
        raise unfit or refused_columns(
            batch.source(first), new.names.get(first, ()), new.paths(first)
        )

    def learn(self, value: bytes | None, key: bytes | None = None) -> None:
        """Learn the schemas that a message names, for the table's current columns."""
        self.decoder.learn(value, key)
        self.follow(self._table.log.head().spec)

    def add_or_refuse(self, source: str, columns: pa.Schema) -> None:
        """Add the columns, or remember which cannot be added.

        Messages with those are put aside where bad messages are; otherwise NewColumnsError.
        """
        try:
            self.add_columns(source, columns)
            return
        except NewColumnsError:
            if self._on_bad_message != "quarantine":
                raise
        unfit = _unfit(self._table.log.head().spec.schema, columns)
        reasons = {column: unfit[column.name] for column in columns if column.name in unfit}
        self._remember(source, reasons)
        fit = pa.schema([column for column in columns if column.name not in unfit])
        if not len(fit):
            return
        try:
            self.add_columns(source, fit)
        except NewColumnsError as error:
            self._remember(source, dict.fromkeys(fit, str(error.__cause__)))

    def _remember(self, source: str, reasons: Mapping[pa.Field, str]) -> None:
        """Remember why columns cannot be added, and log each reason once."""
        for column, reason in reasons.items():
            self.decoder.refused[column.name, str(column.type)] = reason
        for reason in dict.fromkeys(reasons.values()):
            names = [column.name for column, other in reasons.items() if other == reason]
            text = new_columns_text(names)
            logger.warning("%s: %s: %s. Such messages are put aside", source, text, reason)

    def add_columns(self, source: str, columns: pa.Schema) -> None:
        """Add columns to the table; settle what was read before the message first.

        Another process may add the same columns at the same time.
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
            unfit = f"{new_columns_text(columns.names)}, and cannot get {pronoun}"
            raise NewColumnsError(
                f"{source}: {unfit}: {error}. Leave them out with --on-new-columns ignore, or put "
                "such messages aside with --on-new-columns quarantine"
            ) from error
        names = ", ".join(columns.names)
        logger.warning("%s: columns that the table has now: %s", source, names)
        self.follow(head.spec)


def _check_types(columns: Iterable[pa.Field]) -> None:
    for column in columns:
        if pa.types.is_null(column.type):
            raise InvalidInputError(f"{column.name!r} is {_NO_COLUMN}")


def _unfit(schema: Schema, columns: pa.Schema) -> dict[str, str]:
    """Return why columns cannot be added, by name."""
    unfit: dict[str, str] = {}
    spellings: dict[str, str] = {}
    for column in columns:
        try:
            _check_types([column])
            plan_added(schema, unknown_columns(schema, pa.schema([column])))
            # Two new columns may differ in case only: the second one is unfit
            spelling = spellings.setdefault(column.name.casefold(), column.name)
            check_names(dict.fromkeys([spelling, column.name]))
        except InvalidInputError as error:
            unfit[column.name] = str(error)
    return unfit


def _refuse(batch: MessageBatch, position: int, reason: str) -> NoReturn:
    problem = f"{batch.source(position)}: {reason.rstrip(' .?!')}"
    raise BadMessageError(
        f"{problem}. Correct the source, or put such messages aside with "
        "--on-bad-message quarantine"
    )


def refused_columns(
    source: str, names: Sequence[str], paths: Sequence[str] = ()
) -> NewColumnsError:
    """Return the error of a message with new columns, and the ways to accept it.

    `paths` are new members of nested columns, which no table can get.
    """
    choices = (
        "add, ignore, or quarantine to put such messages aside; or add them by opal add-columns"
    )
    if paths:
        choices = (
            "ignore leaves the members out, quarantine puts such messages aside, "
            "and add takes only columns"
        )
    return NewColumnsError(
        f"{source}: {new_columns_text(names, paths)}. Choose what happens to new columns: "
        f"--on-new-columns {choices}"
    )
