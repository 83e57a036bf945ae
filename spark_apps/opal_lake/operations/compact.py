"""Compact: fewer, larger files; a major one also drops old history."""

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

    `mode="major"` also drops history: rows that no event time since `look_back` before now shows.
    `look_back` is a span, as "30d", or a number if the delta column is one. From then on it bounds
    the oldest readable event time. Partitions without rows younger than `archive_after` are
    compressed harder. With `only_if_due` nothing happens unless the properties `small_files` and
    `dead_share` ask for it.
    """

    name: ClassVar[str] = "compact"

    mode: CompactMode = "minor"
    look_back: Annotated[
        DeltaSpan | None,
        Help(
            "drop rows that no event time of this last span shows, as 30d; "
            "a number if the delta column is one"
        ),
    ] = None
    archive_after: Annotated[
        DeltaSpan | None,
        Help("compress partitions without rows younger than this harder, as 365d"),
    ] = None
    archive_codec: Annotated[
        Codec | None,
        Help("codec of these partitions, as zstd:19 (default: property archive_codec)"),
    ] = None
    only_if_due: Annotated[
        bool, Help("do nothing unless the properties small_files and dead_share ask for it")
    ] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError unless the mode fits: a minor one keeps all history."""
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
        steps = compact_if_due if self.only_if_due else Compaction.run
        return run_once(table.log, self.name, self.token, lambda: steps(job))
