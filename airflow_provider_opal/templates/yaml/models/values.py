"""The checks of single values: schedules, durations, days, names of tables and functions.

Each refusal names what to write instead.
"""

import re
import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from airflow_provider_opal.assets import asset_uri
from airflow_provider_opal.partition_keys import PRESETS
from airflow_provider_opal.secrets import is_secret_name
from airflow_provider_opal.templates.pipeline import RESERVED
from airflow_provider_opal.templates.yaml.text.problem import advice, listed, near_name, shown
from opal_lake.arguments import values as kinds
from opal_lake.duration import DURATION as SPAN
from opal_lake.duration import parse_duration
from opal_lake.errors import InvalidInputError
from opal_lake.reject_threshold import parse_threshold

MAX_ID = 150  # Airflow allows 250, and ids of derived DAGs and tasks are longer
MAX_NAME = 60
MAX_CRON_CHARACTERS = 150
MAX_DURATION = timedelta(days=3_650)
FIRST_YEAR, LAST_YEAR = 1970, 2199

DURATION = rf"^{SPAN}$"
MOMENT = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})?)?$"
)
FUNCTION = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
IDENTIFIER = r"^[A-Za-z0-9_][A-Za-z0-9_-]*([.][A-Za-z0-9_][A-Za-z0-9_-]*)*$"
NAME = r"^[A-Za-z_][A-Za-z0-9_-]*$"
CODEC = rf"^{kinds.CODEC}$"
SHARE = r"^[0-9]{1,3}([.][0-9]{1,6})? ?%$"
TIMEZONE = r"^[A-Za-z][A-Za-z0-9_+/-]*$"

_AIRFLOW_SCHEDULES = {
    "@annually": "@yearly",
    "@midnight": "@daily",
    "@once": "null, and trigger it by hand",
    "none": "null",
}


def duration(value: Any) -> timedelta:
    """Return the duration of a text, such as `90s`, `10m`, `1h30m`, `30d` or `2w`."""
    if isinstance(value, timedelta):
        return value
    text = _text(value, "a duration", "'10m', '2h' or '30d'")
    if not re.fullmatch(DURATION, text):
        raise ValueError(
            f"{shown(text)!r} is not a duration; write it as '90s', '10m', '1h30m', '30d' or '2w'"
        )
    try:
        total = timedelta(microseconds=parse_duration(text, name="the duration"))
    except InvalidInputError:
        total = timedelta.max  # too large for 64 bits of microseconds
    if total > MAX_DURATION:
        raise ValueError(f"{shown(text)!r} is more than ten years; write a shorter duration")
    return total


def delta_span(value: Any) -> timedelta | int:
    """Return a duration, or a whole number for a delta column of numbers."""
    if not isinstance(value, int) or isinstance(value, bool):
        return duration(value)
    if value < 0:
        raise ValueError(f"{value} is negative; write a whole number of at least 0, or '90d'")
    return value


def moment(value: Any) -> datetime:
    """Return the moment of a text, such as `2026-11-01` or `2026-11-01T06:00`.

    It may have an offset; otherwise it is in the pipeline's time zone.
    """
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime.combine(value, time())
    text = _text(value, "a day", "2026-11-01 or 2026-11-01T06:00")
    if not re.fullmatch(MOMENT, text):
        raise ValueError(
            f"{shown(text)!r} is not a day; write it as 2026-11-01 or 2026-11-01T06:00"
        )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not in the calendar ({error}); "
            "write a day that exists, such as 2026-11-01"
        ) from error
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ValueError(
            f"the year {moment.year} is out of range; write one from {FIRST_YEAR} to {LAST_YEAR}"
        )
    return moment


def schedule_text(value: str) -> str:
    """Return a cron expression or one of Airflow's presets, without spaces around it."""
    text = value.strip()
    if len(text) > MAX_CRON_CHARACTERS:
        raise ValueError(
            f"the schedule has {len(text):,} characters; "
            "write a cron expression, such as '0 6 * * *'"
        )
    if text in PRESETS:
        return text
    if text.startswith("@") or text.casefold() in _AIRFLOW_SCHEDULES:
        replacement = _AIRFLOW_SCHEDULES.get(text.casefold())
        hint = f"write {replacement}" if replacement else advice(text, PRESETS)
        raise ValueError(f"unknown schedule {shown(text)!r}; {hint}")
    if "{{" in text or len(text.split()) != 5:
        raise ValueError(
            f"{shown(text)!r} is not a cron expression; "
            f"write five fields, such as '0 6 * * *', or one of {', '.join(PRESETS)}"
        )
    if re.search(r"(?<![A-Z])[RH](?![A-Z])", text.upper()):
        raise ValueError(
            f"{shown(text)!r} is random, and changes each time Airflow parses the file; "
            "write numbers, such as '17 3 * * *'"
        )
    from croniter import CroniterError, croniter

    try:
        croniter(text, datetime(2026, 1, 1)).get_next(datetime)
    except (CroniterError, ValueError, KeyError, OverflowError) as error:
        raise ValueError(
            f"the cron expression {shown(text)!r} is not valid ({error}); "
            "write it as '0 6 * * *': minute hour day month weekday"
        ) from error
    return text


def timezone(value: str) -> str:
    """Return the name of a time zone in the IANA database."""
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"unknown time zone {shown(value)!r}; {_zone_advice(value)}") from error
    return value


