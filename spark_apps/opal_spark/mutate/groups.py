"""Increments of one form, which are read together.

They have the same format, the same fields in files and in folders, and all have rows or all have
only ids.
"""

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
from opal_spark.mutate.record import Record, missing_names, unknown_names
from opal_spark.sources.text.csv_lines import first_line, is_true

AT_ONCE = 16  # files whose headers are read at once
_NULS_A_LETTER = 4  # a line with more than one NUL in so many letters has wider letters than a byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """An increment with its number in the order of the files, and its current path."""

    number: int
    increment: Increment
    storage: Storage
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of files that are read together.

    `names` are the fields of CSV cells in their order, and empty for other formats. `header` is a
    CSV file's first line if that is not a row, an Avro file's schema, and None otherwise. `folders`
    are the fields that folders name.
    """

    format: str
    names: tuple[str, ...]
    header: str | None
    folders: tuple[str, ...]
    is_deletes: bool


def readable_increments(work: Work) -> list[Readable]:
    """Return the increments in the order of the files, with their numbers from 0."""
    files = []
    pairs = zip(work.increments, work.readable, strict=True)
    for number, (increment, (storage, path)) in enumerate(pairs):
        files.append(Readable(number=number, increment=increment, storage=storage, path=path))
    return files


def increment_format(job: Mutate, work: Work) -> str:
    """Return the given format, or the one that the files' endings name.

    A name without an ending is CSV, as Hadoop's part files are.
    """
    if job.increment_format is not None:
        return job.increment_format
    formats = {format_of(increment.name) or "csv" for increment in work.increments}
    if len(formats) > 1:
        raise InvalidInputError(
            f"by their names, the increments are {' and '.join(sorted(formats))} files. Merge one "
            "format at a time. If all files have one format, name it, for example "
            "increment_format='csv' (--increment-format)"
        )
    return formats.pop()


def forms_of(
    files: Sequence[Readable], job: Mutate, record: Record, kind: str, options: Mapping[str, str]
) -> dict[Form, list[Readable]]:
    """Return the files that are read together, by their form.

    An empty file may be an upload that was cut off. It is an error unless the job accepts empty
    files.
    """
    for file in files:
        if file.increment.size == 0 and job.on_empty == "fail":
            raise InvalidInputError(
                f"{file.increment.source} is empty: deliver it again, "
                "or accept empty files with on_empty='accept' (--accept-empty)"
            )
    with_data = [file for file in files if file.increment.size]

    def read_head(file: Readable) -> str | None:
        if kind == "avro":
            return schema_text(file.storage, file.path, file.increment.source)
        if kind == "csv":
            return first_line(file.storage, file.path, options, file.increment.source)
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        heads = list(pool.map(read_head, with_data))
    forms: dict[Form, list[Readable]] = {}
    for file, head in zip(with_data, heads, strict=True):
        if kind != "csv":
            form = Form(
                format=kind,
                names=(),
                header=head,
                folders=_partition_folders(file, record),
                is_deletes=file.increment.is_deletes(job.delete_prefix),
            )
        elif head is not None:
            form = _csv_form(file, head, job, record, options)
        else:
            continue
        forms.setdefault(form, []).append(file)
    return forms


def _partition_folders(file: Readable, record: Record) -> tuple[str, ...]:
    return tuple(name for name in file.increment.folders if name in record.partition_by)


def _csv_form(
    file: Readable, line: str, job: Mutate, record: Record, options: Mapping[str, str]
) -> Form:
    if line.count("\x00") * _NULS_A_LETTER > len(line):
        raise InvalidInputError(
            f"{file.increment.source} has text of several bytes a letter, such as UTF-16, or is "
            "not a text file. Give increment_options={'encoding': 'UTF-16', "
            "'multiLine': 'true'} (--increment-option), or deliver the file as UTF-8"
        )
    is_deletes = file.increment.is_deletes(job.delete_prefix)
    folders = _partition_folders(file, record)
    cells = header_cells(line, options)
    given = [name for name in record.given.names if name not in folders]
    names: Sequence[str] = given
    header = None
    if is_true(options, "header"):
        _check_header(file, cells, given, record, is_deletes=is_deletes)
        names = cells
        header = line
    else:
        _refuse_header(file, line, cells, given, record)
        if is_deletes and len(cells) == len(record.ids):
            names = record.ids
    return Form(
        format="csv", names=tuple(names), header=header, folders=folders, is_deletes=is_deletes
    )


def _refuse_header(
    file: Readable, line: str, cells: Sequence[str], given: Sequence[str], record: Record
) -> None:
    """Raise InvalidInputError for a header in a file that should have none."""
    first_row = [cell.strip().casefold() for cell in cells]
    for names in (given, record.ids):
        if first_row == [name.casefold() for name in names]:
            raise InvalidInputError(
                f"{file.increment.source}, line 1: {line!r} is a header, but the job has "
                "header=False (--no-header). Remove the line, or give header=True"
            )


def _check_header(
    file: Readable, cells: Sequence[str], given: Sequence[str], record: Record, *, is_deletes: bool
) -> None:
    repeated = sorted({name for name in cells if cells.count(name) > 1})
    problems = [f"field {name!r} occurs twice" for name in repeated]
    problems += unknown_names(cells, given)
    needed = record.ids if is_deletes else record.fields.names
    # Fields that folders name are not in the file
    in_file = [name for name in needed if name in given]
    problems += missing_names(in_file, cells)
    if not problems:
        return
    message = (
        f"{file.increment.source}, line 1: {'; '.join(problems)}. "
        f"The header is {','.join(cells)}; records have the fields {','.join(given)}"
    )
    if not set(cells) & set(given):
        message += ". If the files have no header, give header=False (--no-header)"
    raise InvalidInputError(message)
