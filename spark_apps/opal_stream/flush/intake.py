"""Messages on their way to rows: new schemas, columns that the table lacks, and messages that stop the stream."""

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

_NO_COLUMN = "a map in JSON, a union of several types, a decimal of more than 38 digits, or an object without members"
MAX_REFUSED = 1_000  # columns that are remembered; a message may have other names each time
logger = logging.getLogger(__name__)


class Intake:
    """Decodes for the table as it is. `settle` commits what was read so far, `settle_before` also what a batch holds before a position."""

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
        """In parts, of which each ends before a new schema. What was read by older ones is settled first."""
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
        """The table may have got columns, by this stream or by somebody else."""
        if spec is not None and spec.schema != self.decoder.spec.schema:
            self.decoder = self.decoder.renewed(spec)

    def _decoded(self, batch: MessageBatch) -> Decoded:
        remembered = self.decoder.refused
        while len(remembered) > MAX_REFUSED:  # not meanwhile: a batch may need all of its own
            del remembered[next(iter(remembered))]
        decoded = self.decoder.decode(batch)
        unfit: NewColumnsError | None = None
        while decoded.new is not None and self._formats.on_new_columns == "add" and unfit is None:
            try:
                self.add_or_refuse(batch.source(decoded.new.first), decoded.new.columns)
                decoded = self.decoder.decode(batch)
            except NewColumnsError as error:
                unfit = error
        refused = {
            bad.position: bad.reason
            for bad in decoded.bad
            if not bad.has_new_columns and self._on_bad_message == "fail"
        }
        new = decoded.new
        first = min([*refused, *(new.positions if new is not None else ())], default=None)
        if first is None:
            return decoded
        self._settle_before(batch, first)
        if new is None or first in refused:
            _refuse(batch, first, refused[first])
        raise unfit or refused_columns(
            batch.source(first), new.found.get(first, ()), new.paths(first)
        )

    def learn(self, value: bytes | None, key: bytes | None = None) -> None:
        """Take the schemas that a message names, for the table as it is by now."""
        self.decoder.learn(value, key)
        self.follow(self._table.log.head().spec)

    def add_or_refuse(self, source: str, columns: pa.Schema) -> None:
        """Add the columns; where bad messages are put aside, so are those with columns that cannot be added."""
        try:
            self.add_columns(source, columns)
            return
        except NewColumnsError:
            if self._on_bad_message != "quarantine":
                raise
        unfit = _unfit(self._table.log.head().spec.schema, columns)
        self._remember(
            source, {column: unfit[column.name] for column in columns if column.name in unfit}
        )
        fit = pa.schema([column for column in columns if column.name not in unfit])
        if not len(fit):
            return
        try:
            self.add_columns(source, fit)
        except NewColumnsError as error:
            self._remember(source, dict.fromkeys(fit, str(error.__cause__)))

    def _remember(self, source: str, reasons: Mapping[pa.Field, str]) -> None:
        """Remember why columns cannot be added."""
        for column, reason in reasons.items():
            self.decoder.refused[column.name, str(column.type)] = reason
        for reason in dict.fromkeys(reasons.values()):
            names = [column.name for column, other in reasons.items() if other == reason]
            text = new_columns_text(names)
            logger.warning("%s: %s: %s. Such messages are put aside", source, text, reason)

    def add_columns(self, source: str, columns: pa.Schema) -> None:
        """What was read before the message is settled first. Another process may add the same column this moment."""
        self._settle()
        log = self._table.log
        try:
            _check_types(columns)
            head = with_new_columns(
                log, log.head(), "add", lambda spec: unknown_columns(spec.schema, columns)
            )
        except (InvalidInputError, RecursionError) as error:
            unfit = f"{new_columns_text(columns.names)}, and cannot get {'it' if len(columns) == 1 else 'them'}"
            raise NewColumnsError(
                f"{source}: {unfit}: {error}. Leave them out with --on-new-columns ignore, or put such messages aside with "
                "--on-new-columns quarantine"
            ) from error
        logger.warning("%s: columns that the table has now: %s", source, ", ".join(columns.names))
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
            spelling = spellings.setdefault(column.name.casefold(), column.name)
            check_names(dict.fromkeys([spelling, column.name]))
        except InvalidInputError as error:
            unfit[column.name] = str(error)
    return unfit


def _refuse(batch: MessageBatch, position: int, reason: str) -> NoReturn:
    what = f"{batch.source(position)}: {reason.rstrip(' .?!')}"
    raise BadMessageError(
        f"{what}. Correct the source, or put such messages aside with --on-bad-message quarantine"
    )


def refused_columns(
    source: str, names: Sequence[str], paths: Sequence[str] = ()
) -> NewColumnsError:
    """A table that has them by then takes the message; `paths` are of members, which none can get."""
    ways = "add, ignore, or quarantine to put such messages aside; or add them by opal add-columns"
    if paths:
        ways = "ignore leaves the members out, quarantine puts such messages aside, and add takes only columns"
    return NewColumnsError(
        f"{source}: {new_columns_text(names, paths)}. Say what becomes of new columns: --on-new-columns {ways}"
    )
