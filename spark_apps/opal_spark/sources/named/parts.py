"""The files of a source in parts that are read alike: rows, deletes with all columns, deletes of keys alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from pyspark.sql import SparkSession

from opal_folder.increments import Increment, folder_values, in_order, list_files
from opal_lake.definition.table_spec import TableSpec
from opal_lake.errors import InvalidInputError, NoRowsError
from opal_lake.source import BY_SUFFIX, Files, check_named_files, no_file_message
from opal_lake.storage import open_storage
from opal_lake.storage.spark_path import hadoop_uri, spark_paths
from opal_spark.engine.session import storage_options
from opal_spark.sources.marks import plain_uri
from opal_spark.sources.paths import open_files
from opal_spark.sources.text.csv_header import has_header
from opal_spark.sources.text.csv_lines import cells_of, first_line, plain_names


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """A file with its place in the order of the files."""

    place: int
    increment: Increment
    uri: str  # as `marks.plain_uris` writes it
    path: str  # for a reader of Spark
    base: str  # below which folders may name columns
    first_line: str | None = None  # of CSV files of deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files that are read together, and the table less the columns that they do not have."""

    source: Files
    spec: TableSpec
    files: tuple[NamedFile, ...]
    is_deletes: bool


def parts_of(spark: SparkSession, source: Files, spec: TableSpec) -> list[Part]:
    """At least one."""
    check_named_files(source, spec)
    forms: dict[tuple[bool, str, tuple[str, ...] | None], list[NamedFile]] = {}
    for file in named_files(spark, source):
        is_deletes = _is_deletes(source, file.increment)
        if is_deletes and source.file_format == "csv":
            file = _looked_into(spark, source, file)
            if file.first_line is None:
                continue
        names = _names_of_deletes(source, spec, file) if is_deletes else None
        forms.setdefault((is_deletes, file.base, names), []).append(file)
    if not forms:
        raise NoRowsError(no_file_message(source))
    return [_part(spark, source, spec, form, files) for form, files in forms.items()]


def named_files(spark: SparkSession, source: Files) -> list[NamedFile]:
    """In the order of the paths, and then of their names; or in that of their suffixes."""
    listed = list_files(source.paths, lambda path: storage_options(spark, path))
    if not listed:
        raise NoRowsError(no_file_message(source))
    found = []
    for place, increment in enumerate(in_order(listed, source.order or "")):
        storage = open_storage(increment.root, storage_options(spark, increment.root))
        [path] = spark_paths(storage, [increment.path])
        base = hadoop_uri(storage) if folder_values(increment.path) else ""
        uri = plain_uri(hadoop_uri(storage, increment.path))
        found.append(NamedFile(place=place, increment=increment, uri=uri, path=path, base=base))
    return found


def without_deletes(spark: SparkSession, source: Files) -> Files:
    """The files that hold rows."""
    if source.deletes is None:
        return source
    rows = [
        file.path for file in named_files(spark, source) if not _is_deletes(source, file.increment)
    ]
    if not rows:
        raise NoRowsError(
            f"all files of {list(source.paths)} match deletes={source.deletes!r}, and deletes alone do not tell the columns"
        )
    return replace(source, paths=tuple(rows), format=source.file_format, deletes=None, order=None)


def _is_deletes(source: Files, increment: Increment) -> bool:
    return source.deletes is not None and fnmatchcase(increment.name, source.deletes)


def _looked_into(spark: SparkSession, source: Files, file: NamedFile) -> NamedFile:
    root = file.increment.root
    storage = open_storage(root, storage_options(spark, root))
    return replace(file, first_line=first_line(storage, file.increment.path, _csv(source)))


def _csv(source: Files) -> Mapping[str, str]:
    return {"sep": ",", **plain_names(source.options)}


def _names_of_deletes(source: Files, spec: TableSpec, file: NamedFile) -> tuple[str, ...] | None:
    """The cells of a CSV file of deletes. None: those of other rows, or what the format says."""
    if file.first_line is None:
        return None
    cells, keys = (
        tuple(cells_of(file.first_line, _csv(source))),
        tuple(key.name for key in spec.keys),
    )
    if has_header(source):
        return cells
    if len(cells) != len(keys):
        return None
    if [cell.casefold() for cell in cells] == [key.casefold() for key in keys]:
        raise InvalidInputError(
            f"{file.increment.source}, line 1: {file.first_line!r} is a header, and these files have none: take it out, or give header=True"
        )
    return keys


def _part(
    spark: SparkSession,
    source: Files,
    spec: TableSpec,
    form: tuple[bool, str, tuple[str, ...] | None],
    files: Sequence[NamedFile],
) -> Part:
    is_deletes, base, names = form
    options = {**source.options, **({"basePath": base} if base else {})}
    plain = Files([file.path for file in files], format=source.file_format, options=options)
    if not has_header(source):
        plain = replace(plain, columns=names or source.columns)
    if is_deletes and source.file_format in ("parquet", "orc"):
        names = tuple(
            open_files(spark, plain, source.file_format, {"mergeSchema": "true", **options}).columns
        )
    absent = {spec.delta.name} if source.makes_delta else set[str]()
    if is_deletes and names is not None:
        known = {name.casefold() for name in (*names, *folder_values(files[0].increment.path))}
        absent |= {
            field.name for field in spec.schema.fields if field.name.casefold() not in known
        } - {key.name for key in spec.keys}
        if spec.delta.name in absent and not source.makes_delta:
            raise InvalidInputError(
                f"{files[0].increment.source} holds deletes without the delta column {spec.delta.name!r}, so that nothing says when they "
                f"happened; give it in the file, or order={BY_SUFFIX!r}"
            )
    return Part(source=plain, spec=_less(spec, absent), files=tuple(files), is_deletes=is_deletes)


def _less(spec: TableSpec, absent: set[str]) -> TableSpec:
    """The table as these files know it. A delta column that they do not have is replaced by a key, which no row may lack either."""
    if not absent:
        return spec
    kept = tuple(field for field in spec.schema.fields if field.name not in absent)
    return replace(
        spec,
        schema=replace(spec.schema, fields=kept),
        delta_id=spec.key_ids[0] if spec.delta.name in absent else spec.delta_id,
    )
