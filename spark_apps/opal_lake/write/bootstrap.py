"""The files of a bootstrap: its plan, and a record of each finished batch.

`bootstrap_job` runs a bootstrap. The list of files is fixed once for a source, so that a source
that changes meanwhile cannot mix old and new rows. Each batch is an ingest with a token made of its
files. The record of a batch lies next to the plan, because a table forgets old tokens.

The folder `_opal/bootstrap/<source>/` holds three kinds of sealed files:

- `plan.json` is {`source`: [location, format, version], `schema`: Spark's JSON, `folders`: names,
  `batches`: lists of [path, size, rows, milliseconds of the last change or null], `table_schema`:
  the table's schema at that time, as a commit has it}. The first plan that is stored is final. The
  source's columns are those of `table_schema` by name, whatever is renamed later.
- `<batch, 8 digits>.json` is the JobResult of a finished batch.
- `result.json` is the JobResult of the whole bootstrap.

A digest is the first 32 hex digits of the SHA-256 of canonical JSON. `<source>` is the digest of
[format, location, requested version or null]. The token of batch b is `bootstrap/<source>/<b, 8
digits>-<digest of [fixed version, files of the batch ...]>`. The token of the MetaGen is
`bootstrap/<source>/metagen-<digest of the list of these tokens>`.

A plan may name only files of the caller's source. It may not have a user-defined type of Spark,
because Spark would load and run the code of such a type.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from opal_lake import layout
from opal_lake.checked import MAX_NESTED, count, listed, mapped, shallow, text, word
from opal_lake.decoding import decoding
from opal_lake.definition.changes.paths import parts_of
from opal_lake.definition.schema import (
    Field,
    Schema,
    all_fields,
    schema_from_json,
    schema_to_json,
)
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.commit import canonical_json, seal, unseal
from opal_lake.result import JobResult, checked_result
from opal_lake.source import PACKAGES, SOURCE_TABLE_FORMATS
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed

OPERATION = "bootstrap"
MAX_FILES = 5_000  # of a batch
# Batches of a Delta or Iceberg table: its reader scans all files of the table for each batch
MAX_SCANS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """The table or folder that rows come from.

    `version` is a version of a Delta table or the id of an Iceberg snapshot; None is the newest. A
    folder of files has no version.
    """

    location: str
    format: str
    version: int | None = None

    def __post_init__(self) -> None:
        if self.format not in SOURCE_TABLE_FORMATS:
            raise InvalidInputError(
                f"format {self.format!r} is unknown; use one of {', '.join(SOURCE_TABLE_FORMATS)}"
            )
        if self.version is not None and self.format not in PACKAGES:
            raise InvalidInputError(
                f"a {self.format} folder has no versions, got version {self.version}; leave it out"
            )

    @property
    def name(self) -> str:
        """The name of the bootstrap's folder: a table has one bootstrap of each source."""
        return _digest([self.format, self.location.rstrip("/"), self.version])


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the source, with the number of its rows that are not deleted.

    `stamp_ms` is the time of the file's last change; None if files of the source never change.
    """

    path: str
    size: int
    rows: int
    stamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPlan:
    """The files of a source in batches, fixed by the first attempt.

    `schema` is Spark's JSON. `folders` are the partition columns, whose values are in the paths of
    the files. `table_schema` has the table's columns when the plan was stored; None before.
    """

    source: SourceTable
    schema: Mapping[str, Any]
    folders: tuple[str, ...]
    batches: tuple[tuple[SourceFile, ...], ...]
    table_schema: Schema | None = None

    def new_names(self, current: Schema) -> dict[str, str | None]:
        """Return the names that columns of the source have in the table now.

        They are given by the lower case of their names in the source, and only if they differ. None
        stands for a column that was dropped. Raises InvalidInputError for a nested column whose
        members have other names now.
        """
        if self.table_schema is None:
            return {}
        own = {field.id: field for field in current.fields}
        names: dict[str, str | None] = {}
        for field in self.table_schema.fields:
            now = own.get(field.id)
            if now is None:
                names[field.name.casefold()] = None
                continue
            if not _has_same_members(field, now):
                raise InvalidInputError(
                    f"members of column {now.name!r} were renamed or dropped since the bootstrap "
                    "began, and its remaining files have the earlier ones; rename them back, let "
                    "the bootstrap end, and change them then"
                )
            if now.name != field.name:
                names[field.name.casefold()] = now.name
        return names

    def token(self, batch: int) -> str:
        """Return the token of the ingest of a batch."""
        files = [_file_to_json(file) for file in self.batches[batch]]
        digest = _digest([self.source.version, *files])
        return f"{OPERATION}/{self.source.name}/{batch:08d}-{digest}"

    @property
    def metagen_token(self) -> str:
        """The token of the MetaGen after the batches; each plan of a source has its own."""
        digest = _digest([self.token(batch) for batch in range(len(self.batches))])
        return f"{OPERATION}/{self.source.name}/metagen-{digest}"

    def rows(self, batch: int) -> int:
        """Return how many rows the files of a batch hold, by the list of files."""
        return sum(file.rows for file in self.batches[batch])


def _has_same_members(before: Field, now: Field) -> bool:
    """Return whether all parts that a column had have the names that they had."""
    names = {part.id: part.name for part in all_fields(parts_of(now.type))}
    return all(names.get(part.id) == part.name for part in all_fields(parts_of(before.type)))


def _digest(value: Any) -> str:
    """Return the first 32 hex digits of the SHA-256 of canonical JSON."""
    return sha256(canonical_json(value)).hexdigest()[:32]


def source_table(location: str, format: str, version: int | None) -> SourceTable:
    """Return a source with an absolute path, so that the same source has one name."""
    # An Iceberg location without a slash is the name of a table in a catalog
    is_path = format != "iceberg" or "/" in location
    if is_path and "://" not in location:
        location = os.path.abspath(location)
    return SourceTable(location=location, format=format, version=version)


def refuse_overlap(source: SourceTable, uri: str) -> None:
    """Raise InvalidInputError if the table and its source contain one another.

    A table within its source would be read as a part of the source.
    """
    table_folder = real_location(uri) + "/"
    source_folder = real_location(source.location) + "/"
    if table_folder.startswith(source_folder) or source_folder.startswith(table_folder):
        raise InvalidInputError(
            f"the table {uri} and its source {source.location} must not contain one another; "
            "choose another place for the table"
        )


def real_location(location: str) -> str:
    """Return a location in a form for comparisons.

    Symbolic links of a local path are resolved, and all schemes of S3 become one.
    """
    scheme, _, path = location.rpartition("://")
    if scheme in ("", "file"):
        return os.path.realpath(path)
    if scheme.startswith("s3"):
        return f"s3://{path.rstrip('/')}"
    return location.rstrip("/")


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is the folder itself, or lies in it."""
    file_path, folder_path = plain_path(path), plain_path(folder)
    if ".." in file_path.split("/"):
        return False
    return file_path == folder_path or file_path.startswith(folder_path + "/")


