"""The tables that a statement reads, as DataFrames, and its pieces of SQL with these in place."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from opal_lake.data.prune import Predicate
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.snapshot import Snapshot
from opal_lake.read.view import View
from opal_lake.read.where import where_predicate
from opal_lake.sql.cursor import Cursor
from opal_lake.sql.lexer import END, Token, identifier_value, tokens, words
from opal_lake.sql.references import with_placeholders
from opal_lake.sql.statements import (
    Changes,
    Names,
    Reference,
    Slice,
    Statement,
    TableName,
    TimestampAsOf,
    VersionAsOf,
)
from opal_spark.read.reader import read
from opal_spark.read.understood import understood
from opal_spark.spark_sql.arguments import Arguments, Given, constant
from opal_spark.spark_sql.catalog import open_table, table_uri
from opal_spark.table import OpalTable

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AFTER_WHERE = words(
    "GROUP HAVING WINDOW ORDER CLUSTER DISTRIBUTE SORT LIMIT OFFSET UNION EXCEPT MINUS INTERSECT |>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of SQL for Spark, with the values and tables that it needs.

    With `frames`, the text has their names in braces, and its own braces doubled.
    """

    text: str
    args: Given = None
    frames: Mapping[str, DataFrame] = field(default_factory=dict)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the result of a piece that is a whole query or statement."""
        return spark.sql(self.text, self.args, **self.frames)


@dataclass(frozen=True)
class Reads:
    """The tables that a statement reads, each at one version.

    `pinned` are the states to read, by path; others are the newest ones at their first use.
    `target` is the table that the statement changes.
    """

    spark: SparkSession
    statement: Statement
    args: Arguments
    target: TableName | None = None
    pinned: Mapping[str, Snapshot] = field(default_factory=dict)
    _opened: dict[str, tuple[OpalTable, Snapshot]] = field(default_factory=dict)
    _frames: dict[int, DataFrame] = field(default_factory=dict)

    def at(self, pinned: Mapping[str, Snapshot]) -> "Reads":
        """Return the reads of the same statement, with these states of tables."""
        return replace(self, pinned=pinned, _opened={}, _frames={})

    def piece(self, piece: Slice) -> Piece:
        """Return a piece of the statement in which DataFrames replace the Opal tables."""
        replacements: list[tuple[Reference, str]] = []
        frames: dict[str, DataFrame] = {}
        for number, reference in enumerate(self.statement.references):
            if not piece.offset <= reference.slice.offset < piece.end:
                continue
            rows = self._rows(number, reference)
            if rows is not None:
                name = f"opal{number}"
                replacements.append((reference, name))
                frames[name] = rows
        edits = [edit for edit in self._qualifiers if piece.offset <= edit[0] < piece.end]
        replaced = [reference.slice for reference, _ in replacements]
        args = self.args.of(piece, replaced)
        if not replacements and not edits:
            return Piece(text=piece.text, args=args)
        text = with_placeholders(piece, replacements, edits)
        if not frames:
            # Spark formats the text only if there are frames
            text = text.replace("{{", "{").replace("}}", "}")
        return Piece(text=text, args=args, frames=frames)

    def _rows(self, number: int, reference: Reference) -> DataFrame | None:
        """Return the rows of an Opal table; None for a table of Spark."""
        if number in self._frames:
            return self._frames[number]
        uri = table_uri(self.spark, reference.table, self.args)
        if uri is None:
            return None
        name = reference.slice.text
        after = reference.slice.end - self.statement.text.offset
        if self.statement.text.text[after : after + 1] == "@":
            raise InvalidInputError(
                f"{name}@ is not a table; write {name} VERSION AS OF 1, or {name} TIMESTAMP AS OF "
                "'2026-01-31'"
            )
        if reference.options is not None:
            raise InvalidInputError(
                f"{name} has WITH ({reference.options.text}): an Opal table has no options in SQL; "
                "leave them out"
            )
        if reference.streaming:
            raise InvalidInputError(
                f"STREAM {name} is not supported; read the stream by "
                "spark.readStream.format('opal').load(path)"
            )
        table, newest = self.open(reference.table, uri)
        if isinstance(reference.travel, Changes):
            rows = self._changes(table, newest, reference.travel)
        else:
            snapshot = self._snapshot(table, newest, reference)
            files_where = self._files_where(reference, snapshot)
            rows = read(self.spark, View(snapshot=snapshot), files_where)
        self._frames[number] = rows
        return rows

    def open(self, name: TableName, uri: str) -> tuple[OpalTable, Snapshot]:
        """Return an Opal table, and the state that the statement reads."""
        if uri not in self._opened:
            table = open_table(self.spark, name, uri)
            snapshot = self.pinned.get(table.uri) or table.snapshot_at()
            self._opened[uri] = (table, snapshot)
        return self._opened[uri]

    # Time travel

    def _snapshot(self, table: OpalTable, newest: Snapshot, reference: Reference) -> Snapshot:
        match reference.travel:
            case VersionAsOf(version=version):
                return table.snapshot_at(self.version(newest, version))
            case TimestampAsOf(timestamp=timestamp):
                return table.snapshot_at(timestamp=self.moment(timestamp))
        return newest

    def version(self, newest: Snapshot, piece: Slice) -> int:
        """Return the version of VERSION AS OF: a number, or the name of a savepoint."""
        value = constant(self.spark, piece, self.args)
        if isinstance(value, str) and value.isdecimal():
            return int(value)
        if isinstance(value, str):
            return _named_version(newest, value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInputError(
                f"{piece.text} is {value!r}, which is not a version; give a whole number or the "
                "name of a savepoint"
            )
        return value

    def moment(self, piece: Slice) -> datetime:
        """Return the time of TIMESTAMP AS OF, read in the session's time zone."""
        micros = constant(self.spark, piece, self.args, "unix_micros(CAST({} AS TIMESTAMP))")
        if micros is None:
            raise InvalidInputError(
                f"{piece.text} is not a time; write one such as '2026-01-31 12:00:00'"
            )
        return _EPOCH + timedelta(microseconds=micros)

    def _changes(self, table: OpalTable, newest: Snapshot, travel: Changes) -> DataFrame:
        start: Any
        end: Any = None
        if travel.by == "version":
            start = self.version(newest, travel.start) + (not travel.start_inclusive)
            if travel.end is not None:
                end = self.version(newest, travel.end) - (not travel.end_inclusive)
        else:
            # Commit times are exact to a microsecond
            step = timedelta(microseconds=1)
            start = self.moment(travel.start)
            start += timedelta(0) if travel.start_inclusive else step
            if travel.end is not None:
                end = self.moment(travel.end)
                end -= timedelta(0) if travel.end_inclusive else step
        return table.changes(start, end)

    # Files

    def _files_where(self, reference: Reference, snapshot: Snapshot) -> Predicate | None:
        """Return the part of a WHERE that the bounds of files can answer."""
        where = self._where_after(reference)
        if where is None:
            return None
        alias = reference.alias or _last_part(reference.table)
        text = self.args.with_literals(where)
        return where_predicate(understood(text, snapshot.spec, alias))

    def _where_after(self, reference: Reference) -> Slice | None:
        """Return the condition of `FROM t WHERE condition`; None after another FROM."""
        start = self.statement.text.offset
        has_sample = reference.alias_at != reference.slice.end
        if has_sample:
            return None
        cursor = Cursor(self.statement.text.text, self._tokens)
        starts = [token.start for token in self._tokens]
        index = bisect_left(starts, reference.slice.offset - start)
        if index == 0 or self._tokens[index - 1].value != "FROM":
            return None
        cursor.index = bisect_left(starts, reference.slice.end - start)
        try:
            cursor.alias()
            if not cursor.accept("WHERE"):
                return None
            where = cursor.expression(_AFTER_WHERE)
        except InvalidInputError:
            return None
        if cursor.token.kind != END and cursor.word not in _AFTER_WHERE | {")"}:
            return None
        return Slice(text=where.text, offset=where.offset + start)

    @cached_property
    def _tokens(self) -> list[Token]:
        return tokens(self.statement.text.text, join_rows=True)

    # Columns with the whole name of their table

    @cached_property
    def _qualifiers(self) -> list[tuple[int, int, str]]:
        """The edits that make `orders.id` of `lake.shop.orders.id`.

        A placeholder has an alias of one part, so that Spark would not find the longer name.
        """
        names = [reference.table for reference in self.statement.references if not reference.alias]
        if self.target is not None:
            names.append(self.target)
        long_names: dict[Names, TableName] = {}
        for name in names:
            if len(name.parts) > 1 and table_uri(self.spark, name, self.args) is not None:
                long_names[_casefolded(name)] = name
        if not long_names:
            return []
        spans = [reference.slice for reference in self.statement.references]
        spans += [self.target.slice] if self.target is not None else []
        chains = list(_chains(self.statement.text, self._tokens, spans))
        edits = []
        for chain in chains:
            for folded, name in long_names.items():
                if chain.folded[: len(folded)] == folded and len(chain.folded) > len(folded):
                    self._check_alias(chain, name, folded, chains)
                    last = chain.spans[len(folded) - 1]
                    edits.append((chain.spans[0][0], last[0], ""))
        return edits

    def _check_alias(
        self,
        chain: "_Chain",
        name: TableName,
        folded: Names,
        chains: Sequence["_Chain"],
    ) -> None:
        """Raise InvalidInputError if another table may have the same alias."""
        alias = name.parts[-1].casefold()
        same_alias = [
            reference
            for reference in self.statement.references
            if (reference.alias or _last_part(reference.table)).casefold() == alias
            and _casefolded(reference.table) != folded
        ]
        is_elsewhere = any(other.folded == (alias,) for other in chains)
        if same_alias or is_elsewhere:
            raise InvalidInputError(
                f"{chain.text} may be a column of more than one table; give "
                f"{name.slice.text} an alias, and write alias.column"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """A name of one or several parts in a text, and where each part is."""

    folded: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    text: str


def _chains(text: Slice, all_tokens: Sequence[Token], without: Sequence[Slice]) -> list[_Chain]:
    """Return the names in a text, outside of some spans."""
    cursor = Cursor(text.text, list(all_tokens))
    chains = []
    index = 0
    while all_tokens[index].kind != END:
        first = index
        if not cursor.is_name(all_tokens[index]):
            index += 1
            continue
        parts = [all_tokens[index]]
        while all_tokens[index + 1].value == "." and _is_part(cursor, all_tokens[index + 2]):
            parts.append(all_tokens[index + 2])
            index += 2
        index += 1
        offset = all_tokens[first].start + text.offset
        if any(span.offset <= offset < span.end for span in without):
            continue
        chains.append(
            _Chain(
                folded=tuple(_folded(text.text, part) for part in parts),
                spans=tuple((part.start + text.offset, part.end + text.offset) for part in parts),
                text=text.text[parts[0].start : parts[-1].end],
            )
        )
    return chains


def _is_part(cursor: Cursor, token: Token) -> bool:
    return cursor.is_name(token) or token.value == "*"


def _folded(text: str, token: Token) -> str:
    return "*" if token.value == "*" else identifier_value(text, token).casefold()


def _casefolded(name: TableName) -> Names:
    return tuple(part.casefold() for part in name.parts)


def _last_part(name: TableName) -> str:
    return name.parts[-1] if name.parts else ""


def _named_version(newest: Snapshot, name: str) -> int:
    """Return the version of a savepoint or of a finished business snapshot."""
    business, savepoints = newest.root.business, newest.root.savepoints
    if name in savepoints:
        return savepoints[name]
    if business.is_named_like(name):
        return business.version_of(name, savepoints, newest.version)
    known = ", ".join(map(repr, sorted(savepoints))) or "none"
    raise NotFoundError(
        f"{newest.storage.uri} has no savepoint {name!r}; give a version, or one of its "
        f"savepoints: {known}"
    )
