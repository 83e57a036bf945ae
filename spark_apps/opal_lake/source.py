"""Sources of rows in the JSON of a JobSpec: files, or a JDBC database.

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
# A template of a scheduler, which renders it before the job starts.
_TEMPLATE = re.compile(r"\s*\{[{%]")
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

    Without a `format`, the extensions of the files name it. `options` are those of Spark's reader.
    `header` sets the option of CSV of that name: with False, `columns` name the cells. Files that
    match
    the pattern `deletes`, such as "del*", hold deletes: whole rows, or keys alone.

    `order` is "file_suffix" or "file_position", which fill the delta column from the files, or the
    name of the delta column. Among rows of a key with equal deltas the last one in this order
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
        """True if the name or position of a file says something about its rows."""
        return self.deletes is not None or self.order is not None

    @property
    def makes_delta(self) -> bool:
        """True if the delta column is made from the files' names or positions."""
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
                    f"give the format (--format), one of {_listed(FILE_FORMATS)}"
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

    `user_env` and `password_env` name environment variables with the user and the password.
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
                f"jdbc: give either a table or a query, got table={self.table!r} "
                f"and query={self.query!r}"
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
    if _USERINFO.search(url) or _ORACLE_LOGIN.match(url):
        return True
    parameters = _URL_PARAMETER.findall(url)
    return any(map(_SECRET_NAME.search, parameters))


def source_to_json(source: Source) -> dict[str, Any]:
    """Encode a source as `{"files": {...}}` or `{"jdbc": {...}}`, without defaults."""
    kind = "files" if isinstance(source, Files) else "jdbc"
    body: dict[str, Any] = {}
    for name, value in asdict(source).items():
        if value in (None, {}, ()):
            continue
        if isinstance(value, tuple):
            value = list(value)
        body[name] = value
    return {kind: body}


def source_from_json(data: object) -> Source:
    """Decode a source. `{"files": PATHS}` is short for `{"files": {"paths": PATHS}}`."""
    kind, body = _kind_and_body(data)
    if kind == "files" and isinstance(body, str | list | tuple):
        body = {"paths": body}
    if not isinstance(body, Mapping):
        raise InvalidInputError(
            f"{kind} must map names to values, got {type(body).__name__}; "
            f"write for example {_EXAMPLES[kind]}"
        )
    known = [member.name for member in fields(_KINDS[kind])]
    for name in body:
        if name not in known:
            raise InvalidInputError(f"{kind}: key {name!r} is unknown; {_advice(str(name), known)}")
    try:
        return _KINDS[kind](**body)
    except TypeError as error:
        raise InvalidInputError(f"{kind}: {error}; use {_listed(known)}") from error


def _kind_and_body(data: object) -> tuple[str, object]:
    """Return the kind of a source, `files` or `jdbc`, and the arguments of that kind."""
    if not isinstance(data, Mapping):
        raise _not_a_source(type(data).__name__)
    if len(data) != 1:
        keys = sorted(map(str, data))
        raise _not_a_source(f"the keys {keys}")
    [(kind, body)] = data.items()
    if kind not in _KINDS:
        raise InvalidInputError(f"source {kind!r} is unknown; {_advice(str(kind), _KINDS)}")
    return kind, body


def _not_a_source(content: str) -> InvalidInputError:
    return InvalidInputError(f"a source must be {{'files': ...}} or {{'jdbc': ...}}, got {content}")


def _paths(paths: object) -> tuple[str, ...]:
    """Return checked paths; raise InvalidInputError for other values and for secrets."""
    listed: tuple[Any, ...] = ()
    if isinstance(paths, str):
        listed = (paths,)
    elif isinstance(paths, list | tuple):
        listed = tuple(paths)
    if not listed or not all(isinstance(path, str) and path for path in listed):
        raise InvalidInputError(
            f"files: paths={paths!r} names no file; "
            "give a list of paths or globs such as ['s3a://in/orders/*.json']"
        )
    if any(has_secret(path) for path in listed):
        raise InvalidInputError(
            "files: a path holds credentials, which would end up in logs; "
            "give them to Spark's own settings instead"
        )
    return listed


def _with_header(options: dict[str, str], header: object) -> dict[str, str]:
    """Return the options with the option `header`, if that argument is given."""
    if header is None:
        return options
    if not isinstance(header, bool):
        raise InvalidInputError(f"files: header={header!r} is not a flag; write True or False")
    header_text = str(header).lower()
    option = _header_option(options)
    if option is None:
        return {**options, "header": header_text}
    if option.lower() != header_text:
        raise InvalidInputError(
            f"files: header={header} contradicts the option header={option!r}; give one of them"
        )
    return options