def plain_path(path: str) -> str:
    """Return the path of a file as Spark names it, in a form for comparisons.

    Spark writes file:/a, file:///a and /a for the same file.
    """
    by_one_scheme = re.sub(r"^s3://", "s3a://", path)
    return re.sub(r"^file:/*", "/", by_one_scheme).rstrip("/")


def cut_batches(
    files: Sequence[SourceFile], source: SourceTable, batch_bytes: int
) -> tuple[tuple[SourceFile, ...], ...]:
    """Cut the files of a source into batches of about `batch_bytes`.

    A Delta or Iceberg source has at most `MAX_SCANS` batches, of any size. Files are in the order
    of their paths, so that files of one partition stay together.
    """
    if batch_bytes < 1:
        raise InvalidInputError(f"batch_mb must be at least 1, got {batch_bytes >> 20}")
    ordered = sorted(files, key=lambda file: file.path)
    if source.format in PACKAGES:
        return _equal_batches(ordered, batch_bytes)
    batches: list[list[SourceFile]] = []
    size = 0
    for file in ordered:
        is_full = size + file.size > batch_bytes
        if not batches or is_full or len(batches[-1]) >= MAX_FILES:
            batches.append([])
            size = 0
        batches[-1].append(file)
        size += file.size
    return tuple(tuple(batch) for batch in batches)


