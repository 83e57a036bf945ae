"""The charts of a run, for people.

One colour for Opal tables, greys for all else, and every bar says its value.
"""

from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tests.bench.peers.catalog import SYSTEMS
from tests.bench.peers.figures import UNFILTERED, Results, share

TITLES = {
    "opal-inline": "Opal, inline",
    "opal-inline-rocksdb": "Opal, inline, RocksDB",
    "opal-inline-orc": "Opal, inline, ORC",
    "opal-batch": "Opal, batch",
    "opal-local": "Opal, in one process",
    "delta": "Delta",
    "delta-cdf": "Delta, change feed",
    "iceberg": "Iceberg",
    "iceberg-cow": "Iceberg, copy on write",
    "hudi": "Hudi",
    "lumos": "Lumos",
    "plain": "plain Parquet",
}
OURS, OURS_LIGHT, PEER, LIMIT, INK = "#0b7a75", "#7fbdb9", "#8a8f98", "#d3d6db", "#2b2f36"
COLOURS = {"opal": OURS, "peer": PEER, "reference": LIMIT}
MARKERS = {
    "delta": "s",
    "delta-cdf": "s",
    "iceberg": "^",
    "iceberg-cow": "^",
    "hudi": "D",
    "lumos": "v",
    "plain": "",
}
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LIMIT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.dpi": 150,
}


def draw_charts(results: Results, results_file: Path) -> list[Path]:
    """Draw the charts that have figures, next to the results; return their paths."""
    charts: dict[str, Callable[[Results], Sheet | None]] = {
        "upserts": upserts,
        "growth": growth,
        "scans": scans,
        "bytes": written,
        "maintenance": maintenance,
    }
    drawn = []
    with mpl.rc_context(STYLE):
        for chart, draw in charts.items():
            sheet = draw(results)
            if sheet is not None:
                path = results_file.with_name(f"{results_file.stem}-{chart}.png")
                sheet.savefig(path, facecolor="white")
                drawn.append(path)
    return drawn


def upserts(results: Results) -> Sheet | None:
    """Draw a column for each size of batch, a row for each kind of keys.

    Seconds are on a log scale.
    """
    figures = list(results.select(measure="upsert"))
    keys = list(dict.fromkeys(figure.case.keys for figure in figures))
    batches = sorted({figure.case.batch for figure in figures})
    if not figures:
        return None
    sheet, grid = _grid(
        len(keys), len(batches), f"Time of an upsert into {figures[0].case.rows:,} rows"
    )
    most, least = max(figure.value for figure in figures), min(figure.value for figure in figures)
    for row, kind in enumerate(keys):
        for column, batch in enumerate(batches):
            axes = grid[row][column]
            values = {
                f.system: f.value for f in figures if (f.case.keys, f.case.batch) == (kind, batch)
            }
            _bars(axes, values, "{:.2g} s", names=column == 0)
            axes.set_xscale("log")
            axes.tick_params(which="both", bottom=False)
            axes.set_xlim(least / 3, most * 4)
            axes.set_title(f"{batch:,} rows ({share(batch, figures[0].case.rows)}), {kind} keys")
    _caption(
        sheet,
        "Seconds, log scale, medians; half of each batch updates, half inserts. Same machine, "
        "data and settings, in turns.",
    )
    return sheet


def growth(results: Results) -> Sheet | None:
    """Draw a line for each system, both axes log.

    Who pays for the table rises, who pays for the batch does not.
    """
    figures = list(results.select(measure="growth"))
    if not figures:
        return None
    sheet, grid = _grid(
        1,
        1,
        f"Time of an upsert of {max(f.case.batch for f in figures):,} rows, by the size of the "
        "table",
        height=4.6,
    )
    axes = grid[0][0]
    ends = []
    for system in _present({figure.system for figure in figures}):
        points = sorted(
            (figure.case.rows, figure.value) for figure in figures if figure.system == system
        )
        kind = SYSTEMS[system].kind
        width, marker = (2.6, "o") if kind == "opal" else (1.6, MARKERS[system])
        rows, seconds = zip(*points, strict=True)
        dashes = "--" if kind == "reference" else "-"
        axes.plot(
            rows, seconds, color=COLOURS[kind], linewidth=width, marker=marker, linestyle=dashes
        )
        ends.append((points[-1], system))
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted({figure.case.rows for figure in figures})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("rows in the table")
    axes.yaxis.set_major_formatter("{x:g} s")
    axes.set_xlim(sizes[0] * 0.85, sizes[-1] * (sizes[-1] / sizes[0]) ** 0.45 * 1.4)
    _end_labels(axes, ends)
    _caption(sheet, "Medians, both axes log. Same machine, data and settings, in turns.")
    return sheet


