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
    """Return the names and values of lines `name=value`.

    `#` and `!` begin a comment, as in Java's files.
    """
    properties: dict[str, str] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidInputError(
                f"line {number} of the properties is not name=value: {line.strip()!r}"
            )
        properties[match[1]] = match[2]
    return properties


def arguments_of(properties: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of `mutate`, and the names that it does not know.

    One file often has the properties of several jobs. As in chombo, records are in the order of
    their files' suffixes unless a field orders them, and files are CSV without a header.
    """
    unknown = [name for name in properties if name not in KNOWN]
    for name in unknown:
        close = get_close_matches(name, KNOWN, n=1, cutoff=0.85)
        if close:
            raise InvalidInputError(f"property {name!r} is unknown; did you mean {close[0]!r}?")
    if not properties.get(IDS):
        raise InvalidInputError(
            f"the properties have no {IDS}, which says which fields make a record's id; add {IDS}=0"
        )
    ids = [_ordinal(IDS, text) for text in properties[IDS].split(",")]
    arguments: dict[str, Any] = {"ids": ids, "order": BY_SUFFIX, "header": False}
    if ORDER in properties:
        is_numeric = _flag(NUMERIC, properties.get(NUMERIC, "true"))
        arguments["order"] = _ordinal(ORDER, properties[ORDER])
        arguments["order_type"] = "numeric" if is_numeric else "text"
    if OP in properties:
        arguments["op_field"] = _ordinal(OP, properties[OP])
    argument_of = {DELETED_OP: "deleted_op", PREFIX: "delete_prefix"}
    # The first of them counts, so it is set last
    argument_of |= dict.fromkeys(reversed(DELIMITERS), "delimiter")
    for name, argument in argument_of.items():
        value = properties.get(name)
        if value:
            arguments[argument] = value
    if properties.get(DELIMITER_OUT):
        arguments["output_options"] = {"sep": properties[DELIMITER_OUT]}
    return arguments, unknown


def _ordinal(name: str, text: str) -> str:
    if not text.strip().isdecimal():
        raise InvalidInputError(
            f"property {name}={text!r} is not an ordinal; write the number of the field, from 0"
        )
    return text.strip()


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise InvalidInputError(f"property {name}={text!r} is neither true nor false")
    return _TRUTH[text.lower()]