def _header_option(options: Mapping[str, str]) -> str | None:
    # Spark's options are case-insensitive.
    for name, value in options.items():
        if name.casefold() == "header":
            return value
    return None


def _columns(columns: object, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return checked names of columns, which only CSV files without a header have."""
    listed: tuple[Any, ...] = ()
    is_list = isinstance(columns, list | tuple)
    if isinstance(columns, list | tuple):
        listed = tuple(columns)
    are_names = all(isinstance(name, str) and name for name in listed)
    if not is_list or not are_names:
        raise InvalidInputError(
            f"files: columns={columns!r} is not a list of names; "
            "give for example ['id', 'name', 'at']"
        )
    repeated = sorted({name for name in listed if listed.count(name) > 1})
    if repeated:
        raise InvalidInputError(
            f"files: columns names {_listed(repeated)} twice; name each column once"
        )
    has_header = (_header_option(options) or "").lower() != "false"
    if listed and has_header:
        raise InvalidInputError(
            f"files: columns={list(listed)} is only for CSV files without a header; "
            "add header=False, or leave columns out"
        )
    return listed


def _check_names(source: Files) -> None:
    """Raise InvalidInputError if `deletes` or `order` is not a name or a pattern."""
    for name, example in (("deletes", "del*"), ("order", BY_SUFFIX)):
        value = getattr(source, name)
        is_text = isinstance(value, str) and value != ""
        if value is not None and not is_text:
            raise InvalidInputError(
                f"files: {name}={value!r} is not a text; write for example {name}={example!r}, "
                f"or leave {name} out"
            )
    if source.deletes is not None and "/" in source.deletes:
        raise InvalidInputError(
            f"files: deletes={source.deletes!r} has a folder, and only names of files are "
            "compared with it; write for example 'del*'"
        )


def _options(kind: str, options: object) -> dict[str, str]:
    """Return options as texts; raise InvalidInputError for secrets."""
    if not isinstance(options, Mapping):
        raise InvalidInputError(
            f"{kind}: options must map names to values, got {type(options).__name__}"
        )
    texts: dict[str, str] = {}
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str | bool | int | float):
            raise InvalidInputError(
                f"{kind}: the value of option {name!r} must be a text, a number, or true or false, "
                f"got {type(value).__name__}"
            )
        if _SECRET_NAME.search(name):
            raise InvalidInputError(
                f"{kind}: option {name!r} has the name of a secret, and jobs must not hold "
                f"secrets; {_SECRETS[kind]}"
            )
        text = str(value)
        texts[name] = text.lower() if isinstance(value, bool) else text
    return texts


_SECRETS = {
    "files": "give it to Spark's own settings",
    "jdbc": "put the secret into an environment variable, and name it: password_env='PGPASSWORD'",
}


def _check_texts(source: Jdbc) -> None:
    """Raise InvalidInputError for an argument that is not a text."""
    for name in ("url", "table", "query", "user_env", "password_env"):
        value = getattr(source, name)
        is_left_out = value is None and name != "url"
        if not isinstance(value, str) and not is_left_out:
            raise InvalidInputError(f"jdbc: {name} must be a text, got {type(value).__name__}")


def no_file_message(source: Files) -> str:
    """Return the message for a source whose paths lead to no file."""
    return (
        f"no file to read: looked for {_listed(source.paths)}; correct the paths "
        "(files whose names begin with '_' or '.' are not read)"
    )


def check_named_files(source: Files, spec: "TableSpec") -> None:
    """Raise InvalidInputError if `order` or `deletes` of files do not fit the table."""
    delta = spec.delta.name
    names_column = source.order is not None and not source.makes_delta
    if names_column and str(source.order).casefold() != delta.casefold():
        # Without this check the ingest would fail later, for a missing column.
        raise InvalidInputError(
            f"order={source.order!r} is not the table's delta column, which is {delta!r}; "
            f"write order={delta!r}, {BY_SUFFIX!r} or {BY_POSITION!r}"
        )
    if source.deletes is not None and spec.deletes is None:
        raise InvalidInputError(
            f"files {source.deletes!r} hold deletes, and the table has no delete condition; "
            "create the table with one, or with deletes='false' if only such files delete rows"
        )


def format_of(path: str) -> str | None:
    """Return the format that the extension of a file names, or None."""
    match = _EXTENSION.search(path)
    if match is None:
        return None
    extension = match[1].lower()
    return _FORMAT_OF.get(extension, extension)


def _advice(name: str, known: Collection[str]) -> str:
    """Return advice for an unknown name: the known name like it, or all known names."""
    # Imported here, since every DAG file imports this module.
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"use one of {_listed(known)}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
