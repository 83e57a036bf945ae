"""The architecture: floors as import-linter keeps them, and the packages with what they say of themselves."""

import ast
import html
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {
    "airflow_provider_opal": ROOT,
    **dict.fromkeys(
        ("lakechime", "opal_folder", "opal_lake", "opal_spark", "opal_stream"), ROOT / "spark_apps"
    ),
}
STOREYS = (
    ("airflow_provider_opal", "opal_spark"),
    ("lakechime", "opal_folder", "opal_stream"),
    ("opal_lake",),
)  # side by side, above the others

WIDTH, FLOOR, GAP, PAD, HEAD = 840, 30, 6, 10, 26
LETTER = 7.3  # the width of one, of 12 px


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A package, and its floors from the top. The rooms of one may import each other, but not in circles."""

    name: str
    floors: tuple[tuple[str, ...], ...]

    def rows(self, width: float) -> list[tuple[str, ...]]:
        """Return the rooms as they are painted: a floor with many of them takes several rows."""
        return [row for floor in self.floors for row in _rows(floor, width - 2 * PAD)]

    def height(self, width: float) -> int:
        """Return the height of the house if it is as wide as this."""
        return HEAD + len(self.rows(width)) * (FLOOR + GAP) + PAD


def _rows(floor: tuple[str, ...], width: float) -> Iterator[tuple[str, ...]]:
    """Break a floor into rows of rooms that are all as wide as the longest name."""
    widest = max(len(room) for room in floor) * LETTER + 2 * GAP
    most = max(1, int((width + GAP) // (widest + GAP)))
    row_count = -(-len(floor) // most)
    length = -(-len(floor) // row_count)
    for first in range(0, len(floor), length):
        yield floor[first : first + length]


def houses() -> dict[str, House]:
    """Return the packages with their floors, from the contracts in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]
    floors = {
        contract["containers"][0]: tuple(map(_rooms, contract["layers"]))
        for contract in project["contracts"]
        if contract["type"] == "layers" and "containers" in contract
    }
    return {
        name: House(name=name, floors=floors[name])
        for name in project["root_packages"]
        if name in SOURCES
    }


def _rooms(layer: str) -> tuple[str, ...]:
    return tuple(room.strip("() ") for room in layer.replace(":", "|").split("|"))


def picture() -> str:
    """An inline SVG; its colours are the page's. No blank line, which would end the HTML."""
    known, parts, top = houses(), list[str](), 0
    for number, names in enumerate(STOREYS):
        width = (WIDTH - (len(names) - 1) * PAD) // len(names)
        height = max(known[name].height(width) for name in names)
        for column, name in enumerate(names):
            left = column * (width + PAD)
            parts += _house(known[name], (left, top), (width, height))
            if number < len(STOREYS) - 1:
                x = left + width // 2
                parts.append(
                    f'<path class="arrow" d="M{x} {top + height} v{3 * PAD - 2} m-5 -8 l5 8 l5 -8"/>'
                )
        top += height + (3 * PAD if number < len(STOREYS) - 1 else 0)
    size = f'viewBox="-4 -4 {WIDTH + 8} {top + 8}"'
    label = "airflow_provider_opal and opal_spark stand on lakechime and opal_stream, these on opal_lake; imports go down"
    return f'<div class="rooms"><svg {size} role="img" aria-label="{label}">{"".join(parts)}</svg></div>'


def _house(house: House, corner: tuple[int, int], size: tuple[int, int]) -> Iterator[str]:
    (left, top), (width, height) = corner, size
    yield f'<rect class="house" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>'
    yield f'<text class="name" x="{left + width / 2}" y="{top + 18}">{house.name}</text>'
    for number, rooms in enumerate(house.rows(width)):
        room_width = (width - 2 * PAD - (len(rooms) - 1) * GAP) / len(rooms)
        y = top + HEAD + number * (FLOOR + GAP)
        for column, room in enumerate(rooms):
            x = left + PAD + column * (room_width + GAP)
            yield f'<rect class="room" x="{x:.1f}" y="{y}" width="{room_width:.1f}" height="{FLOOR}" rx="3"/>'
            yield f'<text x="{x + room_width / 2:.1f}" y="{y + 20}">{html.escape(room)}</text>'


def tree() -> str:
    return "\n".join(
        line for name, folder in SOURCES.items() for line in _package(folder / name, name, 0)
    )


def _package(folder: Path, name: str, depth: int) -> Iterator[str]:
    docstring = (
        ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    )
    modules = sorted(path.stem for path in folder.glob("*.py") if not path.name.startswith("__"))
    listed = f" Modules: {', '.join(f'`{module}`' for module in modules)}." if modules else ""
    yield f"{'    ' * depth}- `{name}`: {' '.join(docstring.partition(chr(10) * 2)[0].split())}{listed}"
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").is_file()):
        yield from _package(inner, inner.name, depth + 1)
