"""Sources of rows: files or a JDBC database, in the JSON of a JobSpec, without secrets.

`opal_spark.sources.read` reads each format in Spark.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from opal_lake.definition.table_spec import TableSpec

FILE_FORMATS = ("csv", "json", "parquet", "orc")
# The formats of a folder that `opal mutate` merges files into, and of these files.
FOLDER_FORMATS = (*FILE_FORMATS, "avro")
# Orders of mutations where no column has one: by the number after the last `_` of a file's name, or
# by the file's position in the list.
BY_SUFFIX, BY_POSITION = "file_suffix", "file_position"
SOURCE_TABLE_FORMATS = ("parquet", "orc", "delta", "iceberg")
BATCH_MB = 4096
# The packages by which Spark reads formats that it does not have.
PACKAGES = {
    "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
}
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

_EXTENSION = re.compile(
    r"\.(csv|jsonl|ndjson|json|parquet|orc|avro)(?:\.(?:gz|bz2|deflate|lz4|snappy|zst|\*)|\*)?$",
    re.IGNORECASE,
)
_FORMAT_OF = {"jsonl": "json", "ndjson": "json"}
_TEMPLATE = re.compile(r"\s*\{[{%]")  # of a scheduler, which renders it before the job starts
_USERINFO = re.compile(r"//[^/?#@]*:[^/?#@]*@")
_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase)?$|passw|pwd|secret|token|credential|"
    r"(?:access|account|private)[._-]?key",
    re.IGNORECASE,
)
_URL_PARAMETER = re.compile(r"[?&;:,(]\s*([\w.-]+)\s*=")
_ORACLE_LOGIN = re.compile(r"jdbc:oracle:\w+:[^/@]+/[^@]+@", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Files:
    """Files by path or glob, one or several.

    Without a `format`, their extensions name it; `options` are those of Spark's reader. `header` is
    short for that option of CSV: with False, `columns` name the cells. Files whose names match
    `deletes`, as "del*", hold deletes: rows, or only keys.

    `order` is "file_suffix" or "file_position", which make the values of the delta column, or the
    name of the delta column. It also decides between rows of a key with equal deltas: the last one
    counts.
    """

    paths: tuple[str, ...]
    _: KW_ONLY
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    header: bool | None = None
    columns: tuple[str, ...] = ()
    deletes: str | None = None
    order: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            paths: str | Sequence[str],
            *,
            format: str | None = None,
            options: Mapping[str, str | bool | int | float] = ...,
            header: bool | None = None,
            columns: Sequence[str] = (),
            deletes: str | None = None,
            order: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", _paths(self.paths))
        options = _with_header(_options("files", self.options), self.header)
        object.__setattr__(self, "options", options)
        object.__setattr__(self, "header", None)  # it is among the options now
        object.__setattr__(self, "columns", _columns(self.columns, self.options))
        _check_names(self)
        if self.format is None or self.format in FILE_FORMATS or _TEMPLATE.search(self.format):
            return
        raise InvalidInputError(
            f"files: format {self.format!r} is unknown; {_advice(self.format, FILE_FORMATS)}"
        )

    @property
    def is_by_name(self) -> bool:
        """True if the names or positions of files have a meaning for their rows."""
        return self.deletes is not None or self.order is not None

    @property
    def makes_delta(self) -> bool:
        """True if the delta column is not in the files, but made from their names."""
        return self.order in (BY_SUFFIX, BY_POSITION)

    @property
    def file_format(self) -> str:
        """The given format, or the one that all extensions name."""
        if self.format in FILE_FORMATS:
            return self.format
        if self.format is not None:
            raise InvalidInputError(
                f"files: format {self.format!r} is a template that was not rendered; "
                f"use one of {_listed(FILE_FORMATS)}"
            )
        formats: set[str] = set()
        for path in self.paths:
            named_format = format_of(path)
            if named_format is None or named_format not in FILE_FORMATS:
                raise InvalidInputError(
                    f"files: {path!r} has no extension that names a format; "
                    f"add format= (--format), one of {_listed(FILE_FORMATS)}"
                )
            formats.add(named_format)
        if len(formats) > 1:
            raise InvalidInputError(
                f"files: the extensions of {_listed(self.paths)} belong to several formats; "
                "ingest each format on its own"
            )
        return formats.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Jdbc:
    """A table or a query of a database.

    User and password are in environment variables, which are named here.
    """

    url: str
    table: str | None = None
    query: str | None = None
    user_env: str | None = None
    password_env: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", _options("jdbc", self.options))
        _check_texts(self)
        if not self.url.startswith("jdbc:") and not _TEMPLATE.match(self.url):
            raise InvalidInputError(
                "jdbc: the url does not begin with 'jdbc:'; "
                "write it as jdbc:postgresql://host:5432/database"
            )
        if has_secret(self.url):
            raise InvalidInputError(
                "jdbc: the url holds a password, which would end up in logs; "
                "take it out and name an environment variable: password_env='PGPASSWORD'"
            )
        if bool(self.table) == bool(self.query):
            raise InvalidInputError(
                f"jdbc: table={self.table!r} and query={self.query!r}; give one of them"
            )
        option_names = {name.casefold() for name in self.options}
        for name in ("url", "dbtable", "table", "query"):
            if name in option_names:
                raise InvalidInputError(
                    f"jdbc: {name!r} is not an option here; give it as url=, table= or query="
                )


Source = Files | Jdbc
_KINDS: dict[str, type[Files] | type[Jdbc]] = {"files": Files, "jdbc": Jdbc}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "files": {"paths": ["/in/*.json"]},
    "jdbc": {"url": "jdbc:...", "table": "orders"},
}


def has_secret(url: str) -> bool:
    """Return whether a URL has a password: as `user:password@`, or as a parameter."""
    has_parameter = any(_SECRET_NAME.search(name) for name in _URL_PARAMETER.findall(url))
    return has_parameter or bool(_USERINFO.search(url)) or bool(_ORACLE_LOGIN.match(url))


def source_to_json(source: Source) -> dict[str, Any]:
    """Encode a source as `{"files": {...}}` or `{"jdbc": {...}}`, without defaults."""
    kind = "files" if isinstance(source, Files) else "jdbc"
    body: dict[str, Any] = {}
    for name, value in asdict(source).items():
        if value not in (None, {}, ()):
            body[name] = list(value) if isinstance(value, tuple) else value
    return {kind: body}


def source_from_json(data: object) -> Source:
    """Decode a source. Paths alone are short for files."""
    kind, body = _kind_and_body(data)
    if kind == "files" and isinstance(body, str | list | tuple):
        body = {"paths": body}
    if not isinstance(body, Mapping):
        raise InvalidInputError(
            f"{kind} must map names to values, as {_EXAMPLES[kind]}, and is {type(body).__name__}"
        )
    known = [member.name for member in fields(_KINDS[kind])]
    for name in body:
        if name not in known:
            raise InvalidInputError(f"{kind}: key {name!r} is unknown; {_advice(str(name), known)}")
    try:
        return _KINDS[kind](**body)
    except TypeError as error:
        raise InvalidInputError(f"{kind}: {error}; known are {_listed(known)}") from error


def _kind_and_body(data: object) -> tuple[str, object]:
    if not isinstance(data, Mapping):
        raise _not_a_source(type(data).__name__)
    if len(data) != 1:
        raise _not_a_source(f"the keys {sorted(map(str, data))}")
    [(kind, body)] = data.items()
    if kind not in _KINDS:
        raise InvalidInputError(f"source {kind!r} is unknown; {_advice(str(kind), _KINDS)}")
    return kind, body


def _not_a_source(content: str) -> InvalidInputError:
    return InvalidInputError(
        f"a source is {{'files': ...}} or {{'jdbc': ...}}, and this has {content}; give one of them"
    )


def _paths(paths: object) -> tuple[str, ...]:
    listed: tuple[Any, ...] = ()
    if isinstance(paths, str):
        listed = (paths,)
    elif isinstance(paths, list | tuple):
        listed = tuple(paths)
    if not listed or not all(isinstance(path, str) and path for path in listed):
        raise InvalidInputError(
            f"files: paths={paths!r}; give a list of paths or globs, as ['s3a://in/orders/*.json']"
        )
    if any(has_secret(path) for path in listed):
        raise InvalidInputError(
            "files: a path holds credentials, which would end up in logs; "
            "give them to Spark's own settings instead"
        )
    return listed


def _with_header(options: dict[str, str], header: object) -> dict[str, str]:
    if header is None:
        return options
    if not isinstance(header, bool):
        raise InvalidInputError(f"files: header={header!r}; write True or False")
    header_text = str(header).lower()
    option = _header_option(options)
    if option is None:
        return {**options, "header": header_text}
    if option.lower() != header_text:
        raise InvalidInputError(
            f"files: header={header} and the option header={option!r}; give one of them"
        )
    return options


def _header_option(options: Mapping[str, str]) -> str | None:
    # Spark's options are case-insensitive.
    for name, value in options.items():
        if name.casefold() == "header":
            return value
    return None


def _columns(columns: object, options: Mapping[str, str]) -> tuple[str, ...]:
    listed = tuple(columns) if isinstance(columns, list | tuple) else None
    if listed is None or not all(isinstance(name, str) and name for name in listed):
        raise InvalidInputError(
            f"files: columns={columns!r}; give a list of names, as ['id', 'name', 'at']"
        )
    repeated = sorted({name for name in listed if listed.count(name) > 1})
    if repeated:
        raise InvalidInputError(
            f"files: columns names {_listed(repeated)} twice; each cell is one column"
        )
    has_header = (_header_option(options) or "").lower() != "false"
    if listed and has_header:
        raise InvalidInputError(
            f"files: columns={list(listed)} name the cells of CSV files without a header; "
            "add header=False"
        )
    return listed


def _check_names(source: Files) -> None:
    for name, example in (("deletes", "del*"), ("order", BY_SUFFIX)):
        value = getattr(source, name)
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidInputError(
                f"files: {name}={value!r}; write it as {name}={example!r}, or leave it out"
            )
    if source.deletes is not None and "/" in source.deletes:
        raise InvalidInputError(
            f"files: deletes={source.deletes!r} is matched with names of files, "
            "without their folders; write it as 'del*'"
        )


def _options(kind: str, options: object) -> dict[str, str]:
    if not isinstance(options, Mapping):
        raise InvalidInputError(
            f"{kind}: options must be names with values, not {type(options).__name__}"
        )
    texts: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str | bool | int | float):
            raise InvalidInputError(
                f"{kind}: option {name!r} is not a name with a text, a number or true or false; "
                "write it as text"
            )
        if _SECRET_NAME.search(name):
            raise InvalidInputError(
                f"{kind}: option {name!r} has the name of a secret, "
                f"which does not belong in a job; {_SECRETS[kind]}"
            )
        texts[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


_SECRETS = {
    "files": "give it to Spark's own settings",
    "jdbc": "put it into an environment variable and name that: password_env='PGPASSWORD'",
}


def _check_texts(source: Jdbc) -> None:
    for name in ("url", "table", "query", "user_env", "password_env"):
        value = getattr(source, name)
        if not isinstance(value, str) and (value is not None or name == "url"):
            raise InvalidInputError(f"jdbc: {name} must be text, not {type(value).__name__}")


def no_file_message(source: Files) -> str:
    """Return the message for a source without a file."""
    return (
        f"no file to read: looked for {_listed(source.paths)}; correct the paths "
        "(files whose names begin with '_' or '.' are not read)"
    )


def check_named_files(source: Files, spec: "TableSpec") -> None:
    """Raise InvalidInputError if `order` or `deletes` of files do not fit the table."""
    delta = spec.delta.name
    is_order_known = (
        source.order is None or source.makes_delta or source.order.casefold() == delta.casefold()
    )
    if not is_order_known:
        # Otherwise the error would be that of a missing column.
        raise InvalidInputError(
            f"order={source.order!r}, and the table's delta column is {delta!r}; "
            f"write order={delta!r}, or one of {BY_SUFFIX!r} and {BY_POSITION!r}"
        )
    if source.deletes is not None and spec.deletes is None:
        raise InvalidInputError(
            f"files {source.deletes!r} hold deletes, and the table has no delete condition; "
            "create it with one, or with deletes='false' if only files delete"
        )


def format_of(path: str) -> str | None:
    """Return the format that the extension of a file names, or None."""
    match = _EXTENSION.search(path)
    if match is None:
        return None
    extension = match[1].lower()
    return _FORMAT_OF.get(extension, extension)


def _advice(name: str, known: Collection[str]) -> str:
    # Late, since every DAG file imports this module.
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {_listed(known)}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