def _zone_advice(value: str) -> str:
    zones = {zone.casefold(): zone for zone in available_timezones()}
    exact = zones.get(value.casefold().replace(" ", "_"))
    if exact:
        return f"did you mean {exact!r}?"
    near = near_name(value, sorted(zones.values()))
    return near or "write a name of the IANA database, such as 'UTC' or 'Europe/Berlin'"


def table_name(value: str) -> str:
    """Return a table's name: below the connection's root, or a whole path or URI."""
    scheme, separator, rest = value.partition("://")
    path = rest if separator else scheme
    parts = path.removeprefix("/").removesuffix("/").split("/")
    has_dots = ".." in value or value.startswith(".") or value.rstrip("/").endswith(".")
    if has_dots or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"{shown(value)!r} is not a table; "
            "write 'shop.orders', or a whole path without '.' and '..' in it"
        )
    try:
        asset_uri(value)
    except ValueError as error:
        raise ValueError(
            f"{shown(value)!r} is not a table; "
            "write 'shop.orders': letters, digits, '_', '.', '=' and '-'"
        ) from error
    return value


def function_name(value: str) -> str:
    """Return the name of a user's own function, such as `module:function`."""
    if not re.fullmatch(FUNCTION, value):
        # Often it is a path, a call, or a name with a dot before the function
        dotted = value.strip().removesuffix("()").replace("/", ".").replace(".py", "")
        fixed = re.sub(r"\.(\w+)$", r":\1", dotted)
        hint = "write 'module:function', such as 'shop.jobs:revenue'"
        if re.fullmatch(FUNCTION, fixed):
            hint = f"did you mean {fixed!r}?"
        raise ValueError(f"{shown(value)!r} does not name a function; {hint}")
    module, _, name = value.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"{value!r} is a function of Python itself; "
            "write one of your own modules, such as 'shop.jobs:revenue'"
        )
    if any(part.startswith("_") for part in (*module.split("."), name)):
        raise ValueError(
            f"{value!r} is private, because a name begins with '_'; "
            "name a public function, such as 'shop.jobs:revenue'"
        )
    return value


def identifier(value: str) -> str:
    """Return a pipeline's id."""
    if not re.fullmatch(IDENTIFIER, value) or len(value) > MAX_ID:
        raise ValueError(
            f"{shown(value)!r} is not an id; use letters, digits, '_' and '-', with single dots "
            "between them, and no '-' at the beginning or after a dot, "
            f"at most {MAX_ID} in all, such as 'shop_orders'"
        )
    return value


def name(value: str) -> str:
    """Return a consumer's name, which becomes that of a task or a DAG."""
    if value in RESERVED:
        raise ValueError(
            f"the pipeline itself uses the name {value!r}; choose another name, "
            f"such as '{value}_rows'"
        )
    if not re.fullmatch(NAME, value) or len(value) > MAX_NAME:
        raise ValueError(
            f"{shown(value)!r} is not a name; "
            "begin with a letter or '_', then use letters, digits, '_' and '-', "
            f"at most {MAX_NAME} characters, such as 'revenue'"
        )
    return value


def connection(value: str) -> str:
    """Return the id of a connection of Airflow."""
    if not re.fullmatch(IDENTIFIER, value):
        raise ValueError(
            f"{shown(value)!r} is not a connection; write its id, such as 'opal_default'"
        )
    return value


def threshold(value: Any) -> int | str:
    """Return a number of bad rows or a share of them, such as 100 or 5%."""
    try:
        parse_threshold(value if isinstance(value, int | str) else str(value), "quarantine")
    except InvalidInputError as error:
        raise ValueError(
            f"{shown(str(value))!r} is not a threshold; "
            "write a number of rows, such as 100, or a share of them, such as 5%"
        ) from error
    return value  # type: ignore[no-any-return]  # an int or a str: all else was refused


def codec(value: str) -> str:
    """Return a codec, such as `zstd:19`."""
    if not re.fullmatch(CODEC, value):
        raise ValueError(
            f"{shown(value)!r} is not a codec; write 'zstd:1' (fast) to 'zstd:22' (small files)"
        )
    return value


def partition_value(value: Any) -> str | int | bool:
    """Return the value of a partition at one level."""
    if isinstance(value, str | int) and value != "":
        return value
    raise ValueError(
        f"{shown(str(value))!r} is not the value of a partition; "
        "write a text, a whole number, true or false, such as '{{ partition_key }}'"
    )


def distinct(values: list[str]) -> list[str]:
    """Return a list without repeats."""
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise ValueError(f"{listed(repeated)} is listed twice; list each value once")
    return values


def plain_setting(value: Any) -> Any:
    """Return a setting of Spark as a text; in YAML it may also be a number or true."""
    if isinstance(value, bool):  # before int, of which it is a subclass
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return value


def no_secret(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return settings; raise ValueError if one has the name of a secret."""
    for key in values:
        if is_secret_name(key):
            raise ValueError(
                f"{shown(key)!r} has the name of a secret, which does not belong in a file; "
                "put it into a connection of Airflow"
            )
    return values


def _text(value: Any, expected: str, example: str) -> str:
    if isinstance(value, str):
        return value
    given = "nothing"
    if value is not None:
        given = f"{type_name(value)} {shown(str(value))}".strip()
    raise ValueError(f"{expected} is needed, not {given}; write {example}")


def type_name(value: Any) -> str:
    """Return the name of a value's type in YAML."""
    kinds = {
        bool: "the boolean",
        int: "the number",
        float: "the number",
        str: "the text",
        list: "the list",
        dict: "the mapping",
    }
    return kinds.get(type(value), type(value).__name__)
