"""The options of CSV for a folder, by which a written value is read again unchanged."""

import codecs
from collections.abc import Mapping, Sequence
from functools import cache

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField

from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_spark.engine.columns import columns_named, quoted
from opal_spark.sources.text.csv_lines import cells_of, is_true, plain_names, separator
from opal_spark.sources.text.csv_quotes import NO_CHARACTER

CORRUPT = "_opal_corrupt"
# `nullvalue` is a text that no cell has: by default Spark reads a quoted empty cell as null, too
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
# The values that a reader assumes for missing options
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
# Encodings that Spark reads without a setting, by Python's names of them
_SPARKS = {
    "utf-8": "UTF-8",
    "iso8859-1": "ISO-8859-1",
    "ascii": "US-ASCII",
    "utf-16": "UTF-16",
    "utf-16-be": "UTF-16BE",
    "utf-16-le": "UTF-16LE",
    "utf-32": "UTF-32",
}
# Options that a job must not give, with the reason
_FORCED = {
    "mode": "give on_bad_rows='fail' or 'quarantine' instead",
    "columnnameofcorruptrecord": (
        "bad rows are shown, or written to the folder rejected/; leave it out"
    ),
    "enforceschema": "fields are matched by the header; leave it out",
    "inferschema": "give the types with schema=; otherwise all fields are texts",
}
# The values of the forced options that have one
_FORCED_READ = {name: value for name, value in _READ.items() if name in _FORCED}


def own_options(job: Mutate) -> dict[str, str]:
    """Return the options by which the master is read."""
    options = {"sep": job.delimiter, "header": str(job.header).lower()}
    return _read_checked({**options, **plain_names(job.options)})


def increment_options(job: Mutate) -> dict[str, str]:
    """Return the options by which increments are read."""
    return _read_checked({**own_options(job), **plain_names(job.increment_options)})


def written_options(job: Mutate) -> dict[str, str]:
    """Return the options, by Spark's names, that a reader of a job's output needs."""
    options = {"encoding": "UTF-8", **own_options(job), **plain_names(job.output_options)}
    if not _has_single_byte_line_ends(options["encoding"]):
        options["multiline"] = "true"
    return _read_checked(options)


def contradictions(
    recorded: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the given options that contradict the recorded ones.

    An option has its recorded and its given value.
    """
    known = {**_DEFAULTS, **recorded}
    differing = {}
    for name, value in given.items():
        if _meaning(name, value) != _meaning(name, known.get(name)):
            differing[name] = (known.get(name, "not set"), value)
    return differing


def _meaning(name: str, value: str | None) -> str | None:
    """Return an option's value in a form in which equal meanings are equal texts."""
    if value is None:
        return None
    if name == "encoding":
        return _codec(value)
    if name == "sep":
        return separator({"sep": value})
    if value.lower() in ("true", "false"):
        return value.lower()
    return value


def header_cells(line: str, options: Mapping[str, str]) -> list[str]:
    """Return the names in a header."""
    cells = cells_of(line, options)
    if is_true(options, "ignoreleadingwhitespace"):
        return [cell.strip() for cell in cells]
    return cells


def read_options(given: Mapping[str, str]) -> dict[str, str]:
    return {**_READ, **given, **_FORCED_READ}


def write_options(job: Mutate) -> dict[str, str]:
    own = own_options(job)
    of_master = {name: value for name, value in own.items() if name not in _ONLY_READ}
    return {**_WRITE, **of_master, **_checked(plain_names(job.output_options))}


def typed_cells(fields: Sequence[StructField], options: Mapping[str, str]) -> Column:
    """Return a struct of fields' values from columns with CSV cells as texts.

    The values are those that Spark's reader of CSV would read.
    """
    texts = F.struct(*columns_named(field.name for field in fields))
    schema = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
    reading = {**read_options(_formats(options)), "sep": _CELL["sep"]}
    return F.from_csv(F.to_csv(texts, _CELL), schema, reading)


def cell_text(field: StructField, options: Mapping[str, str]) -> Column:
    """Return a value as Spark's writer of CSV writes it."""
    value = F.col(quoted(field.name))
    if isinstance(field.dataType, StringType):
        return value
    text = F.to_csv(F.struct(value.alias("value")), {**_CELL, **_formats(options)})
    return F.when(value.isNotNull(), text).alias(field.name)


def _formats(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name in _FORMATS}


def is_utf8(options: Mapping[str, str]) -> bool:
    return options.get("encoding", "UTF-8") == "UTF-8"


def lacking(name: str, encoding: str) -> Column | None:
    """Return a column with the reason if an encoding lacks letters of a text.

    Spark would write question marks for such letters. None if the encoding has all letters.
    """
    letters = _letters(encoding)
    if letters is None:
        return None
    lacking_letters = F.translate(F.col(quoted(name)), letters, "")
    advice = (
        f"', which the encoding {encoding} lacks; write the master in another encoding "
        "with output_options={'encoding': 'UTF-8'} (--output-option encoding=UTF-8)"
    )
    reason = F.concat(F.lit(f"field {name!r} holds '"), lacking_letters, F.lit(advice))
    return F.when(lacking_letters != "", reason)


@cache
def _letters(encoding: str) -> str | None:
    """Return all letters of an encoding; None if it has all that Unicode has."""
    if _codec(encoding).startswith("utf"):
        return None
    # All code points but the surrogates, which are not letters
    all_letters = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    letters = all_letters.encode(encoding, "ignore").decode(encoding, "ignore")
    return None if len(letters) >= len(all_letters) else letters


def needs_java_charsets(job: Mutate) -> bool:
    """Return whether the job has an encoding that Spark refuses without a setting."""
    for options in (own_options(job), increment_options(job), plain_names(job.output_options)):
        if "encoding" in options and _codec(options["encoding"]) not in _SPARKS:
            return True
    return False


def _codec(encoding: str) -> str:
    try:
        return codecs.lookup(encoding).name
    except LookupError as error:
        raise InvalidInputError(
            f"encoding {encoding!r} is unknown; give a name such as UTF-8, ISO-8859-1 or "
            "windows-1252"
        ) from error


def _read_checked(options: dict[str, str]) -> dict[str, str]:
    """Return valid options of a reader, with Spark's name of the encoding."""
    if "encoding" not in options:
        return _checked(options)
    encoding = options["encoding"]
    name = _codec(encoding)
    if not _has_single_byte_line_ends(encoding) and not is_true(options, "multiline"):
        raise InvalidInputError(
            f"files in {encoding} cannot be cut into lines by their bytes: "
            "add options={'multiLine': 'true'} (--csv-option multiLine=true)"
        )
    return _checked({**options, "encoding": _SPARKS.get(name, encoding)})


def _has_single_byte_line_ends(encoding: str) -> bool:
    """Return whether files in this encoding can be cut into lines by their bytes."""
    return "\n".encode(_codec(encoding)) == b"\n"


def _checked(options: dict[str, str]) -> dict[str, str]:
    for name, why in _FORCED.items():
        if name in options:
            raise InvalidInputError(f"option {name!r} does not apply to a mutation: {why}")
    return options
