"""The headers of CSV files against the table's columns."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pyspark.sql import SparkSession

from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError
from opal_lake.source import Files
from opal_spark.sources.paths import MOST_FILES, file_paths, one_file, open_files

# A null value that no cell has: by default Spark takes a quoted empty cell for null, too.
_DEFAULTS = {"header": "true", "escape": '"', "nullvalue": "\u0000"}
_CELL = re.compile(r"_c\d+")
_RULE = "the header of a CSV file must name the table's columns, and be the same in all files of one ingest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Names of cells, in their order, and names that the folders of the files bring."""

    cells: tuple[str, ...]
    folders: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.cells + self.folders


def csv_options(source: Files) -> dict[str, str]:
    """The reader's options; unless they say otherwise there is a header, and a quote in quotes is doubled (RFC 4180)."""
    return _DEFAULTS | {name.casefold(): value for name, value in source.options.items()}


def read_header(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> Header:
    """The header that all files should have; without one, the cells are the table's columns in their order."""
    cells, folders = _first_row(spark, source)
    if not has_header(source) and source.columns:
        if problems := _misfits((*source.columns, *folders), spec, ignore=ignore):
            raise InvalidInputError(
                f"columns={list(source.columns)} must name the table's columns: {'; '.join(problems)}"
            )
        return Header(cells=source.columns, folders=folders)
    if not has_header(source):
        inside = {name.casefold() for name in folders}
        fields = [field for field in spec.schema.fields if field.name.casefold() not in inside]
        shorter = fields[: len(cells)] if cells else fields
        is_older = all(spec.schema.is_added(field) for field in fields[len(shorter) :])
        return Header(
            cells=tuple(field.name for field in (shorter if is_older else fields)), folders=folders
        )
    if cells is None:
        raise InvalidInputError(
            f"the CSV files {list(source.paths)} are empty, without even a header; deliver them again"
        )
    if _misfits((*cells, *folders), spec, ignore=ignore):
        raise InvalidInputError(
            f"{_RULE}: {'; '.join(header_problems(spark, source, spec, ignore=ignore))}"
        )
    return Header(cells=cells, folders=folders)


def check_headers(spark: SparkSession, source: Files, spec: TableSpec) -> None:
    """Name the files with another header, after Spark has reported that there are some."""
    if has_header(source) and (problems := header_problems(spark, source, spec)):
        raise InvalidInputError(f"{_RULE}: {'; '.join(problems)}")


def has_header(source: Files) -> bool:
    return csv_options(source)["header"].lower() == "true"


def header_problems(
    spark: SparkSession, source: Files, spec: TableSpec, *, ignore: bool = False
) -> list[str]:
    """What is wrong with which file; empty files have no header and no rows."""
    first, folders = _first_row(spark, source)
    problems = []
    for path in file_paths(open_files(spark, source, "text", {}))[:MOST_FILES]:
        cells, _ = _first_row(spark, one_file(source, path))
        if cells is None:
            continue
        if misfits := _misfits((*cells, *folders), spec, ignore=ignore):
            problems.append(f"{path}: {', '.join(misfits)}")
        elif [name.casefold() for name in cells] != [name.casefold() for name in first or ()]:
            problems.append(
                f"{path}: the columns {list(cells)} come in another order than in other files; ingest it on its own"
            )
    return problems


def _first_row(
    spark: SparkSession, source: Files
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The cells of the first row of any file, None when all are empty; and the names that folders bring."""
    rows = open_files(
        spark, source, "csv", csv_options(source) | {"header": "false", "inferSchema": "false"}
    )
    indexes = [index for index, name in enumerate(rows.columns) if _CELL.fullmatch(name)]
    folders = tuple(name for name in rows.columns if not _CELL.fullmatch(name))
    first = rows.head() if indexes else None
    return (tuple(first[index] or "" for index in indexes) if first is not None else None), folders


def _misfits(names: Sequence[str], spec: TableSpec, *, ignore: bool = False) -> list[str]:
    """In which ways names are not the table's columns."""
    columns = {name.casefold(): name for name in spec.schema.names}
    counts = Counter(name.casefold() for name in names)
    problems = ["a column without a name"] if "" in counts else []
    problems += [
        f"column {name!r} is there {number} times" for name, number in counts.items() if number > 1
    ]
    problems += [
        f"unknown column {name!r}{_nearest(name, spec)}"
        for name in names
        if name and name.casefold() not in columns and not ignore
    ]
    missing = [
        field.name
        for field in spec.schema.fields
        if field.name.casefold() not in counts and not spec.schema.is_added(field)
    ]
    return problems + [f"missing column {name!r}" for name in missing]


def _nearest(name: str, spec: TableSpec) -> str:
    close = get_close_matches(name, spec.schema.names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
