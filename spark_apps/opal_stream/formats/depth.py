"""The depth of JSON, counted in its text before a parser recurses into it.

Both messages and schemas are limited in depth.
"""

import re

import numpy as np

# Levels of objects and lists. Arrow's stream format, which gathered files and Spark's tasks use,
# has at most 64 levels. Inferring a type of some thousand levels would overflow the stack.
MAX_DEPTH = 60
# Matches a string, also one without an end: otherwise each quote in such a string would begin
# another search to the end of the text
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
# The change of depth by each of the 256 bytes
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
        raise ValueError(f"{what} nests {depth:,} levels deep, more than the limit of {max_depth}")
