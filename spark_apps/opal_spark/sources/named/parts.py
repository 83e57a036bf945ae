"""The files of a source in parts that are read together.

The files of a part have rows, deletes with all columns, or deletes with only keys.
"""

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
    """A file with its position in the order of the files.

    `uri` has the form of `marks.plain_uri`; `path` is for Spark's readers. `base` is the folder
    below which the names of folders are columns, or empty. `first_line` is set for CSV files of
    deletes.
    """

    position: int
    increment: Increment
    uri: str
    path: str
    base: str
    first_line: str | None = None


# Files of one form are read together: whether they are deletes, their base folder, and the names of
# their cells (for CSV files of deletes)
_Form = tuple[bool, str, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Files that are read together, and the table without the columns that they lack."""

    source: Files
    spec: TableSpec
    files: tuple[NamedFile, ...]
    is_deletes: bool


def parts_of(spark: SparkSession, source: Files, spec: TableSpec) -> list[Part]:
    """Return the parts of a source; at least one."""
    check_named_files(source, spec)
    forms: dict[_Form, list[NamedFile]] = {}
    for file in named_files(spark, source):
        is_deletes = _is_deletes(source, file.increment)
        names = None
        if is_deletes and source.file_format == "csv":
            file = _with_first_line(spark, source, file)
            # An empty file
            if file.first_line is None:
                continue
            names = _names_of_deletes(source, spec, file.increment, file.first_line)
        forms.setdefault((is_deletes, file.base, names), []).append(file)
    if not forms:
        raise NoRowsError(no_file_message(source))
    return [_new_part(spark, source, spec, form, files) for form, files in forms.items()]


def named_files(spark: SparkSession, source: Files) -> list[NamedFile]:
    """Return the files in the order of their paths and names, or of their suffixes."""
    listed = list_files(source.paths, lambda path: storage_options(spark, path))
    if not listed:
        raise NoRowsError(no_file_message(source))
    files = []
    for position, increment in enumerate(in_order(listed, source.order or "")):
        storage = open_storage(increment.root, storage_options(spark, increment.root))
        [path] = spark_paths(storage, [increment.path])
        base = hadoop_uri(storage) if folder_values(increment.path) else ""
        uri = plain_uri(hadoop_uri(storage, increment.path))
        file = NamedFile(position=position, increment=increment, uri=uri, path=path, base=base)
        files.append(file)
    return files


def without_deletes(spark: SparkSession, source: Files) -> Files:
    """Return the files that hold rows."""
    if source.deletes is None:
        return source
    files = named_files(spark, source)
    paths = tuple(file.path for file in files if not _is_deletes(source, file.increment))
    if not paths:
        raise NoRowsError(
            f"all files of {list(source.paths)} match deletes={source.deletes!r} "
            "(--delete-files), and deletes do not define the columns; add a file with rows"
        )
    return replace(source, paths=paths, format=source.file_format, deletes=None, order=None)


def _is_deletes(source: Files, increment: Increment) -> bool:
    return source.deletes is not None and fnmatchcase(increment.name, source.deletes)


def _with_first_line(spark: SparkSession, source: Files, file: NamedFile) -> NamedFile:
    root = file.increment.root
    storage = open_storage(root, storage_options(spark, root))
    return replace(file, first_line=first_line(storage, file.increment.path, _csv(source)))


def _csv(source: Files) -> Mapping[str, str]:
    return {"sep": ",", **plain_names(source.options)}


def _names_of_deletes(
    source: Files, spec: TableSpec, increment: Increment, line: str
) -> tuple[str, ...] | None:
    """Return the names of the cells of a CSV file of deletes.

    None if a line has the cells of a row of the table.
    """
    cells = tuple(cells_of(line, _csv(source)))
    keys = tuple(key.name for key in spec.keys)
    if has_header(source):
        return cells
    if len(cells) != len(keys):
        return None
    if [cell.casefold() for cell in cells] == [key.casefold() for key in keys]:
        raise InvalidInputError(
            f"{increment.source}, line 1: {line!r} is a header, but the source has header=False "
            "(--no-header). Remove the line, or give header=True"
        )
    return keys


def _new_part(
    spark: SparkSession,
    source: Files,
    spec: TableSpec,
    form: _Form,
    files: Sequence[NamedFile],
) -> Part:
    is_deletes, base, names = form
    options = dict(source.options)
    if base:
        options["basePath"] = base
    plain = Files([file.path for file in files], format=source.file_format, options=options)
    if not has_header(source):
        plain = replace(plain, columns=names or source.columns)
    if is_deletes and source.file_format in ("parquet", "orc"):
        reading = {"mergeSchema": "true", **options}
        names = tuple(open_files(spark, plain, source.file_format, reading).columns)
    absent: set[str] = set()
    if is_deletes and names is not None:
        absent = _absent_columns(spec, [*names, *folder_values(files[0].increment.path)])
    if source.makes_delta:
        absent.add(spec.delta.name)
    elif spec.delta.name in absent:
        raise InvalidInputError(
            f"{files[0].increment.source} holds deletes without the delta column "
            f"{spec.delta.name!r}, so their order is unknown. Add the column to the file, or "
            f"give order={BY_SUFFIX!r} (--order)"
        )
    part_spec = _without(spec, absent)
    return Part(source=plain, spec=part_spec, files=tuple(files), is_deletes=is_deletes)


def _absent_columns(spec: TableSpec, names: Sequence[str]) -> set[str]:
    """Return the table's columns, keys aside, that deletes lack."""
    known = {name.casefold() for name in names}
    lacking = {field.name for field in spec.schema.fields if field.name.casefold() not in known}
    return lacking - {key.name for key in spec.keys}


def _without(spec: TableSpec, absent: set[str]) -> TableSpec:
    """Return the table's spec without the columns that files lack."""
    if not absent:
        return spec
    fields = tuple(field for field in spec.schema.fields if field.name not in absent)
    delta_id = spec.delta_id
    if spec.delta.name in absent:
        # A spec needs a delta column. A key replaces it here, because no row may lack a key either.
        delta_id = spec.key_ids[0]
    return replace(spec, schema=replace(spec.schema, fields=fields), delta_id=delta_id)
