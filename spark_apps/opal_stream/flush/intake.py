"""Messages on their way to rows: new schemas, columns that the table lacks, and messages that stop the stream."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from opal_lake.errors import InvalidInputError
from opal_lake.spec.added_columns import unknown_columns
from opal_lake.spec.table_spec import TableSpec
from opal_lake.table import Table
from opal_lake.write.spec_change import with_new_columns
from opal_stream.errors import BadMessageError, NewColumnsError
from opal_stream.formats.batch import MessageBatch
from opal_stream.formats.decoder import Decoded, Decoder, FormatOptions, new_columns_text
from opal_stream.formats.schemas.new_columns import NewColumns

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
            self.decoder.learn(batch.values[unseen])
            self.follow(self._table.log.head().spec)
            batch = batch.slice(unseen)

    def follow(self, spec: TableSpec | None) -> None:
        """The table may have got columns, by this stream or by somebody else."""
        if spec is not None and spec.schema != self.decoder.spec.schema:
            self.decoder = self.decoder.renewed(spec)

    def _decoded(self, batch: MessageBatch) -> Decoded:
        decoded = self.decoder.decode(batch)
        while decoded.new is not None and self._formats.on_new_columns == "add":
            self._add_columns(batch, decoded.new)
            decoded = self.decoder.decode(batch)
        refused = {bad.position: bad.reason for bad in decoded.bad if not bad.has_new_columns and self._on_bad_message == "fail"}
        new = {} if decoded.new is None else decoded.new.found
        first = min([*refused, *new], default=None)
        if first is None:
            return decoded
        self._settle_before(batch, first)
        if first in refused:
            _refuse(batch, first, refused[first])
        _refuse_columns(batch, first, new[first])

    def _add_columns(self, batch: MessageBatch, new: NewColumns) -> None:
        """What was read before is settled first. Another process may add the same column this moment."""
        self._settle()
        log = self._table.log
        try:
            head = with_new_columns(log, log.head(), "add", lambda spec: unknown_columns(spec.schema, new.columns))
        except InvalidInputError as error:
            raise NewColumnsError(
                f"{batch.source(new.first)}: {new_columns_text(new.columns.names)}, and cannot get them: {error}. Leave them out with "
                "--on-new-columns ignore, or put such messages aside with --on-new-columns quarantine"
            ) from error
        logger.warning("%s: columns that the table has now: %s", batch.source(new.first), ", ".join(new.columns.names))
        self.follow(head.spec)


def _refuse(batch: MessageBatch, position: int, reason: str) -> NoReturn:
    raise BadMessageError(
        f"{batch.source(position)}: {reason}. Correct the source, or put such messages aside with --on-bad-message quarantine"
    )


def _refuse_columns(batch: MessageBatch, position: int, names: Sequence[str]) -> NoReturn:
    """A table that has them by then takes the message."""
    raise NewColumnsError(
        f"{batch.source(position)}: {new_columns_text(names)}. Say what becomes of new columns: "
        "--on-new-columns add, ignore, or quarantine to put such messages aside; or add them by opal add-columns"
    )
