"""The tables to watch, as arguments of a command or in a YAML file such as this.

interval: 30s
tables:
  - {table: shop.orders, format: opal, path: s3://lake/orders}
  - {table: web.clicks, format: iceberg, identifier: web.clicks, catalog: prod,
     options: {uri: https://catalog}}
  - {table: web.views, format: delta, path: /lake/views}
  - {table: web.logs, format: hive, path: /lake/logs, keys: [dt, hour], marker: _SUCCESS}
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakechime.errors import InvalidEventError
from lakechime.event import DEFAULT_CLUSTER
from lakechime.producers.outbox import Source, Target
from opal_lake.duration import parse_duration

INTERVAL = "30s"
_SHARED = ("table", "format", "cluster", "options")
_OWN = {
    "opal": ("path",),
    "iceberg": ("path", "identifier", "catalog", "branch"),
    "delta": ("path",),
    "hive": ("path", "keys", "marker"),
}
FORMATS = tuple(_OWN)
_IN_CATALOG = re.compile(r"(?P<catalog>[\w-]+):(?P<identifier>[^/:]+)\Z")
FORMS = (
    "write NAME=FORMAT:LOCATION, such as shop.orders=opal:s3://lake/orders; FORMAT is one of "
    + ", ".join(FORMATS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The sources by the names in messages, and the time between two looks."""

    sources: Mapping[str, Source]
    interval_seconds: float


def tables_of_words(words: Iterable[str], cluster: str = DEFAULT_CLUSTER) -> dict[str, Source]:
    """Return the sources of words such as `shop.orders=delta:/lake/orders`.

    The keys are the names in messages. A bare path is an Opal table, which has its own name.
    """
    entries = [_entry_of_word(word, cluster) for word in words]
    return _distinct(entries, "the command")


def _entry_of_word(word: str, cluster: str) -> dict[str, Any]:
    """Return a word of the command as an entry, as the YAML file has it."""
    name, separator, value = word.partition("=")
    if not separator:
        return {"format": "opal", "path": word, "cluster": cluster}
    kind, _, location = value.partition(":")
    if kind not in FORMATS or not location:
        raise InvalidEventError(f"{word!r} does not name a table; {FORMS}")
    entry = {"table": name, "format": kind, "cluster": cluster}
    # CATALOG:NAME, which only Iceberg tables have
    in_catalog = _IN_CATALOG.match(location)
    if kind == "iceberg" and in_catalog:
        return {**entry, **in_catalog.groupdict()}
    return {**entry, "path": location}


def read_tables(path: str) -> Tables:
    """Return the tables of a YAML file, or raise one error for all mistakes in it."""
    data = _parsed(path)
    unknown = sorted(str(name) for name in data.keys() - {"interval", "tables"})
    if unknown or not isinstance(data.get("tables"), list) or not data["tables"]:
        problem = "has no list of tables"
        if unknown:
            problem = f"has the unknown keys {', '.join(unknown)}"
        raise InvalidEventError(
            f"{path} {problem}; write a list under 'tables', and optionally an 'interval'"
        )
    sources = _distinct(data["tables"], path)
    interval = str(data.get("interval", INTERVAL))
    return Tables(
        sources=sources, interval_seconds=interval_seconds(interval, f"interval in {path}")
    )


def _distinct(entries: Iterable[Any], path: str) -> dict[str, Source]:
    """Return the sources by shown name, or raise one error for all mistakes."""
    problems: list[str] = []
    sources: dict[str, Source] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            source = _source(entry)
            shown_name = _shown_name(entry)
        except (InvalidEventError, TypeError) as error:
            problems.append(f"table {number}: {error}")
            continue
        if shown_name in sources:
            problems.append(f"table {number}: {shown_name} is listed twice; name each table once")
        sources[shown_name] = source
    if problems:
        raise InvalidEventError(f"{path}: " + "; ".join(problems))
    return sources


def interval_seconds(text: str, name: str) -> float:
    try:
        seconds = parse_duration(text, name=name) / 1_000_000
    except ValueError as error:
        raise InvalidEventError(str(error)) from error
    if seconds < 1:
        raise InvalidEventError(f"{name} is {text}, which is too short; use at least 1s")
    return seconds