def _equal_batches(
    ordered: Sequence[SourceFile], batch_bytes: int
) -> tuple[tuple[SourceFile, ...], ...]:
    """Cut files into at most MAX_SCANS batches of nearly equal size."""
    total = sum(file.size for file in ordered)
    max_batches = min(MAX_SCANS, -(-total // batch_bytes))
    batches: dict[int, list[SourceFile]] = {}
    bytes_before = 0
    for file in ordered:
        batch = bytes_before * max_batches // total if total else 0
        batches.setdefault(batch, []).append(file)
        bytes_before += file.size
    return tuple(tuple(batch) for batch in batches.values())


def fix_plan(storage: Storage, name: str, plan: BootstrapPlan) -> BootstrapPlan:
    """Store the plan unless one is stored already; return the stored plan."""
    path = layout.bootstrap_plan_path(name)
    storage.put_if_absent(path, seal(canonical_json(_plan_to_json(plan))))
    stored = read_plan(storage, name)
    assert stored is not None
    return stored


def read_plan(storage: Storage, name: str) -> BootstrapPlan | None:
    """Return the stored plan of a bootstrap; None if none is stored yet."""
    path = layout.bootstrap_plan_path(name)
    try:
        data = _read(storage, path)
    except NotFoundError:
        return None
    with decoding(f"{storage.uri}/{path}", "a plan"):
        return _plan_from_json(data)


def done_batches(storage: Storage, name: str) -> dict[int, JobResult]:
    """Return the recorded results of finished batches, by the number of the batch."""
    # All paths are listed first: the folder may change while results are read
    paths = [entry.path for entry in storage.list(layout.bootstrap_folder(name))]
    results: dict[int, JobResult] = {}
    for path in paths:
        number = layout.bootstrap_batch(path)
        if number is not None:
            results[number] = _read_result(storage, path)
    return results


def keep_batch(storage: Storage, name: str, batch: int, result: JobResult) -> None:
    """Store the result of a finished batch, without its examples of rejected rows.

    I34: the record is never deleted, so it may not hold values of rows.
    """
    path = layout.bootstrap_batch_path(name, batch)
    record = replace(result, examples=())
    storage.put_if_absent(path, seal(canonical_json(record.to_dict())))


def keep_result(storage: Storage, name: str, result: JobResult) -> None:
    """Store the result of the whole bootstrap."""
    path = layout.bootstrap_result_path(name)
    storage.put_if_absent(path, seal(canonical_json(result.to_dict())))


def read_result(storage: Storage, name: str) -> JobResult | None:
    """Return the result of a finished bootstrap, marked as repeated, or None."""
    try:
        result = _read_result(storage, layout.bootstrap_result_path(name))
    except NotFoundError:
        return None
    return replace(result, repeated=True)


def _read(storage: Storage, path: str) -> Any:
    return unseal(read_sealed(storage, path), f"{storage.uri}/{path}")


def _read_result(storage: Storage, path: str) -> JobResult:
    data = _read(storage, path)
    with decoding(f"{storage.uri}/{path}", "a result"):
        return JobResult.from_dict(checked_result(data))


def _plan_to_json(plan: BootstrapPlan) -> dict[str, Any]:
    schema = plan.table_schema
    return {
        "batches": [_batch_to_json(batch) for batch in plan.batches],
        "folders": list(plan.folders),
        "schema": plan.schema,
        "source": [plan.source.location, plan.source.format, plan.source.version],
        "table_schema": None if schema is None else schema_to_json(schema),
    }


def _batch_to_json(batch: Sequence[SourceFile]) -> list[list[Any]]:
    return [_file_to_json(file) for file in batch]


def _plan_from_json(data: Mapping[str, Any]) -> BootstrapPlan:
    """Decode a plan; raise an error if it is damaged or not safe to read."""
    location, kind, version = data["source"]
    table_schema = data["table_schema"]
    return BootstrapPlan(
        source=SourceTable(
            location=text(location),
            format=text(kind),
            version=None if version is None else count(version),
        ),
        schema=_plain_schema(data["schema"]),
        folders=tuple(map(text, listed(data["folders"]))),
        batches=tuple(_batch_from_json(batch) for batch in data["batches"]),
        table_schema=None if table_schema is None else schema_from_json(mapped(table_schema)),
    )


def _batch_from_json(data: list[Any]) -> tuple[SourceFile, ...]:
    return tuple(map(_file_from_json, data))


def _plain_schema(data: Any) -> dict[str, Any]:
    """Return a schema; raise ValueError if it has a user-defined type.

    Spark loads and runs the Python class that such a type names.
    """
    schema = mapped(shallow(data, 4 * MAX_NESTED))
    unchecked: list[Any] = [schema]
    while unchecked:
        part = unchecked.pop()
        if isinstance(part, dict):
            if part.get("type") == "udt" or "pyClass" in part:
                raise ValueError("its schema has a user-defined type")
            unchecked.extend(part.values())
        elif isinstance(part, list):
            unchecked.extend(part)
    return schema


def _file_to_json(file: SourceFile) -> list[Any]:
    return [file.path, file.size, file.rows, file.stamp_ms]


def _file_from_json(data: list[Any]) -> SourceFile:
    stamp_ms = None if data[3] is None else word(data[3])
    return SourceFile(
        path=text(data[0]), size=count(data[1]), rows=count(data[2]), stamp_ms=stamp_ms
    )
