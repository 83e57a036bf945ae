"""The properties file of chombo's RecordSetBulkMutator as arguments of `mutate`."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from opal_lake.errors import InvalidInputError
from opal_lake.source import BY_SUFFIX

_LINE = re.compile(r"\s*([^=:\s#!][^=:\s]*)\s*[=:]?\s*(.*?)\s*$")
_TRUTH = {"true": True, "false": False}
IDS, ORDER, NUMERIC = (
    "id.field.ordinals",
    "temporal.ordering.field.ordinal",
    "temporal.ordering.field.numeric",
)
OP, DELETED_OP, PREFIX = "op.code.field.ordinal", "deleted.op.code", "deleted.record.file.prefix"
DELIMITERS, DELIMITER_OUT = (
    ("field.delim.regex", "field.delim.in", "field.delim"),
    "field.delim.out",
)
KNOWN = (IDS, ORDER, NUMERIC, OP, DELETED_OP, PREFIX, *DELIMITERS, DELIMITER_OUT)


def parse_properties(text: str) -> dict[str, str]:
    """Names and values of lines `name=value`; `#` and `!` begin a comment, as in Java's files."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidInputError(
                f"line {number} of the properties is no name=value: {line.strip()!r}"
            )
        found[match[1]] = match[2]
    return found


def arguments_of(properties: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Arguments of `mutate`, and names that mean nothing to it: one file often has the properties of several jobs.

    As there, records are in the order of their files' suffixes unless a field says it, and files are CSV without a header.
    """
    unknown = [name for name in properties if name not in KNOWN]
    for name in unknown:
        if close := get_close_matches(name, KNOWN, n=1, cutoff=0.85):
            raise InvalidInputError(f"property {name!r} is unknown; did you mean {close[0]!r}?")
    if not properties.get(IDS):
        raise InvalidInputError(
            f"the properties have no {IDS}, which says which fields make a record's id; add {IDS}=0"
        )
    ids = [_ordinal(IDS, text) for text in properties[IDS].split(",")]
    arguments: dict[str, Any] = {"ids": ids, "order": BY_SUFFIX, "header": False}
    if ORDER in properties:
        arguments["order"] = _ordinal(ORDER, properties[ORDER])
        arguments["order_type"] = (
            "numeric" if _flag(NUMERIC, properties.get(NUMERIC, "true")) else "text"
        )
    if OP in properties:
        arguments["op_field"] = _ordinal(OP, properties[OP])
    named = {
        DELETED_OP: "deleted_op",
        PREFIX: "delete_prefix",
        **dict.fromkeys(reversed(DELIMITERS), "delimiter"),
    }
    arguments |= {
        argument: properties[name] for name, argument in named.items() if properties.get(name)
    }
    if properties.get(DELIMITER_OUT):
        arguments["output_options"] = {"sep": properties[DELIMITER_OUT]}
    return arguments, unknown


def _ordinal(name: str, text: str) -> str:
    if not text.strip().isdecimal():
        raise InvalidInputError(
            f"property {name}={text!r} is no ordinal; write the number of the field, the first is 0"
        )
    return text.strip()


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise InvalidInputError(f"property {name}={text!r} is neither true nor false")
    return _TRUTH[text.lower()]
