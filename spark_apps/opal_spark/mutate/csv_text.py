"""CSV for a folder: what is written is read again as it was."""

import codecs
from collections.abc import Mapping, Sequence
from functools import cache

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField

from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_spark.engine.columns import quoted
from opal_spark.sources.text.csv_lines import cells_of, is_true, plain_names, separator
from opal_spark.sources.text.csv_quotes import NO_CHARACTER

CORRUPT = "_opal_corrupt"
# A null value that no cell has: by default Spark takes a quoted empty cell for null, too
_READ = {
    "escape": '"',
    "nullvalue": NO_CHARACTER,
    "mode": "PERMISSIVE",
    "columnnameofcorruptrecord": CORRUPT,
    "enforceschema": "false",
}
_TIMES = {
    "timestampformat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXXXX",
    "timestampntzformat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}
_WRITE = {
    "escape": '"',
    "nullvalue": "",
    "emptyvalue": '""',
    "ignoreleadingwhitespace": "false",
    "ignoretrailingwhitespace": "false",
    **_TIMES,
}
# What a reader assumes of an option that nobody gave
_DEFAULTS = {
    "sep": ",",
    "header": "true",
    "encoding": "UTF-8",
    "multiline": "false",
    "quote": '"',
    "escape": '"',
    **_TIMES,
}
JSON_WRITE = {"ignorenullfields": "false", **_TIMES}
_ONLY_READ = {*_READ, "multiline"} - {"escape"}
_CELL = {"sep": "\u0001", "escape": '"', "nullvalue": "", "emptyvalue": '""'}
_FORMATS = {*_TIMES, "dateformat", "locale", "nanvalue", "positiveinf", "negativeinf"}
# Encodings that Spark reads whatever is set, by their names of Python's
_SPARKS = {"utf-8": "UTF-8", "iso8859-1": "ISO-8859-1", "ascii": "US-ASCII"}
_SPARKS |= {
    name: name.upper().replace("-BE", "BE").replace("-LE", "LE")
    for name in ("utf-16", "utf-16-be", "utf-16-le", "utf-32")
}
_FORCED = {
    "mode": "say on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": "bad rows are shown, or kept in the folder rejected/",
    "enforceschema": "fields are matched by the header",
    "inferschema": "give the types with schema=, else all fields are text",
}


def own_options(job: Mutate) -> dict[str, str]:
    """Of the master."""
    return _read_checked(
        {"sep": job.delimiter, "header": str(job.header).lower(), **plain_names(job.options)}
    )


def increment_options(job: Mutate) -> dict[str, str]:
    return _read_checked({**own_options(job), **plain_names(job.increment_options)})


def written_options(job: Mutate) -> dict[str, str]:
    """Return what a reader of the CSV that a job writes must know, by Spark's names."""
    options = {"encoding": "UTF-8", **own_options(job), **plain_names(job.output_options)}
    if not _has_single_byte_line_ends(options["encoding"]):
        options["multiline"] = "true"
    return _read_checked(options)


def contradictions(
    recorded: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the given options that mean something else than the recorded ones, with both."""
    known = {**_DEFAULTS, **recorded}
    return {
        name: (known.get(name, "not set"), value)
        for name, value in given.items()
        if _meaning(name, value) != _meaning(name, known.get(name))
    }


def _meaning(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    if name == "encoding":
        return _codec(value)
    if name == "sep":
        return separator({"sep": value})
    return value.lower() if value.lower() in ("true", "false") else value


def header_cells(line: str, options: Mapping[str, str]) -> list[str]:
    """The names in a header."""
    cells = cells_of(line, options)
    return (
        [cell.strip() for cell in cells] if is_true(options, "ignoreleadingwhitespace") else cells
    )


def read_options(given: Mapping[str, str]) -> dict[str, str]:
    return {**_READ, **given, **{name: _READ[name] for name in _FORCED if name in _READ}}


def write_options(job: Mutate) -> dict[str, str]:
    kept = {name: value for name, value in own_options(job).items() if name not in _ONLY_READ}
    return {**_WRITE, **kept, **_checked(plain_names(job.output_options))}


def typed_cells(fields: Sequence[StructField], options: Mapping[str, str]) -> Column:
    """A struct of cells that were read as texts, with the values that Spark's reader of CSV makes of them."""
    line = F.to_csv(F.struct(*[F.col(quoted(field.name)) for field in fields]), _CELL)
    schema = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    return F.from_csv(line, schema, {**read_options(_formats(options)), "sep": _CELL["sep"]})


def cell_text(field: StructField, options: Mapping[str, str]) -> Column:
    """A value as Spark's writer of CSV writes it."""
    value = F.col(quoted(field.name))
    if isinstance(field.dataType, StringType):
        return value
    return F.when(
        value.isNotNull(), F.to_csv(F.struct(value.alias("value")), {**_CELL, **_formats(options)})
    ).alias(field.name)


def _formats(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name in _FORMATS}


def is_utf8(options: Mapping[str, str]) -> bool:
    return options.get("encoding", "UTF-8") == "UTF-8"


def lacking(name: str, encoding: str) -> Column | None:
    """The reason for a text of a field that has letters which an encoding has not: Spark would write question marks."""
    letters = _letters(encoding)
    if letters is None:
        return None
    found = F.translate(F.col(quoted(name)), letters, "")
    advice = f"', which the encoding {encoding} lacks; write the master in another one (--output-option encoding=UTF-8)"
    return F.when(found != "", F.concat(F.lit(f"field {name!r} holds '"), found, F.lit(advice)))


@cache
def _letters(encoding: str) -> str | None:
    """All that an encoding has; None if these are all that there are."""
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    found = (
        every
        if _codec(encoding).startswith("utf")
        else every.encode(encoding, "ignore").decode(encoding, "ignore")
    )
    return None if len(found) >= len(every) else found


def needs_java_charsets(job: Mutate) -> bool:
    """Whether Spark, left to itself, refuses an encoding."""
    given = [own_options(job), increment_options(job), plain_names(job.output_options)]
    return any(
        _codec(options["encoding"]) not in _SPARKS for options in given if "encoding" in options
    )


def _codec(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError as error:
        raise InvalidInputError(
            f"encoding {encoding!r} is unknown; write it as UTF-8, ISO-8859-1 or windows-1252"
        ) from error


def _read_checked(options: dict[str, str]) -> dict[str, str]:
    """With the encoding as Spark spells it."""
    if "encoding" not in options:
        return _checked(options)
    encoding = options["encoding"]
    name = _codec(encoding)
    if not _has_single_byte_line_ends(encoding) and not is_true(options, "multiline"):
        raise InvalidInputError(
            f"files in {encoding} cannot be cut into lines by their bytes: add the option multiLine=true"
        )
    return _checked({**options, "encoding": _SPARKS.get(name, encoding)})


def _has_single_byte_line_ends(encoding: str) -> bool:
    """Whether files in this encoding can be cut into lines by their bytes."""
    return "\n".encode(_codec(encoding)) == b"\n"


def _checked(options: dict[str, str]) -> dict[str, str]:
    for name, why in _FORCED.items():
        if name in options:
            raise InvalidInputError(f"option {name!r} does not fit a mutation: {why}")
    return options
