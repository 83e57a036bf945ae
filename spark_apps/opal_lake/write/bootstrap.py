"""What a bootstrap stores: its plan, and what is done. `bootstrap_job` runs it.

The list of files is fixed once for a source, so that a source that changes meanwhile cannot mix old
and new rows. Each batch is an ingest with a token made of its files. Its record lies beside the
plan, because a table forgets old tokens.

`_opal/bootstrap/<source>/` holds `plan.json`, `<batch, 8 digits>.json` and `result.json`, all
sealed; the last two are JobResults. `<source>` is the first 32 hex digits of the SHA-256 of
canonical JSON [format, place, version asked for or null]. The plan is {`source` [place, format,
version], `schema` (Spark's JSON), `folders`, `batches` [[[path, size, rows, milliseconds of the
last change or null]]]}; the first one stored is final. The token of batch b is
`bootstrap/<source>/<b, 8 digits>-<h>`, h being such digits of [version fixed, files of the batch
...]; that of the MetaGen is `bootstrap/<source>/metagen-<h>`, of the list of those tokens. The plan
names files of the source that the caller names, and no user-defined type of Spark, which Spark
would load and run.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from typing import Any

from opal_lake import layout
from opal_lake.checked import MOST_NESTED, count, listed, mapped, shallow, text, word
from opal_lake.decoding import decoding
from opal_lake.errors import InvalidInputError, NotFoundError
from opal_lake.log.commit import canonical_json, seal, unseal
from opal_lake.result import JobResult, checked_result
from opal_lake.source import PACKAGES, SOURCE_TABLE_FORMATS
from opal_lake.storage.protocol import Storage
from opal_lake.storage.verified import read_sealed

OPERATION = "bootstrap"
MOST_FILES = 5_000  # of a batch
MOST_SCANS = (
    8  # of a table whose reader cannot be restricted to some files: each batch costs a scan of all
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """Where rows come from. The version is Delta's, or the id of an Iceberg snapshot; None is the newest, and there is none of files."""

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
                f"a {self.format} folder has no version {self.version}; leave it out"
            )

    @property
    def name(self) -> str:
        """Of the folder of its bootstrap: the same source has one bootstrap a table."""
        return sha256(
            canonical_json([self.format, self.location.rstrip("/"), self.version])
        ).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file with the rows that are alive in it; `stamp_ms` is when it was last changed, None where files cannot be."""

    path: str
    size: int
    rows: int
    stamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPlan:
    """What the first try fixed. `schema` is Spark's own; `folders` are the columns that the paths of files name."""

    source: SourceTable
    schema: Mapping[str, Any]
    folders: tuple[str, ...]
    batches: tuple[tuple[SourceFile, ...], ...]

    def token(self, batch: int) -> str:
        files = sha256(
            canonical_json([self.source.version, *map(_file_to_json, self.batches[batch])])
        ).hexdigest()
        return f"{OPERATION}/{self.source.name}/{batch:08d}-{files[:32]}"

    @property
    def metagen_token(self) -> str:
        """Of the MetaGen that follows: another plan of the same source has another."""
        batches = sha256(
            canonical_json([self.token(batch) for batch in range(len(self.batches))])
        ).hexdigest()
        return f"{OPERATION}/{self.source.name}/metagen-{batches[:32]}"

    def rows(self, batch: int) -> int:
        return sum(file.rows for file in self.batches[batch])


def source_table(location: str, format: str, version: int | None) -> SourceTable:
    """With the absolute path of a local source, so that the same source has one name."""
    is_path = format != "iceberg" or "/" in location
    whole = os.path.abspath(location) if is_path and "://" not in location else location
    return SourceTable(location=whole, format=format, version=version)


def refuse_overlap(source: SourceTable, uri: str) -> None:
    """A table that lies within its source would be read as a part of it."""
    ours, theirs = (real_location(location) + "/" for location in (uri, source.location))
    if ours.startswith(theirs) or theirs.startswith(ours):
        raise InvalidInputError(
            f"the table {uri} and its source {source.location} must not contain one another; choose another place for the table"
        )


def real_location(location: str) -> str:
    """A form for comparisons: a local path without symbolic links, S3 by one scheme."""
    scheme, _, rest = location.rpartition("://")
    if scheme in ("", "file"):
        return os.path.realpath(rest)
    return f"s3://{rest.rstrip('/')}" if scheme.startswith("s3") else location.rstrip("/")


def is_below(path: str, folder: str) -> bool:
    """Whether a file is the folder itself, or in it."""
    whole, root = plain_path(path), plain_path(folder)
    return (whole == root or whole.startswith(root + "/")) and ".." not in whole.split("/")


def plain_path(path: str) -> str:
    """A path as Spark names a file, in a form for comparisons: Spark writes file:/a, file:///a and /a."""
    return re.sub(r"^file:/*", "/", re.sub(r"^s3://", "s3a://", path)).rstrip("/")