def _shown_name(entry: Mapping[str, Any]) -> str:
    """Return the name that messages use, with the cluster unless it is the default."""
    # An Opal table without a name is shown by its path: its property is read later
    name = str(entry.get("table") or entry["path"])
    cluster = entry.get("cluster") or DEFAULT_CLUSTER
    return name if cluster == DEFAULT_CLUSTER else f"{cluster}/{name}"


def _parsed(path: str) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise InvalidEventError(
            "a file of tables needs PyYAML, which is not installed: "
            "pip install 'opal-lake[lakechime]'"
        ) from error
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidEventError(f"{path} cannot be read ({error}); correct it") from error
    if not isinstance(data, Mapping):
        raise InvalidEventError(f"{path} is not a mapping; write 'tables:' and a list of tables")
    return data


def _source(entry: Any) -> Source:
    """Return the source of an entry, or raise InvalidEventError for its first mistake."""
    if not isinstance(entry, Mapping) or entry.get("format") not in FORMATS:
        raise InvalidEventError(
            f"{entry!r} has no known format; write format: with one of {', '.join(FORMATS)}"
        )
    kind = entry["format"]
    known = (*_SHARED, *_OWN[kind])
    unknown = sorted(str(name) for name in entry.keys() - {*known})
    if unknown:
        raise InvalidEventError(
            f"a table of format {kind} has the unknown keys {', '.join(unknown)}; "
            f"the keys are {', '.join(known)}"
        )
    if "path" not in entry and kind != "iceberg":
        raise InvalidEventError(
            f"a table of format {kind} needs a path; write for example path: /lake/orders"
        )
    if not entry.get("table") and kind != "opal":
        raise InvalidEventError(
            f"a table of format {kind} needs a name; write for example table: shop.orders"
        )
    given_options = entry.get("options") or {}
    options = {str(name): str(value) for name, value in given_options.items()}
    cluster = str(entry.get("cluster") or DEFAULT_CLUSTER)
    make = _MAKERS[kind]
    return make(entry, cluster, options)


def _opal(entry: Mapping[str, Any], cluster: str, options: Mapping[str, str]) -> Source:
    from lakechime.producers.opal import OpalLocation

    return OpalLocation(
        path=str(entry["path"]), name=entry.get("table"), cluster=cluster, options=options
    )


def _iceberg(entry: Mapping[str, Any], cluster: str, options: Mapping[str, str]) -> Source:
    from lakechime.producers.iceberg import MAIN, IcebergLocation, IcebergSource

    location = IcebergLocation(
        path=entry.get("path"),
        identifier=entry.get("identifier"),
        catalog=entry.get("catalog"),
        properties=options,
    )
    return IcebergSource(
        location=location,
        target=Target(table=entry["table"], cluster=cluster),
        branch=entry.get("branch") or MAIN,
    )


def _delta(entry: Mapping[str, Any], cluster: str, options: Mapping[str, str]) -> Source:
    from lakechime.producers.delta import DeltaSource

    return DeltaSource(
        path=str(entry["path"]),
        target=Target(table=entry["table"], cluster=cluster),
        options=options,
    )


def _hive(entry: Mapping[str, Any], cluster: str, options: Mapping[str, str]) -> Source:
    from lakechime.producers.hive import HiveSource

    keys = entry.get("keys")
    if isinstance(keys, str):
        raise InvalidEventError(f"keys: {keys} is a text; write a list, such as [dt, hour]")
    target = Target(table=entry["table"], cluster=cluster)
    return HiveSource(
        path=str(entry["path"]),
        target=target,
        keys=tuple(keys) if keys else None,
        marker=entry.get("marker"),
        options=options,
    )


_MAKERS: Mapping[str, Callable[[Mapping[str, Any], str, Mapping[str, str]], Source]] = {
    "opal": _opal,
    "iceberg": _iceberg,
    "delta": _delta,
    "hive": _hive,
}
