"""The check of CSV files' headers against the table's columns."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pyspark.sql import SparkSession

from opal_lake.definition.table_spec import TableSpec, refuse_commit_column
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.sources.paths import MAX_FILES, file_paths, one_file, open_files

# `nullvalue` is a text that no cell has: by default Spark reads a quoted empty cell as null, too
_DEFAULTS = {"header": "true", "escape": '"', "nullvalue": "\u0000"}
_CELL = re.compile(r"_c\d+")
_RULE = (
    "the header of a CSV file must name the table's columns, "
    "and be the same in all files of one ingest"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The names of the cells in their order, and the names of columns in folders."""

    cells: tuple[str, ...]
    folders: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.cells + self.folders


def csv_options(source: Files) -> dict[str, str]:
    """Return the reader's options.

    By default files have a header, and a quote in quotes is doubled (RFC 4180).
    """
    return _DEFAULTS | {name.casefold(): value for name, value in source.options.items()}


def read_header(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> Header:
    """Return the header that all files should have.

    If the files have no header, the names are the source's `columns`, or the table's columns in
    their order.
    """
    cells, folders = _first_row(spark, source)
    refuse_commit_column(spec, (*folders, *source.columns))
    if has_header(source):
        refuse_commit_column(spec, cells or ())
        if cells is None:
            raise InvalidInputError(
                f"the CSV files {list(source.paths)} are empty, without even a header; "
                "deliver them again"
            )
        if _misfits((*cells, *folders), spec, ignore=ignore):
            problems = header_problems(spark, source, spec, ignore=ignore)
            raise InvalidInputError(f"{_RULE}: {'; '.join(problems)}")
        return Header(cells=cells, folders=folders)
    if source.columns:
        problems = _misfits((*source.columns, *folders), spec, ignore=ignore)
        if problems:
            raise InvalidInputError(
                f"columns={list(source.columns)} must name the table's columns: "
                f"{'; '.join(problems)}"
            )
        return Header(cells=source.columns, folders=folders)
    if not spec.schema.is_in_order:
        raise InvalidInputError(
            f"the CSV files {list(source.paths)} have no header, and columns of the table were "
            "dropped, moved or added between others, so the order of the cells is not known; "
            "name the columns of the files: columns=[...]"
        )
    folder_names = {name.casefold() for name in folders}
    fields = [field for field in spec.schema.fields if field.name.casefold() not in folder_names]
    # Older files lack the columns that were added to the table later
    older_fields = fields[: len(cells)] if cells else fields
    if all(spec.schema.is_optional(field) for field in fields[len(older_fields) :]):
        fields = older_fields
    return Header(cells=tuple(field.name for field in fields), folders=folders)


def check_headers(spark: SparkSession, source: Files, spec: TableSpec) -> None:
    """Raise InvalidInputError with the files whose headers do not fit, if any.

    It is called after Spark has reported that headers differ.
    """
    if not has_header(source):
        return
    problems = header_problems(spark, source, spec)
    if problems:
        raise InvalidInputError(f"{_RULE}: {'; '.join(problems)}")


def has_header(source: Files) -> bool:
    return csv_options(source)["header"].lower() == "true"


def header_problems(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> list[str]:
    """Return a problem for each of the first files whose header does not fit."""
    first, folders = _first_row(spark, source)
    first_names = [name.casefold() for name in first or ()]
    problems = []
    for path in file_paths(open_files(spark, source, "text", {}))[:MAX_FILES]:
        cells, _ = _first_row(spark, one_file(source, path))
        # An empty file has neither a header nor rows
        if cells is None:
            continue
        misfits = _misfits((*cells, *folders), spec, ignore=ignore)
        if misfits:
            problems.append(f"{path}: {', '.join(misfits)}")
        elif [name.casefold() for name in cells] != first_names:
            problems.append(
                f"{path}: the columns {list(cells)} have another order than in other files; "
                "ingest this file on its own"
            )
    return problems


def _first_row(
    spark: SparkSession, source: Files
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the cells of a first row, and the names of columns in folders.

    It is the first row of any file. The cells are None if all files are empty.
    """
    options = csv_options(source) | {"header": "false", "inferSchema": "false"}
    rows = open_files(spark, source, "csv", options)
    cell_positions, folders = [], []
    for position, name in enumerate(rows.columns):
        if _CELL.fullmatch(name):
            cell_positions.append(position)
        else:
            folders.append(name)
    first = rows.head() if cell_positions else None
    cells = None
    if first is not None:
        cells = tuple(first[position] or "" for position in cell_positions)
    return cells, tuple(folders)


def _misfits(names: Sequence[str], spec: TableSpec, *, ignore: bool = False) -> list[str]:
    """Return the problems of names that should be the names of the table's columns."""
    columns = {name.casefold() for name in spec.schema.names}
    counts = Counter(name.casefold() for name in names)
    problems = []
    if "" in counts:
        problems.append("a column without a name")
    for name, times in counts.items():
        if times > 1:
            problems.append(f"column {name!r} occurs {times} times")
    unknown = [name for name in names if name and name.casefold() not in columns]
    if ignore:
        # The values of a renamed column must not get lost
        unknown = [name for name in unknown if spec.schema.former(name) is not None]
    problems += [f"unknown column {name!r}{_advice(name, spec)}" for name in unknown]
    for field in spec.schema.fields:
        if field.name.casefold() not in counts and not spec.schema.is_optional(field):
            problems.append(f"missing column {field.name!r}")
    return problems


def _advice(name: str, spec: TableSpec) -> str:
    """Return what became of a column with this name, or a similar name."""
    past = spec.schema.past_of(name)
    if past:
        return past
    close = get_close_matches(name, spec.schema.names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
