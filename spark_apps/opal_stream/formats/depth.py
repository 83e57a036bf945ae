"""The depth of JSON, read from its text before anything walks it.

A module of its own, as it bounds both messages and schemas.
"""

import re

import numpy as np

# Levels of objects and lists. Arrow's stream format, which gathered files and Spark's tasks use,
# carries 64; beyond some thousands a type that is inferred overflows the stack of the process.
MAX_DEPTH = 60
# Also a string without an end: otherwise each quote in it would begin another search to the end
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_STEPS = np.zeros(256, np.int8)
_STEPS[[*b"{["]] = 1
_STEPS[[*b"}]"]] = -1


def check_depth(text: bytes, what: str = "the message", max_depth: int = MAX_DEPTH) -> None:
    """Raise ValueError for JSON that nests deeper than `max_depth` levels."""
    if text.count(b"{") + text.count(b"[") <= max_depth:
        return
    outside_of_strings = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    depth = int(_STEPS[outside_of_strings].cumsum(dtype=np.int64).max(initial=0))
    if depth > max_depth:
        raise ValueError(f"{what} nests {depth:,} levels deep, and {max_depth} are read")
