"""Increments of one form: the same format and fields, also those that folders name, and rows or ids alone."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from opal_folder.increments import Increment
from opal_folder.mutation import Work
from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_lake.source import format_of
from opal_lake.storage import Storage
from opal_spark.mutate.avro_files import schema_text
from opal_spark.mutate.csv_text import header_cells
from opal_spark.mutate.record import Record, unknown_names
from opal_spark.sources.text.csv_lines import first_line, is_true

AT_ONCE = 16  # files are looked into
_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """An increment with its number in the order of the files, and where it lies now."""

    number: int
    increment: Increment
    storage: Storage
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """`names` of CSV are its cells, in their order; of other formats the files say them. `header` is the line that is no row; of Avro
    it is the files' own, with their schema.
    """

    format: str
    names: tuple[str, ...]
    header: str | None
    folders: tuple[str, ...]
    is_deletes: bool


def readable_increments(work: Work) -> list[Readable]:
    pairs = zip(work.increments, work.readable, strict=True)
    return [
        Readable(number=number, increment=increment, storage=storage, path=path)
        for number, (increment, (storage, path)) in enumerate(pairs)
    ]


def increment_format(job: Mutate, work: Work) -> str:
    """The format given, or what the endings say; of files whose names say nothing CSV, as Hadoop's part files are."""
    if job.increment_format is not None:
        return job.increment_format
    formats = {format_of(increment.name) or "csv" for increment in work.increments}
    if len(formats) > 1:
        raise InvalidInputError(
            f"the names of the increments say {' and '.join(sorted(formats))}; merge one format at a time, or, if all of them are of one, "
            "name it with increment_format='csv' (--increment-format)"
        )
    return formats.pop()


def forms_of(
    files: Sequence[Readable], job: Mutate, record: Record, kind: str, options: Mapping[str, str]
) -> dict[Form, list[Readable]]:
    """Which files are read together. An empty file fails, unless it is accepted: an upload may have been cut off."""
    for file in files:
        if file.increment.size == 0 and job.on_empty == "fail":
            raise InvalidInputError(
                f"{file.increment.source} is empty: deliver it again, or accept empty files with on_empty='accept' (--accept-empty)"
            )
    full = [file for file in files if file.increment.size]

    def head(file: Readable) -> str | None:
        if kind == "avro":
            return schema_text(file.storage, file.path, file.increment.source)
        return (
            first_line(file.storage, file.path, options, file.increment.source)
            if kind == "csv"
            else None
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        heads = list(pool.map(head, full))
    forms: dict[Form, list[Readable]] = {}
    for file, line in zip(full, heads, strict=True):
        if kind != "csv":
            folders = tuple(name for name in file.increment.folders if name in record.partition_by)
            is_deletes = file.increment.is_deletes(job.delete_prefix)
            forms.setdefault(
                Form(format=kind, names=(), header=line, folders=folders, is_deletes=is_deletes), []
            ).append(file)
        elif line is not None:
            forms.setdefault(_csv_form(file, line, job, record, options), []).append(file)
    return forms


def _csv_form(
    file: Readable, line: str, job: Mutate, record: Record, options: Mapping[str, str]
) -> Form:
    is_deletes = file.increment.is_deletes(job.delete_prefix)
    folders = tuple(name for name in file.increment.folders if name in record.partition_by)
    if line.count("\x00") * _FEW > len(line):
        raise InvalidInputError(
            f"{file.increment.source} is text of several bytes a letter, as UTF-16, or no text: give the options encoding=UTF-16 and "
            "multiLine=true (--increment-option), or deliver it as UTF-8"
        )
    cells = header_cells(line, options)
    given = [name for name in record.given.names if name not in folders]
    if is_true(options, "header"):
        _check_header(file, cells, given, record, is_deletes=is_deletes)
        return Form(
            format="csv", names=tuple(cells), header=line, folders=folders, is_deletes=is_deletes
        )
    if [cell.strip().casefold() for cell in cells] in (
        [name.casefold() for name in names] for names in (given, record.ids)
    ):
        raise InvalidInputError(
            f"{file.increment.source}, line 1: {line!r} is a header, and these files have none: take it out, or give header=True"
        )
    if is_deletes and len(cells) == len(record.ids):
        return Form(format="csv", names=record.ids, header=None, folders=folders, is_deletes=True)
    return Form(
        format="csv", names=tuple(given), header=None, folders=folders, is_deletes=is_deletes
    )


def _check_header(
    file: Readable, cells: Sequence[str], given: Sequence[str], record: Record, *, is_deletes: bool
) -> None:
    twice = sorted({name for name in cells if cells.count(name) > 1})
    problems = [f"field {name!r} is there twice" for name in twice] + unknown_names(cells, given)
    needed = record.ids if is_deletes else [name for name in given if name in record.fields.names]
    problems += [
        f"field {name!r} is missing" for name in needed if name not in cells and name in given
    ]
    if problems:
        raise InvalidInputError(
            f"{file.increment.source}, line 1: {'; '.join(problems)}. The header is {','.join(cells)}; records have {','.join(given)}"
            + (
                ""
                if set(cells) & set(given)
                else ". If the files have no header, give header=False (--no-header)"
            )
        )
