"""Ratios of seconds and bytes: the only figures that mean something on another machine."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from tests.bench.peers.catalog import SYSTEMS, names_of
from tests.bench.peers.figures import GROWING, UNFILTERED, Case, Figure

PLAIN = "plain"
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """`over` and `under` are what was divided; `who` is the peer that was the fastest."""

    case: str
    over: str
    under: str
    value: float
    who: str = ""

    @property
    def name(self) -> str:
        return f"{self.case}: {self.over} / {self.under}"


def all_ratios(figures: Iterable[Figure]) -> list[Ratio]:
    by_case: dict[Case, dict[str, float]] = {}
    for figure in figures:
        by_case.setdefault(figure.case, {})[figure.system] = figure.value
    return [
        ratio for case, values in by_case.items() for ratio in _case_ratios(case, values, by_case)
    ]


def _case_ratios(case: Case, values: Values, by_case: Mapping[Case, Values]) -> Iterator[Ratio]:
    if case.view == UNFILTERED:
        return
    yield from _peer_ratios(case, values)
    if case.measure != "bytes":  # they are ratios already
        yield from _plain_ratios(case, values)
    if case.measure == "scan" and case.upserts:
        yield from _own_scan_ratios(case, values, by_case)
    if case.measure in GROWING:
        yield from _growth_ratios(case, values, by_case)


def _peer_ratios(case: Case, values: Values) -> Iterator[Ratio]:
    peers = {name: values[name] for name in names_of("peer") if name in values}
    if not peers:
        return
    best = min(peers, key=lambda name: peers[name])
    word = {"bytes": "thriftiest", "memory": "leanest"}.get(
        case.measure, "most selective" if case.view.endswith("opened") else "fastest"
    )
    for name in names_of("opal"):
        if values.get(name):
            yield Ratio(
                case=case.label,
                over=f"{word} peer",
                under=name,
                value=peers[best] / values[name],
                who=best,
            )


def _plain_ratios(case: Case, values: Values) -> Iterator[Ratio]:
    for name, value in values.items():
        if name != PLAIN and values.get(PLAIN):
            yield Ratio(case=case.label, over=name, under=PLAIN, value=value / values[PLAIN])


def _own_scan_ratios(case: Case, values: Values, by_case: Mapping[Case, Values]) -> Iterator[Ratio]:
    """Compare a read of an Opal table with the unfiltered scan of its files.

    Other formats have no such scan: they are compared with their fresh table.
    """
    unfiltered = by_case.get(replace(case, view=UNFILTERED), {})
    fresh = by_case.get(replace(case, upserts=0, batch=0), {})
    for name, value in values.items():
        if unfiltered.get(name):
            yield Ratio(
                case=case.label,
                over=name,
                under="its unfiltered scan",
                value=value / unfiltered[name],
            )
        elif name != PLAIN and SYSTEMS[name].kind != "opal" and fresh.get(name):
            yield Ratio(
                case=case.label, over=name, under="its fresh table", value=value / fresh[name]
            )


def _growth_ratios(case: Case, values: Values, by_case: Mapping[Case, Values]) -> Iterator[Ratio]:
    smallest = min(
        (o for o in by_case if (o.measure, o.view) == (case.measure, case.view)),
        key=lambda other: other.rows,
    )
    if smallest != case:
        for name, value in values.items():
            if by_case[smallest].get(name):
                yield Ratio(
                    case=case.label,
                    over=name,
                    under=f"itself at {smallest.rows:,}",
                    value=value / by_case[smallest][name],
                )


def as_rows(ratios: Iterable[Ratio]) -> list[dict[str, object]]:
    return [
        asdict(ratio) | {"name": ratio.name, "value": round(ratio.value, 3)} for ratio in ratios
    ]


def ratio_table(ratios: Iterable[Ratio]) -> str:
    lines, case = [], None
    for ratio in ratios:
        if ratio.case != case:
            case = ratio.case
            lines.append(f"\n{case}")
        who = f"  ({ratio.who})" if ratio.who else ""
        lines.append(f"    {f'{ratio.over} / {ratio.under}':<56} {ratio.value:9.2f}x{who}")
    return "\n".join(lines)
