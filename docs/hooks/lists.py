"""Lists that the code holds: the properties of a table, and the functions of a delete condition."""

from opal_lake.spec.condition import FUNCTIONS
from opal_lake.spec.properties import PROPERTIES, Number, Words


def properties() -> str:
    rows = ["| property | default | allowed | meaning |", "|---|---|---|---|"]
    for name, known in PROPERTIES.items():
        match known.kind:
            case Number(least=least, most=most):
                allowed = f"{least} to {most}" if most is not None else f"a number from {least}"
            case Words(choices=choices):
                allowed = ", ".join(f"`{choice}`" for choice in choices)
            case _:
                allowed = "text"
        default = "" if known.kind.default == "" else f"`{known.kind.default}`"
        rows.append(f"| `{name}` | {default} | {allowed} | {known.summary} |")
    return "\n".join(rows)


def functions() -> str:
    return ", ".join(f"`{name}`" for name in sorted(FUNCTIONS)) + "."
