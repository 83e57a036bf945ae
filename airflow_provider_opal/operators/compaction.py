"""CompactionOperator: fewer and larger files."""

from typing import Any

from airflow_provider_opal.operators.upkeep import Span, UpkeepOperator, at_least, delta_span

MODES = ("minor", "major")


class CompactionOperator(UpkeepOperator):
    """Merges small files into files of about `target_mb` (by default the table's property). All that can be read stays readable, and no
    row id changes.

    `mode="major"` also drops rows that no moment of the last `look_back` shows, and raises the table's floor to its begin: event times
    before it can no longer be read. `look_back` is a duration ("30d"); a number, where the delta column holds numbers.

    With `only_if_due` the table's thresholds (`small_files`, `dead_share`) decide whether it is worth it, and the result says why, or that
    it is not due.
    """

    operation = "compact"

    def __init__(
        self,
        *,
        table: str,
        mode: str = "minor",
        look_back: Span | int | None = None,
        target_mb: int | None = None,
        only_if_due: bool = True,
        **kwargs: Any,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode={mode!r} is unknown; use one of {', '.join(MODES)}")
        if look_back is not None and mode != "major":
            raise ValueError(f"look_back={look_back!r} says what history goes, and a minor compaction keeps all; add mode='major'")
        if look_back is None and mode == "major":
            raise ValueError("mode='major' drops history, and nothing says how much stays; add look_back='90d'")
        kept = {} if look_back is None else {"look_back": delta_span("look_back", look_back)}
        what = {"mode": mode, **kept, "target_mb": at_least("target_mb", target_mb), "only_if_due": only_if_due}
        super().__init__(table=table, arguments=what, **kwargs)
