"""Lists from the code: properties of a table, functions of conditions, metrics of streams."""

from opal_lake.definition.conditions.parser import FUNCTIONS
from opal_lake.definition.properties import MAX_NUMBER, PROPERTIES, Number, Words
from opal_stream.tracking.metrics import HELP


def properties() -> str:
    """Return the table of a table's properties."""
    rows = ["| property | default | allowed | meaning |", "|---|---|---|---|"]
    for name, known in PROPERTIES.items():
        match known.kind:
            case Number():
                allowed = _numbers(known.kind)
            case Words(choices=choices):
                allowed = ", ".join(f"`{choice}`" for choice in choices)
            case _:
                allowed = "text"
        default = known.kind.default
        default_cell = f"`{default}`" if default != "" else ""
        rows.append(f"| `{name}` | {default_cell} | {allowed} | {known.summary} |")
    return "\n".join(rows)


def _numbers(kind: Number) -> str:
    off = "0, or " if kind.can_be_0 else ""
    if kind.most == MAX_NUMBER:
        return f"{off}a number from {kind.least}"
    return f"{off}{kind.least} to {kind.most}"


def functions() -> str:
    """Return the table of the functions of conditions."""
    rows = ["| function | how it is written |", "|---|---|"]
    rows += [f"| `{name}` | {written} |" for name, written in sorted(FUNCTIONS.items())]
    return "\n".join(rows)


def metrics() -> str:
    """Return the table of the metrics of streams."""
    rows = ["| metric | kind | meaning |", "|---|---|---|"]
    rows += [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in HELP.items()]
    return "\n".join(rows)
