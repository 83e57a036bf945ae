"""Compact: merge small files; a major compaction also drops old history."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import Declared, declaration
from opal_lake.arguments.values import TARGET_MB, Codec, DeltaSpan, Help, MegaBytes, one_of
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult

if TYPE_CHECKING:
    from opal_lake.engine.open_table import OpenTable

CompactMode = Annotated[str, one_of("minor", "major")]


@declaration
class Compacting(Declared):
    """The arguments of a compaction, on its own or as a step of a maintenance."""

    target_mb: Annotated[MegaBytes | None, TARGET_MB] = None


@declaration
class Compact(Compacting, Job):
    """Merge small files into larger ones.

    Every version and event time reads as before, and upserts may run meanwhile.

    `mode="major"` also drops history: rows that are visible at no event time within `look_back`
    before now. `look_back` is a span such as "30d", or a number if the delta column is a number.
    Earlier event times can no longer be read. Partitions without rows younger than `archive_after`
    are compressed harder. With `only_if_due` nothing happens unless a compaction is due by the
    properties `small_files` and `dead_share`.
    """

    name: ClassVar[str] = "compact"

    mode: CompactMode = "minor"
    look_back: Annotated[
        DeltaSpan | None,
        Help(
            "drop rows that are visible at no event time of this last span, such as 30d; "
            "a number if the delta column is a number"
        ),
    ] = None
    archive_after: Annotated[
        DeltaSpan | None,
        Help("compress harder the partitions without rows younger than this, such as 365d"),
    ] = None
    archive_codec: Annotated[
        Codec | None,
        Help("codec of these partitions, such as zstd:19 (default: property archive_codec)"),
    ] = None
    only_if_due: Annotated[
        bool, Help("do nothing unless it is due by the properties small_files and dead_share")
    ] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for a look-back or a codec that has no effect."""
        mode, look_back = given["mode"], given["look_back"]
        if mode == "minor" and look_back is not None:
            raise InvalidInputError(
                f"look_back={look_back!r} has no effect on a minor compaction, "
                "which keeps all history; add mode='major'"
            )
        if mode == "major" and look_back is None:
            raise InvalidInputError(
                "mode='major' drops history and needs look_back, the span that stays readable; "
                "add look_back='90d'"
            )
        codec = given["archive_codec"]
        if codec is not None and given["archive_after"] is None:
            raise InvalidInputError(
                f"archive_codec={codec!r} has no effect without archive_after; "
                "add archive_after='365d'"
            )

    def run(self, table: "OpenTable") -> JobResult:
        """Compact; do nothing if it is not due and `only_if_due` is given."""
        from opal_lake.engine.results import run_once
        from opal_lake.maintenance.compaction import Compaction
        from opal_lake.maintenance.due import compact_if_due

        job = Compaction(table=table, asked=self)

        def run() -> JobResult:
            if self.only_if_due:
                return compact_if_due(job)
            return job.run()

        return run_once(table.log, self.name, self.token, run)
