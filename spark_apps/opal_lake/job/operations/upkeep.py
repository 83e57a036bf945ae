"""compact, zorder, retain, maintain: operations that tend a table's files and leave its rows as they are.

What a job does with its arguments stands in `opal_lake.upkeep`; for retention, in `opal_lake.retention`.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

from opal_lake.errors import InvalidInputError
from opal_lake.job.operations.declared import Declared, Operation, declaration
from opal_lake.job.operations.values import (
    ClusterColumns,
    Codec,
    Count,
    DeltaSpan,
    Help,
    MegaBytes,
    Percent,
    PolicyColumns,
    PolicySpan,
    Span,
    one_of,
)

CompactMode = Annotated[str, one_of("minor", "major")]
_TARGET = Help("size of the files (default: property target_mb)")
_GRACE = Help("how long jobs and readers may take (default: 1d); older jobs can commit no more")


@declaration
class Compact(Operation):
    """Fewer, larger files; by mode="major" also without what no event time after the look-back shows."""

    name: ClassVar[str] = "compact"

    mode: CompactMode = "minor"
    look_back: Annotated[
        DeltaSpan | None,
        Help("drop rows that no event time since then shows, as 30d; a number if the delta is one"),
    ] = None
    target_mb: Annotated[MegaBytes | None, _TARGET] = None
    archive_after: Annotated[
        DeltaSpan | None, Help("compress partitions without younger rows harder; as --look-back")
    ] = None
    archive_codec: Annotated[
        Codec | None, Help("how, as zstd:19 (default: property archive_codec)")
    ] = None
    only_if_due: Annotated[
        bool, Help("do nothing while the properties small_files and dead_share allow it")
    ] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """A major compaction drops history up to the look-back, a minor one keeps all; a codec is for partitions of some age."""
        mode, look_back = given["mode"], given["look_back"]
        if mode == "minor" and look_back is not None:
            raise InvalidInputError(
                f"look_back={look_back!r} has no effect on a minor compaction, which keeps all history; add mode='major'"
            )
        if mode == "major" and look_back is None:
            raise InvalidInputError(
                "mode='major' drops history and needs look_back, which says how much to keep; add look_back='90d'"
            )
        codec = given["archive_codec"]
        if codec is not None and given["archive_after"] is None:
            raise InvalidInputError(
                f"archive_codec={codec!r} has no effect without archive_after; add archive_after='365d'"
            )


@declaration
class ZOrder(Operation):
    """Rows close in all these columns into the same files."""

    name: ClassVar[str] = "zorder"

    columns: ClusterColumns
    target_mb: Annotated[MegaBytes | None, _TARGET] = None
    whole: Annotated[
        bool,
        Help(
            "sort everything again, also what is in this order already (default: only what is new)"
        ),
    ] = False
    only_if_due: Annotated[bool, Help("only when enough is new: property unclustered_share")] = (
        False
    )


@declaration
class Retain(Operation):
    """Let old versions expire, and delete what nothing needs any more."""

    name: ClassVar[str] = "retain"

    window: Annotated[
        Span | None,
        Help("how long versions stay readable, as 30d or 12h (default: the table's property)"),
    ] = None
    grace: Annotated[Span | None, _GRACE] = None
    dry_run: Annotated[bool, Help("change nothing, and list what would go")] = False


@declaration
class UpkeepPolicy(Declared):
    """When a table is due for what; what is not given, the table's properties of these names say.

    `grace` is no property: it is how long jobs and readers may take.
    """

    name: ClassVar[str] = "maintain"

    zorder: PolicyColumns | None = None
    window: Span | None = None
    grace: Annotated[Span | None, _GRACE] = None
    look_back: PolicySpan | None = None
    target_mb: MegaBytes | None = None
    small_files: Count | None = None
    dead_share: Percent | None = None
    unclustered_share: Percent | None = None
    archive_after: PolicySpan | None = None
    archive_codec: Codec | None = None

    @classmethod
    def plain(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Columns may be a text, as the property has them: `a,b`."""
        if isinstance(columns := arguments.get("zorder"), str):
            return {
                **arguments,
                "zorder": [name.strip() for name in columns.split(",") if name.strip()],
            }
        return arguments


@declaration
class Maintain(UpkeepPolicy, Operation):
    """Compaction, Z-order and retention, as far as they are due; without `delete` no retention."""

    delete: bool = True
    dry_run: Annotated[bool, Help("only say what is due, and why")] = False


OPERATIONS = (Compact, ZOrder, Retain, Maintain)
