"""Increments of one form: the same format and fields, the same values of folders, and rows or ids alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opal_lake.errors import InvalidInputError
from opal_lake.job.operations.folder import Mutate
from opal_lake.job.source import format_of
from opal_lake.mutate.increments import Increment
from opal_lake.mutate.mutation import Work
from opal_lake.storage import Storage
from opal_spark.mutate.avro_files import schema_text
from opal_spark.mutate.record import Record, unknown_names
from opal_spark.sources.text.csv_lines import cells_of, first_line, is_true


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
    folders: tuple[tuple[str, str | None], ...]
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
        raise InvalidInputError(f"the increments are files of the formats {', '.join(sorted(formats))}; merge one format at a time")
    return formats.pop()


def forms_of(files: Sequence[Readable], job: Mutate, record: Record, kind: str, options: Mapping[str, str]) -> dict[Form, list[Readable]]:
    """Which files are read together. An empty file fails, unless it is accepted: an upload may have been cut off."""
    forms: dict[Form, list[Readable]] = {}
    for file in files:
        if file.increment.size == 0:
            if job.on_empty == "fail":
                raise InvalidInputError(
                    f"{file.increment.source} is empty: deliver it again, or accept empty files with on_empty='accept' (--accept-empty)"
                )
            continue
        folders = {name: value for name, value in file.increment.folders.items() if name in record.partition_by}
        if kind == "csv":
            form = _csv_form(file, job, record, options, folders)
        else:
            is_deletes = file.increment.is_deletes(job.delete_prefix)
            header = schema_text(file.storage, file.path) if kind == "avro" else None
            form = Form(format=kind, names=(), header=header, folders=tuple(folders.items()), is_deletes=is_deletes)
        if form is not None:
            forms.setdefault(form, []).append(file)
    return forms


def _csv_form(file: Readable, job: Mutate, record: Record, options: Mapping[str, str], folders: Mapping[str, str | None]) -> Form | None:
    """None of a file without a line."""
    is_deletes = file.increment.is_deletes(job.delete_prefix)
    values = tuple(folders.items())
    line = first_line(file.storage, file.path, options)
    if line is None:
        return None
    cells = cells_of(line, options)
    given = [name for name in record.given.names if name not in folders]
    if is_true(options, "header"):
        _check_header(file, cells, given, record, is_deletes=is_deletes)
        return Form(format="csv", names=tuple(cells), header=line, folders=values, is_deletes=is_deletes)
    if is_deletes and len(cells) == len(record.ids):
        if tuple(cells) == record.ids:
            raise InvalidInputError(
                f"{file.increment.source}, line 1: {line!r} is a header, and these files have none: take it out, or give header=True"
            )
        return Form(format="csv", names=record.ids, header=None, folders=values, is_deletes=True)
    return Form(format="csv", names=tuple(given), header=None, folders=values, is_deletes=is_deletes)


def _check_header(file: Readable, cells: Sequence[str], given: Sequence[str], record: Record, *, is_deletes: bool) -> None:
    twice = sorted({name for name in cells if cells.count(name) > 1})
    problems = [f"field {name!r} is there twice" for name in twice] + unknown_names(cells, given)
    needed = record.ids if is_deletes else [name for name in given if name in record.fields.names]
    problems += [f"field {name!r} is missing" for name in needed if name not in cells and name in given]
    if problems:
        raise InvalidInputError(
            f"{file.increment.source}, line 1: {'; '.join(problems)}. The header is {','.join(cells)}; records have {','.join(given)}"
            + ("" if set(cells) & set(given) else ". If the files have no header, give header=False (--no-header)")
        )