def scans(results: Results) -> Sheet | None:
    """Draw reads against the plain scan of all rows ever written."""
    figures = [
        figure for figure in results.select(measure="scan") if figure.case.view != UNFILTERED
    ]
    steps = sorted({figure.case.upserts for figure in figures})
    columns = list(dict.fromkeys(figure.case.columns for figure in figures))
    if not any(figure.system == "plain" for figure in figures):
        return None
    sheet, grid = _grid(
        len(columns),
        len(steps),
        f"Scan of a table of {figures[0].case.rows:,} rows / plain Parquet scan",
    )
    for row, shown in enumerate(columns):
        most = 0.0
        for column, upserted in enumerate(steps):
            values = {
                f.system: f.value
                for f in figures
                if (f.case.columns, f.case.upserts) == (shown, upserted)
            }
            limit = values.pop("plain", 0.0)
            ratios = {system: value / limit for system, value in values.items() if limit}
            most = max([most, *ratios.values()])
            _bars(grid[row][column], ratios, "{:.2f}x", names=column == 0)
            grid[row][column].axvline(1, color=INK, linewidth=0.8, linestyle=":")
            grid[row][column].set_title(f"{shown}, {_after(upserted)}")
        for axes in grid[row]:
            axes.set_xlim(0, most * 1.25)
    batch = max(figure.case.batch for figure in figures)
    _caption(
        sheet,
        f"Medians; 1 is the plain scan of everything that was appended. Upserts of {batch:,} "
        "rows, nothing compacted anywhere.",
    )
    return sheet


def _after(upserts: int) -> str:
    if upserts == 0:
        return "fresh"
    return "after 1 upsert" if upserts == 1 else f"after {upserts} upserts"


def written(results: Results) -> Sheet | None:
    """Draw the bytes written; the key store of Opal tables has a lighter tone."""
    figures = list(results.select(measure="bytes"))
    if not figures:
        return None
    case = figures[0].case
    sheet, grid = _grid(1, 1, "Bytes written for each byte upserted", height=3.8)
    axes = grid[0][0]
    values = {figure.system: figure.value for figure in figures}
    _bars(axes, values, "{:.2f}x", names=True)
    systems = _present(values)
    for figure in figures:
        key_store = figure.parts.get("_opal/key_store", 0.0)
        if key_store:
            axes.barh(
                systems.index(figure.system),
                key_store,
                left=figure.value - key_store,
                height=0.66,
                color=OURS_LIGHT,
            )
    axes.set_xlim(0, max(values.values()) * 1.15)
    axes.set_title(f"{case.upserts} upserts of {case.batch:,} rows into {case.rows:,}")
    _caption(
        sheet,
        "New bytes in the table's folder / bytes of the batches as plain Parquet. Light: the key "
        "store, with its merges.",
    )
    return sheet


def maintenance(results: Results) -> Sheet | None:
    """Draw what a compaction takes, and what range queries open of a table in Z-order."""
    panels: dict[str, dict[str, float]] = {}
    for figure in results.figures:
        case = figure.case
        if case.measure == "compaction":
            panels.setdefault(f"compaction of {case.columns}, s", {})[figure.system] = figure.value
        if case.measure == "clustering" and case.view == "bytes opened":
            panels.setdefault(f"range queries, {case.columns}: bytes opened", {})[figure.system] = (
                figure.value
            )
    if not panels:
        return None
    sheet, grid = _grid(
        1,
        len(panels),
        f"Maintenance of a table of {results.figures[-1].case.rows:,} rows",
        height=3.2,
    )
    for number, (title, values) in enumerate(panels.items()):
        _bars(
            grid[0][number],
            values,
            "{:.2g} s" if title.endswith(", s") else "{:.0f}%",
            names=number == 0,
        )
        grid[0][number].set_xlim(0, max(values.values()) * 1.2)
        grid[0][number].set_title(title)
    _caption(
        sheet,
        "Plain Parquet: read and written by Spark; in place of a Z-order sorted by the first "
        "column.",
    )
    return sheet


def _present(systems: Container[str]) -> list[str]:
    return [system for system in TITLES if system in systems]


def _grid(
    rows: int, columns: int, title: str, height: float | None = None
) -> tuple[Sheet, list[list[Axes]]]:
    room = ConstrainedLayoutEngine(
        rect=(0.01, 0.05, 0.98, 0.94), h_pad=0.12
    )  # below it the caption
    sheet = Sheet(figsize=(max(8.0, 3.6 * columns), height or 1.1 + 2.7 * rows), layout=room)
    sheet.suptitle(title, x=0.015, ha="left", fontsize=14, fontweight="bold")
    return sheet, sheet.subplots(rows, columns, squeeze=False).tolist()


def _bars(axes: Axes, values: dict[str, float], label: str, *, names: bool) -> None:
    systems = _present(values)
    colours = [COLOURS[SYSTEMS[system].kind] for system in systems]
    bars = axes.barh(
        range(len(systems)), [values[system] for system in systems], height=0.66, color=colours
    )
    axes.bar_label(
        bars, labels=[label.format(values[system]) for system in systems], padding=4, fontsize=9
    )
    axes.set_yticks(
        range(len(systems)),
        [TITLES[system] for system in systems] if names else [""] * len(systems),
    )
    axes.invert_yaxis()
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.spines["bottom"].set_visible(False)


def _end_labels(axes: Axes, ends: Sequence[tuple[tuple[int, float], str]]) -> None:
    """Names at the ends of lines, pushed apart where lines end close together."""
    low, high = axes.get_ylim()
    step = (high / low) ** 0.055
    at = 0.0
    for (rows, seconds), system in sorted(ends, key=lambda end: end[0][1]):
        at = max(seconds, at * step)
        bold = "bold" if SYSTEMS[system].kind == "opal" else "normal"
        colour = OURS if SYSTEMS[system].kind == "opal" else INK
        axes.annotate(
            f"{TITLES[system]}  {seconds:.2g} s",
            (rows * 1.12, at),
            va="center",
            color=colour,
            fontweight=bold,
            fontsize=9,
        )


def _caption(sheet: Sheet, text: str) -> None:
    sheet.text(0.015, 0.015, text, fontsize=8.5, color="#5c626b")
