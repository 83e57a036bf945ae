"""CompactionOperator: fewer and larger files."""

from typing import Any

from airflow_provider_opal.operators.upkeep import Span, UpkeepOperator, at_least, delta_span

MODES = ("minor", "major")


class CompactionOperator(UpkeepOperator):
    """Merges small files into files of about `target_mb`. All that can be read stays readable, and no row id changes.

    `mode="major"` also drops rows that no moment of the last `look_back` shows, and raises the table's floor to its begin: event times
    before it can no longer be read. `look_back` is a duration ("30d"); a number, where the delta column holds numbers.

    With `only_if_due` it does nothing while there is too little to gain, and says so.
    """

    operation = "compact"

    def __init__(
        self,
        *,
        table: str,
        mode: str = "minor",
        look_back: Span | int | None = None,
        target_mb: int | None = 256,
        only_if_due: bool = True,
        **kwargs: Any,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode={mode!r} is unknown; use one of {', '.join(MODES)}")
        if look_back is not None and mode != "major":
            raise ValueError(f"look_back={look_back!r} says what history goes, and a minor compaction keeps all; add mode='major'")
        arguments = {
            "mode": mode,
            "look_back": delta_span("look_back", look_back),
            "target_mb": at_least("target_mb", target_mb),
            "only_if_due": only_if_due,
        }
        super().__init__(table=table, arguments=arguments, **kwargs)
