"""Operations on the rows that a table has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

from opal_lake.errors import InvalidInputError
from opal_lake.job.operations.declared import Operation, declaration
from opal_lake.job.operations.values import (
    CHANGE_AXES,
    CHANGE_MODES,
    CONSUMER_ROWS,
    Bound,
    Function,
    Help,
    one_of,
)

Consumed = Annotated[str, one_of(*CONSUMER_ROWS)]
ChangeMode = Annotated[str, one_of(*CHANGE_MODES)]
ChangeAxis = Annotated[str, one_of(*CHANGE_AXES)]
ExportFormat = Annotated[str, one_of("parquet", "csv", "json", "orc")]


@declaration
class MetaGen(Operation):
    """Make pending rows visible: those of a partition key, of some ingests, or all; else those that were ingested without a key."""

    name: ClassVar[str] = "metagen"

    partition_key: Annotated[
        str | None, Help("only what was ingested under this partition key", "KEY")
    ] = None
    tokens: Annotated[
        Sequence[str] | None,
        Help("only what the ingest with this token brought; repeat for more", "TOKEN"),
    ] = None
    all: Annotated[bool, Help("everything, whatever partition keys it was ingested under")] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """At most one of the three."""
        named = [name for name in ("partition_key", "tokens") if given[name] is not None]
        named += ["all"] if given["all"] is True else []
        if len(named) > 1:
            raise InvalidInputError(
                f"metagen takes one of partition_key, tokens and all; given are {', '.join(named)}"
            )
        if given["tokens"] in ([], ()):
            raise InvalidInputError(
                "metagen: tokens is empty; name at least one, or leave it out for what was "
                "ingested without a partition key"
            )


@declaration
class Discard(Operation):
    """Withdraw pending rows: those of a partition key, or of the ingest with a token."""

    name: ClassVar[str] = "discard"

    partition_key: Annotated[str | None, Help("what is pending of this partition key", "KEY")] = (
        None
    )
    token: Annotated[str | None, Help("what is pending of the ingest with this token", "TOKEN")] = (
        None
    )

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Exactly one."""
        if (given["partition_key"] is None) == (given["token"] is None):
            raise InvalidInputError(
                "discard needs one of partition_key and token: which pending rows to withdraw"
            )


@declaration
class Shown(Operation):
    """What is done with rows that were read: they are shown in the result's examples, or exported."""

    columns: Sequence[str] | None = None
    where: Annotated[str | None, Help("a condition on rows", "CONDITION")] = None
    limit: Annotated[int | None, Help("most rows (default: 20 shown, all exported)")] = None
    to: Annotated[
        str | None, Help("write the rows to this folder instead of showing them", "PATH")
    ] = None
    format: Annotated[ExportFormat, Help("of the exported files")] = "parquet"
    overwrite: Annotated[bool, Help("replace what is in the folder")] = False
    writer_options: Mapping[str, str] | None = None


@declaration
class Read(Shown):
    """Rows as they are, or were."""

    name: ClassVar[str] = "read"

    version: Annotated[int | None, Help("what was committed up to this version")] = None
    timestamp: Annotated[
        str | None, Help("what was committed up to this time, as 2026-01-31T12:00:00+00:00", "TIME")
    ] = None
    business_snapshot: Annotated[
        str | None, Help("as of its end, or of now if it is open, as 2022-07-15", "NAME")
    ] = None
    event_time: Annotated[
        str | int | None,
        Help("what was valid at the source, by the delta column; late rows included", "VALUE"),
    ] = None
    partition_key: Annotated[
        str | None, Help("what was ingested under this key, by a run of a pipeline", "KEY")
    ] = None
    net: Annotated[
        bool, Help("also rows of this key that rows of other keys have replaced or deleted")
    ] = False


@declaration
class Changes(Shown):
    """What versions changed: rows with what happened to them."""

    name: ClassVar[str] = "changes"

    start: Annotated[
        Bound,
        Help(
            "the first version, or a commit time; latest: the next one; a savepoint: what came after it",
            "BOUND",
        ),
    ]
    end: Annotated[
        Bound | None,
        Help("the last version; or a commit time, or a savepoint (default: the newest)", "BOUND"),
    ] = None
    mode: Annotated[ChangeMode, Help("netChanges leaves out what later versions undid")] = "none"
    compute_updates: bool = True
    axis: Annotated[
        ChangeAxis,
        Help("event_time: changes of the history, the past included, instead of the current view"),
    ] = "commit"


@declaration
class Consume(Operation):
    """Call a function with what came under a partition key, or after a version."""

    name: ClassVar[str] = "consume"

    function: Function
    partition_key: str | None = None
    after: int | None = None
    version: int | None = None
    rows: Consumed = "visible"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Rows are new by one of the two; what changed is told from version to version."""
        if (given["partition_key"] is None) == (given["after"] is None):
            raise InvalidInputError(
                "consume needs one of: partition_key='2026-11-01', or after=7, the last version that was seen"
            )
        if given["rows"] == "changes" and given["partition_key"] is not None:
            raise InvalidInputError(
                "rows='changes' needs versions: give after=7 instead of partition_key"
            )


@declaration
class Check(Operation):
    """What is wrong with the table, as examples; notes say what was not looked at."""

    name: ClassVar[str] = "check"

    sample: Annotated[
        str | None,
        Help(
            "check all metadata, but the rows of some keys only: 1%, or about so many rows, as 100000; each version selects other keys",
            "SHARE",
        ),
    ] = None
    quick: Annotated[bool, Help("metadata only: read no data file")] = False
    all: Annotated[
        bool, Help("check the files of savepoints and of all readable versions, too, each once")
    ] = False


@declaration
class RebuildKeyStore(Operation):
    """Make the key store anew from the data files."""

    name: ClassVar[str] = "rebuild_key_store"


OPERATIONS = (MetaGen, Discard, Read, Changes, Consume, Check, RebuildKeyStore)
