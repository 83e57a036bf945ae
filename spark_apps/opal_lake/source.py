"""Where rows come from: files or a JDBC database, as a JobSpec carries it, as JSON and without secrets.

How Spark reads each format: `opal_spark.sources.read`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from opal_lake.errors import InvalidInputError

if TYPE_CHECKING:
    from opal_lake.definition.table_spec import TableSpec

FILE_FORMATS = ("csv", "json", "parquet", "orc")
FOLDER_FORMATS = (
    *FILE_FORMATS,
    "avro",
)  # of a folder that `opal mutate` merges files into, and of these files

# What says which mutation is later, where no column does: the number after the last `_` of a file's name, or the file's place in the list
BY_SUFFIX, BY_POSITION = "file_suffix", "file_position"
SOURCE_TABLE_FORMATS = ("parquet", "orc", "delta", "iceberg")
BATCH_MB = 4096
# What Spark needs to read those that it does not know
PACKAGES = {
    "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
}
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

_ENDING = re.compile(
    r"\.(csv|jsonl|ndjson|json|parquet|orc|avro)(?:\.(?:gz|bz2|deflate|lz4|snappy|zst|\*)|\*)?$",
    re.IGNORECASE,
)
_FORMAT_OF = {"jsonl": "json", "ndjson": "json"}
_TEMPLATE = re.compile(r"\s*\{[{%]")  # a scheduler's, who fills it in before a job gets it
_USERINFO = re.compile(r"//[^/?#@]*:[^/?#@]*@")
_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase)?$|passw|pwd|secret|token|credential|(?:access|account|private)[._-]?key",
    re.IGNORECASE,
)
_URL_PARAMETER = re.compile(r"[?&;:,(]\s*([\w.-]+)\s*=")
_ORACLE_LOGIN = re.compile(r"jdbc:oracle:\w+:[^/@]+/[^@]+@", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Files:
    """Files by path or glob, one or several. Without a `format` their endings say it; `options` are those of Spark's reader of it.

    `header=False` is short for that option of CSV; `columns` then name the cells. Files whose names match `deletes`, as "del*", hold
    deletes: rows, or keys alone. `order` is "file_suffix" or "file_position", which give the delta column its values, or the delta column
    itself. It also settles which of several rows of a key with one delta counts: the last one.
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
        object.__setattr__(
            self, "options", _with_header(_options("files", self.options), self.header)
        )
        object.__setattr__(self, "header", None)  # an option now, so that it is said once
        object.__setattr__(self, "columns", _columns(self.columns, self.options))
        _check_names(self)
        if (
            self.format is not None
            and self.format not in FILE_FORMATS
            and not _TEMPLATE.search(self.format)
        ):
            raise InvalidInputError(
                f"files: format {self.format!r} is unknown; {_advice(self.format, FILE_FORMATS)}"
            )

    @property
    def is_by_name(self) -> bool:
        """Whether the names or the places of the files say something about their rows."""
        return self.deletes is not None or self.order is not None

    @property
    def makes_delta(self) -> bool:
        """Whether the delta column is not in the files, but comes from them."""
        return self.order in (BY_SUFFIX, BY_POSITION)

    @property
    def file_format(self) -> str:
        """The format given, or the one that all endings agree on."""
        if self.format is not None:
            if self.format not in FILE_FORMATS:
                raise InvalidInputError(
                    f"files: format {self.format!r} is a template that was not rendered; use one of {_listed(FILE_FORMATS)}"
                )
            return self.format
        formats = {path: format_of(path) for path in self.paths}
        if unclear := [path for path, name in formats.items() if name not in FILE_FORMATS]:
            raise InvalidInputError(
                f"files: {unclear[0]!r} has no extension that names a format; add format= (--format), one of {_listed(FILE_FORMATS)}"
            )
        if len(set(formats.values())) > 1:
            raise InvalidInputError(
                f"files: the endings of {_listed(self.paths)} belong to several formats; ingest each format on its own"
            )
        return next(filter(None, formats.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Jdbc:
    """A table or a query of a database. User and password are taken from the environment variables that are named here."""

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
                "jdbc: the url does not begin with 'jdbc:'; write it as jdbc:postgresql://host:5432/database"
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
        for name in ("url", "dbtable", "table", "query"):
            if name in {key.casefold() for key in self.options}:
                raise InvalidInputError(
                    f"jdbc: {name!r} is no option here; give it as url=, table= or query="
                )


Source = Files | Jdbc
_KINDS: dict[str, type[Files] | type[Jdbc]] = {"files": Files, "jdbc": Jdbc}


def has_secret(url: str) -> bool:
    """Whether a URL carries a password: as `user:password@`, or as a parameter."""
    named = any(_SECRET_NAME.search(name) for name in _URL_PARAMETER.findall(url))
    return named or bool(_USERINFO.search(url)) or bool(_ORACLE_LOGIN.match(url))


def source_to_json(source: Source) -> dict[str, Any]:
    """`{"files": {...}}` or `{"jdbc": {...}}`, without what was left to its default."""
    kind = next(name for name, known in _KINDS.items() if isinstance(source, known))
    body = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(source).items()
        if value not in (None, {}, ())
    }
    return {kind: body}


def source_from_json(data: object) -> Source:
    """The source that a JSON object describes; paths alone are short for files."""
    if not isinstance(data, Mapping) or len(data) != 1:
        shown = (
            f"the keys {sorted(map(str, data))}"
            if isinstance(data, Mapping)
            else type(data).__name__
        )
        raise InvalidInputError(
            f"a source is {{'files': ...}} or {{'jdbc': ...}}, and this has {shown}; give one of them"
        )
    kind, body = next(iter(data.items()))
    if kind not in _KINDS:
        raise InvalidInputError(f"source {kind!r} is unknown; {_advice(str(kind), _KINDS)}")
    if kind == "files" and isinstance(body, str | list | tuple):
        body = {"paths": body}
    if not isinstance(body, Mapping):
        example = (
            {"paths": ["/in/*.json"]} if kind == "files" else {"url": "jdbc:...", "table": "orders"}
        )
        raise InvalidInputError(
            f"{kind} must map names to values, as {example}, and is {type(body).__name__}"
        )
    known = [member.name for member in fields(_KINDS[kind])]
    for name in body:
        if name not in known:
            raise InvalidInputError(f"{kind}: key {name!r} is unknown; {_advice(str(name), known)}")
    try:
        return _KINDS[kind](**body)
    except TypeError as error:
        raise InvalidInputError(f"{kind}: {error}; known are {_listed(known)}") from error


def _paths(paths: object) -> tuple[str, ...]:
    listed = (
        (paths,)
        if isinstance(paths, str)
        else tuple(paths)
        if isinstance(paths, list | tuple)
        else ()
    )
    if not listed or not all(isinstance(path, str) and path for path in listed):
        raise InvalidInputError(
            f"files: paths={paths!r}; give a list of paths or globs, as ['s3a://in/orders/*.json']"
        )
    if any(has_secret(path) for path in listed):
        raise InvalidInputError(
            "files: a path holds credentials, which would end up in logs; give them to Spark's own settings instead"
        )
    return listed


def _with_header(options: dict[str, str], header: object) -> dict[str, str]:
    if header is None:
        return options
    if not isinstance(header, bool):
        raise InvalidInputError(f"files: header={header!r}; write True or False")
    said = next((value for name, value in options.items() if name.casefold() == "header"), None)
    if said is not None and said.lower() != str(header).lower():
        raise InvalidInputError(
            f"files: header={header} and the option header={said!r}; give one of them"
        )
    return options if said is not None else {**options, "header": str(header).lower()}


def _columns(columns: object, options: Mapping[str, str]) -> tuple[str, ...]:
    listed = tuple(columns) if isinstance(columns, list | tuple) else None
    if listed is None or not all(isinstance(name, str) and name for name in listed):
        raise InvalidInputError(
            f"files: columns={columns!r}; give a list of names, as ['id', 'name', 'at']"
        )
    if twice := sorted({name for name in listed if listed.count(name) > 1}):
        raise InvalidInputError(
            f"files: columns names {_listed(twice)} twice; each cell is one column"
        )
    if (
        listed
        and {name.casefold(): value.lower() for name, value in options.items()}.get("header")
        != "false"
    ):
        raise InvalidInputError(
            f"files: columns={list(listed)} name the cells of CSV files without a header; add header=False"
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
            f"files: deletes={source.deletes!r} is matched with names of files, without their folders; write it as 'del*'"
        )


def _options(kind: str, options: object) -> dict[str, str]:
    if not isinstance(options, Mapping):
        raise InvalidInputError(
            f"{kind}: options must be names with values, not {type(options).__name__}"
        )
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str | bool | int | float):
            raise InvalidInputError(
                f"{kind}: option {name!r} is not a name with a text, a number or true or false; write it as text"
            )
        if _SECRET_NAME.search(name):
            raise InvalidInputError(
                f"{kind}: option {name!r} has the name of a secret, which does not belong in a job; {_SECRETS[kind]}"
            )
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


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
    looked = ", ".join(map(repr, source.paths))
    return (
        f"there is no file to read: looked for {looked}; correct the paths "
        "(files whose names begin with '_' or '.' are not read)"
    )


def check_named_files(source: Files, spec: "TableSpec") -> None:
    """Raise InvalidInputError where `order` or `deletes` of files does not fit the table."""
    delta = spec.delta.name
    is_order_known = (
        source.order is None or source.makes_delta or source.order.casefold() == delta.casefold()
    )
    if not is_order_known:
        # Before the lack of a column hides it
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
    """What the ending of a file's name says."""
    match = _ENDING.search(path)
    return _FORMAT_OF.get(match[1].lower(), match[1].lower()) if match else None


def _advice(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches  # not in what every DAG file imports

    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {_listed(known)}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, names))