def cut_batches(
    files: Sequence[SourceFile], source: SourceTable, batch_bytes: int
) -> tuple[tuple[SourceFile, ...], ...]:
    """Files in the order of their paths, so that those of one partition stay together."""
    if batch_bytes < 1:
        raise InvalidInputError("batch_mb=0 is too small; give a whole number from 1")
    ordered = sorted(files, key=lambda file: file.path)
    total = sum(file.size for file in files)
    batches: dict[int, list[SourceFile]] = {}
    if source.format in PACKAGES:
        most = min(MOST_SCANS, -(-total // batch_bytes))
        for file, before in zip(
            ordered, accumulate((file.size for file in ordered), initial=0), strict=False
        ):
            batches.setdefault(before * most // total if total else 0, []).append(file)
        return tuple(map(tuple, batches.values()))
    held = 0
    for file in ordered:
        if (
            not batches
            or held + file.size > batch_bytes
            or len(batches[len(batches) - 1]) >= MOST_FILES
        ):
            batches[len(batches)] = []
            held = 0
        batches[len(batches) - 1].append(file)
        held += file.size
    return tuple(map(tuple, batches.values()))


def fix_plan(storage: Storage, name: str, plan: BootstrapPlan) -> BootstrapPlan:
    """Keep the plan of the first try; the one that stands, if another was first."""
    storage.put_if_absent(
        layout.bootstrap_plan_path(name), seal(canonical_json(_plan_to_json(plan)))
    )
    standing = read_plan(storage, name)
    assert standing is not None
    return standing


def read_plan(storage: Storage, name: str) -> BootstrapPlan | None:
    path = layout.bootstrap_plan_path(name)
    try:
        data = _read(storage, path)
    except NotFoundError:
        return None
    with decoding(f"{storage.uri}/{path}", "a plan"):
        return _plan_from_json(data)


def done_batches(storage: Storage, name: str) -> dict[int, JobResult]:
    """The results of batches that are in the table."""
    paths = [entry.path for entry in storage.list(layout.bootstrap_folder(name))]
    numbers = {
        number: path for path in paths if (number := layout.bootstrap_batch(path)) is not None
    }
    return {number: _read_result(storage, path) for number, path in numbers.items()}


def keep_batch(storage: Storage, name: str, batch: int, result: JobResult) -> None:
    storage.put_if_absent(
        layout.bootstrap_batch_path(name, batch), seal(canonical_json(result.to_dict()))
    )


def keep_result(storage: Storage, name: str, result: JobResult) -> None:
    storage.put_if_absent(
        layout.bootstrap_result_path(name), seal(canonical_json(result.to_dict()))
    )


def read_result(storage: Storage, name: str) -> JobResult | None:
    """Of a bootstrap that is done, marked as a repeat."""
    try:
        return replace(_read_result(storage, layout.bootstrap_result_path(name)), repeated=True)
    except NotFoundError:
        return None


def _read(storage: Storage, path: str) -> Any:
    return unseal(read_sealed(storage, path), f"{storage.uri}/{path}")


def _read_result(storage: Storage, path: str) -> JobResult:
    data = _read(storage, path)
    with decoding(f"{storage.uri}/{path}", "a result"):
        return JobResult.from_dict(checked_result(data))


def _plan_to_json(plan: BootstrapPlan) -> dict[str, Any]:
    return {
        "batches": [[_file_to_json(file) for file in batch] for batch in plan.batches],
        "folders": list(plan.folders),
        "schema": plan.schema,
        "source": [plan.source.location, plan.source.format, plan.source.version],
    }


def _plan_from_json(data: Mapping[str, Any]) -> BootstrapPlan:
    location, kind, version = data["source"]
    return BootstrapPlan(
        source=SourceTable(
            location=text(location),
            format=text(kind),
            version=None if version is None else count(version),
        ),
        schema=_plain_schema(data["schema"]),
        folders=tuple(map(text, listed(data["folders"]))),
        batches=tuple(tuple(map(_file_from_json, batch)) for batch in data["batches"]),
    )


def _plain_schema(data: Any) -> dict[str, Any]:
    """Spark makes the Python class that a type of a user names: it would load, and run, what the plan holds."""
    schema = mapped(shallow(data, 4 * MOST_NESTED))
    level: list[Any] = [schema]
    while level:
        if any(
            isinstance(part, dict) and (part.get("type") == "udt" or "pyClass" in part)
            for part in level
        ):
            raise ValueError("its schema has a user-defined type")
        level = [
            inner
            for part in level
            for inner in (
                part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
            )
        ]
    return schema


def _file_to_json(file: SourceFile) -> list[Any]:
    return [file.path, file.size, file.rows, file.stamp_ms]


def _file_from_json(data: list[Any]) -> SourceFile:
    stamp_ms = None if data[3] is None else word(data[3])
    return SourceFile(
        path=text(data[0]), size=count(data[1]), rows=count(data[2]), stamp_ms=stamp_ms
    )
