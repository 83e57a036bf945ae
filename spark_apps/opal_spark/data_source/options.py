"""The options of `format("opal")`, by the names that readers of Delta and of Spark 4.2 use.

Upper and lower case in an option's name make no difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opal_lake.arguments.values import CHANGE_MODES, NET
from opal_lake.checked import LATEST
from opal_lake.definition.ordering import encode_order, from_order
from opal_lake.definition.schema import Atomic
from opal_lake.errors import InvalidInputError
from opal_lake.operations.read import Changes

_TIMESTAMP = Atomic(name="timestamp")
_ON = "readChangeFeed"
_START, _START_TIME = "startingVersion", "startingTimestamp"
_END, _END_TIME = "endingVersion", "endingTimestamp"
_MODE, _UPDATES = "deduplicationMode", "computeUpdates"
_LIMIT, _IGNORE_DELETES = "maxVersionsPerTrigger", "ignoreDeletes"
TOKEN = "token"
_ROWS_OPTIONS = ("version", "timestamp", "business_snapshot", "event_time", "files_where")
_FEED_OPTIONS = (_START, _START_TIME, _END, _END_TIME, _MODE, _UPDATES)
_STREAM_OPTIONS = (_LIMIT, _IGNORE_DELETES)
OPTIONS = ("path", *_ROWS_OPTIONS, _ON, *_FEED_OPTIONS, *_STREAM_OPTIONS, TOKEN)

Options = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """The options of a stream.

    `changes` is None for a stream of rows. Without `start` the stream begins with the whole table.
    """

    changes: Changes | None
    start: object
    max_versions: int | None
    ignore_deletes: bool


def reads_changes(options: Options) -> bool:
    return _truth(options, _ON, default=False)


def feed_of(options: Options) -> Changes | None:
    """Return the change feed that a batch read asks for; None for a read of rows."""
    _refuse(options, (*_STREAM_OPTIONS, TOKEN), "does not apply to a batch read; leave it out")
    if not reads_changes(options):
        _refuse(
            options,
            _FEED_OPTIONS,
            f"applies only to a change feed; add .option('{_ON}', 'true')",
        )
        return None
    _refuse(
        options,
        _ROWS_OPTIONS,
        f"applies only to a read of rows, but {_ON} reads changes; leave one of them out",
    )
    start = _bound(options, _START, _START_TIME)
    if start is None:
        raise InvalidInputError(
            f"a change feed needs {_START} or {_START_TIME}; add, for example, "
            f".option('{_START}', 8)"
        )
    return _changes(options, start, _bound(options, _END, _END_TIME))


def stream_of(options: Options) -> StreamOptions:
    """Return the checked options of a streaming read."""
    _refuse(
        options,
        (*_ROWS_OPTIONS, TOKEN),
        f"does not apply to a stream; set its start with {_START} or {_START_TIME}",
    )
    _refuse(
        options,
        (_END, _END_TIME),
        "applies only to a batch read, because a stream has no end. Leave it out; "
        "with trigger(availableNow=True) the query ends with the newest version",
    )
    start = _bound(options, _START, _START_TIME)
    changes = None
    if reads_changes(options):
        changes = _stream_changes(options, start)
    else:
        _refuse(
            options,
            (_MODE, _UPDATES),
            f"applies only to a change feed; add .option('{_ON}', 'true')",
        )
    return StreamOptions(
        changes=changes,
        start=start,
        max_versions=_limit(options),
        ignore_deletes=_truth(options, _IGNORE_DELETES, default=False),
    )


def _stream_changes(options: Options, start: object) -> Changes:
    changes = _changes(options, 0 if start is None else start)
    _refuse(
        options,
        (_IGNORE_DELETES,),
        f"applies only to a stream of rows, but {_ON} returns deletes as rows of their own; "
        "leave one of them out",
    )
    if changes.is_net:
        raise InvalidInputError(
            f"option {_MODE}={NET} applies only to a batch read: in a stream, later micro-batches "
            "may change the same rows again. Leave it out"
        )
    return changes


def _refuse(options: Options, names: tuple[str, ...], why: str) -> None:
    if given := sorted(name for name in names if name in options):
        raise InvalidInputError(f"option {', '.join(given)} {why}")


def _changes(options: Options, start: Any, end: Any = None) -> Changes:
    # Upper and lower case in a mode make no difference, as in names of options
    known_modes = {mode.casefold(): mode for mode in CHANGE_MODES}
    mode = options.get(_MODE, "none")
    return Changes(
        start=start,
        end=end,
        mode=known_modes.get(mode.casefold(), mode),
        compute_updates=_truth(options, _UPDATES, default=True),
    )


def _truth(options: Options, name: str, *, default: bool) -> bool:
    # Spark passes every value as a text
    text = options.get(name, str(default))
    if text.lower() not in ("true", "false"):
        raise InvalidInputError(
            f"option {name}={text!r} is neither true nor false; give one of them"
        )
    return text.lower() == "true"


def _limit(options: Options) -> int | None:
    text = options.get(_LIMIT)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise InvalidInputError(
            f"option {_LIMIT}={text!r} is not a number of versions; "
            "give a whole number of at least 1"
        )
    return int(text)


def _bound(options: Options, version_option: str, time_option: str) -> object:
    """Return a bound of the versions: a version, LATEST, a time, or None."""
    if version_option in options and time_option in options:
        raise InvalidInputError(
            f"options {version_option} and {time_option} are the same bound of the versions; "
            "leave one of them out"
        )
    if time_option in options:
        micros = encode_order(options[time_option], _TIMESTAMP, name=time_option)
        return from_order(micros, _TIMESTAMP)
    text = options.get(version_option)
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    if text == LATEST and version_option == _START:
        return text
    raise InvalidInputError(
        f"option {version_option}={text!r} is not a version; "
        "give a whole number that `opal history` lists"
    )
