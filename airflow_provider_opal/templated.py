"""Arguments that only a run knows: Jinja templates, and what other tasks return. They are checked then, all others at parse time."""

import re
from typing import Any

_TEMPLATE = re.compile(r"\{[{%]")


def is_templated(value: Any) -> bool:
    """Whether it is filled in by the run: a text with a template in it, an XComArg, or the argument of a mapped group."""
    return (
        bool(_TEMPLATE.search(value))
        if isinstance(value, str)
        else callable(getattr(value, "iter_references", None))
    )
