"""The architecture: the floors of import-linter, and the packages with their docstrings."""

import ast
import html
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The folder of each package
SOURCES = {
    "airflow_provider_opal": ROOT,
    "lakechime": ROOT / "spark_apps",
    "opal_folder": ROOT / "spark_apps",
    "opal_lake": ROOT / "spark_apps",
    "opal_spark": ROOT / "spark_apps",
    "opal_stream": ROOT / "spark_apps",
}
# From the top; packages of one storey stand side by side
STOREYS = (
    ("airflow_provider_opal", "opal_spark"),
    ("lakechime", "opal_folder", "opal_stream"),
    ("opal_lake",),
)

# Pixels
WIDTH, FLOOR, GAP, PAD, HEAD = 840, 30, 6, 10, 26
LETTER = 7.3  # the width of a letter of 12 px


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """A package, and its floors from the top.

    The rooms of a floor may import each other, but not in circles.
    """

    name: str
    floors: tuple[tuple[str, ...], ...]

    def rows(self, width: float) -> list[tuple[str, ...]]:
        """Return the rows of rooms; a floor with many rooms takes several rows."""
        rows: list[tuple[str, ...]] = []
        for floor in self.floors:
            rows += _rows(floor, width - 2 * PAD)
        return rows

    def height(self, width: float) -> int:
        """Return the height of the house at a width."""
        return HEAD + len(self.rows(width)) * (FLOOR + GAP) + PAD


def _rows(floor: tuple[str, ...], width: float) -> Iterator[tuple[str, ...]]:
    """Break a floor into rows of rooms that are all as wide as the longest name."""
    room_width = max(len(room) for room in floor) * LETTER + 2 * GAP
    max_rooms = max(1, int((width + GAP) // (room_width + GAP)))
    row_count = math.ceil(len(floor) / max_rooms)
    # The rows of a floor have about the same length
    rooms_per_row = math.ceil(len(floor) / row_count)
    for first in range(0, len(floor), rooms_per_row):
        yield floor[first : first + rooms_per_row]


def houses() -> dict[str, House]:
    """Return the packages with their floors, from the contracts in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    linter = project["tool"]["importlinter"]
    floors = {}
    for contract in linter["contracts"]:
        if contract["type"] == "layers" and "containers" in contract:
            [package] = contract["containers"]
            floors[package] = tuple(_rooms(layer) for layer in contract["layers"])
    names = [name for name in linter["root_packages"] if name in SOURCES]
    return {name: House(name=name, floors=floors[name]) for name in names}


def _rooms(layer: str) -> tuple[str, ...]:
    """Return the rooms of a layer of import-linter, such as `a | b : (c)`."""
    return tuple(room.strip("() ") for room in layer.replace(":", "|").split("|"))


def picture() -> str:
    """Return the picture of the packages as inline SVG, in the colours of the page."""
    known = houses()
    shapes: list[str] = []
    top = 0
    for number, names in enumerate(STOREYS):
        is_lowest = number == len(STOREYS) - 1
        width = (WIDTH - (len(names) - 1) * PAD) // len(names)
        height = max(known[name].height(width) for name in names)
        bottom = top + height
        for column, name in enumerate(names):
            left = column * (width + PAD)
            shapes += _house(known[name], (left, top), (width, height))
            if not is_lowest:
                line = f"M{left + width // 2} {bottom} v{3 * PAD - 2} m-5 -8 l5 8 l5 -8"
                shapes.append(f'<path class="arrow" d="{line}"/>')
        top = bottom if is_lowest else bottom + 3 * PAD
    size = f'viewBox="-4 -4 {WIDTH + 8} {top + 8}"'
    label = (
        "airflow_provider_opal and opal_spark stand on lakechime and opal_stream, "
        "these on opal_lake; imports go down"
    )
    # A blank line would end the HTML in a page of Markdown
    svg = f'<svg {size} role="img" aria-label="{label}">{"".join(shapes)}</svg>'
    return f'<div class="rooms">{svg}</div>'


def _house(house: House, corner: tuple[int, int], size: tuple[int, int]) -> Iterator[str]:
    """Yield the SVG elements of a package: a frame, its name, and a box for each room.

    `corner` is left and top, `size` is width and height, in pixels.
    """
    left, top = corner
    width, height = size
    yield f'<rect class="house" x="{left}" y="{top}" width="{width}" height="{height}" rx="6"/>'
    yield f'<text class="name" x="{left + width / 2}" y="{top + 18}">{house.name}</text>'
    for number, rooms in enumerate(house.rows(width)):
        gaps_width = (len(rooms) - 1) * GAP
        room_width = (width - 2 * PAD - gaps_width) / len(rooms)
        y = top + HEAD + number * (FLOOR + GAP)
        for column, room in enumerate(rooms):
            x = left + PAD + column * (room_width + GAP)
            room_size = f'width="{room_width:.1f}" height="{FLOOR}"'
            yield f'<rect class="room" x="{x:.1f}" y="{y}" {room_size} rx="3"/>'
            yield f'<text x="{x + room_width / 2:.1f}" y="{y + 20}">{html.escape(room)}</text>'


def tree() -> str:
    """Return a nested list of all packages, each with its docstring and its modules."""
    lines: list[str] = []
    for name, folder in SOURCES.items():
        lines += _package(folder / name, name, 0)
    return "\n".join(lines)


def _package(folder: Path, name: str, depth: int) -> Iterator[str]:
    code = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    first_paragraph, _, _ = (ast.get_docstring(code) or "").partition("\n\n")
    text = " ".join(first_paragraph.split())
    modules = sorted(path.stem for path in folder.glob("*.py"))
    names = [f"`{module}`" for module in modules if not module.startswith("__")]
    if names:
        text += f" Modules: {', '.join(names)}."
    indent = "    " * depth
    yield f"{indent}- `{name}`: {text}"
    for file in sorted(folder.glob("*/__init__.py")):
        inner = file.parent
        yield from _package(inner, inner.name, depth + 1)
