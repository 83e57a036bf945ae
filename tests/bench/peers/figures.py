"""Figures, and the file that has them from the moment they are known."""

import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

UNFILTERED = "unfiltered"
GROWING = ("growth", "merge-growth")  # measures of tables of several sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The case of a figure; what plays no role in a measure is left at its default."""

    measure: str  # of options.MEASURES, or memory
    rows: int  # the table began with
    keys: str = "uniform"
    batch: int = 0  # rows of an upsert
    upserts: int = 0  # that the table got before
    columns: str = ""
    view: str = (
        ""  # `unfiltered`, of which measure a memory is, or what was counted of a clustering
    )

    @property
    def label(self) -> str:
        parts = [
            self.measure,
            share(self.batch, self.rows),
            self.keys if self.measure == "upsert" or self.keys != "uniform" else "",
        ]
        parts += [
            f"of {self.rows:,}" if self.measure in GROWING else "",
            f"after {self.upserts}" if self.measure == "scan" else "",
        ]
        return " ".join(filter(None, (*parts, self.columns, self.view)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One system's values in one case, a value a round.

    `parts` are medians, or sums of bytes.
    """

    case: Case
    system: str
    unit: str  # s, x, % or MB
    values: Sequence[float]
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return statistics.median(self.values)


def share(count: int, rows: int) -> str:
    """1,000 of 100,000 -> 1%."""
    return f"{count / rows * 100:.4g}%" if count else ""


@dataclass(kw_only=True)
class Results:
    """All figures of a run.

    Every change is in the file at once, so that a run that is stopped keeps its figures.
    """

    path: Path
    about: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    ratios: list[dict[str, Any]] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        """Add a figure; its rounds join those of a figure of the same case and system."""
        for old in [
            old for old in self.figures if (old.case, old.system) == (figure.case, figure.system)
        ]:
            self.figures.remove(old)
            figure = replace(figure, values=[*old.values, *figure.values])
        self.figures.append(figure)
        spread = (
            f"({min(figure.values):.2f} to {max(figure.values):.2f})"
            if len(figure.values) > 1
            else ""
        )
        parts = "  ".join(f"{name} {value:.2f}" for name, value in figure.parts.items())
        line = (
            f"{figure.case.label:<44} {figure.system:<20} {figure.value:10.2f} {figure.unit:<2} "
            f"{spread}  {parts}"
        )
        print(line.rstrip(), flush=True)
        self.save()

    def select(self, **wanted: Any) -> Iterator[Figure]:
        """Yield the figures whose case has these values."""
        for figure in self.figures:
            if all(getattr(figure.case, name) == value for name, value in wanted.items()):
                yield figure

    def save(self) -> None:
        content = {
            "about": self.about,
            "checks": self.checks,
            "ratios": self.ratios,
            "figures": [asdict(figure) | {"value": figure.value} for figure in self.figures],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self.path)


def load_results(path: Path) -> Results:
    content = json.loads(path.read_text(encoding="utf-8"))
    results = Results(
        path=path, about=content["about"], checks=content["checks"], ratios=content["ratios"]
    )
    for stored in content["figures"]:
        stored.pop("value")
        results.figures.append(Figure(**stored | {"case": Case(**stored["case"])}))
    return results
