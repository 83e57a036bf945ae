"""Mutate: merge mutations into a folder of files; this needs no table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from opal_lake.arguments.declared import declaration
from opal_lake.arguments.values import Columns, Help, Kind, OnBadRows, OnEmpty, one_of
from opal_lake.errors import InvalidInputError
from opal_lake.operations.verb import Job
from opal_lake.result import JobResult
from opal_lake.source import BY_POSITION, FOLDER_FORMATS

if TYPE_CHECKING:
    from opal_lake.engine.place import Place

ORDER_TYPES = ("numeric", "text", "timestamp")


def _backups(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInputError(f"{name} must be a whole number of at least 0, got {value!r}")
    return value


FolderFormat = Annotated[str, one_of(*FOLDER_FORMATS)]
OrderType = Annotated[str, one_of(*ORDER_TYPES)]
Backups = Annotated[int, Kind(_backups, "N", takes_number=True)]


@declaration
class Mutate(Job):
    """Merge files of inserts, updates and deletes into a folder of files, the master.

    A field is given by its name, or by its position, counted from 0. `order` is a field, or
    "file_suffix" (the number after the last `_` of a file's name), or "file_position". The latest
    mutation of a record wins; among equal ones the one that comes later in the files. `options` are
    those of Spark's CSV for the master. `increment_options` and `output_options` add to them for
    the increments and for the new master.
    """

    name: ClassVar[str] = "mutate"
    needs_table: ClassVar[bool] = False

    increments: Sequence[str]
    ids: Columns
    order: Annotated[
        str,
        Help("what decides which row is later: a field, file_suffix or file_position", "FIELD"),
    ] = BY_POSITION
    order_type: Annotated[OrderType, Help("how a text field is ordered")] = "numeric"
    op_field: Annotated[str | None, Help("the field with the operation of a row", "FIELD")] = None
    deleted_op: Annotated[str, Help("the operation of rows that delete their record", "TEXT")] = "D"
    delete_prefix: Annotated[
        str | None, Help("files whose names begin with this hold deletes: rows, or ids", "TEXT")
    ] = None
    partition_by: Annotated[
        Columns,
        Help("a field for folders of the new master; repeat for more (default: as the old one)"),
    ] = field(default_factory=list)
    fixed_partitions: Annotated[
        bool,
        Help("promise that no record changes its partition: read only those of the increments"),
    ] = False
    schema: Annotated[
        str | None,
        Help("the fields as in CREATE TABLE (default: from the files; CSV: all are text)", "SQL"),
    ] = None
    format: Annotated[FolderFormat | None, Help("format of the master (default: by the files)")] = (
        None
    )
    increment_format: Annotated[
        FolderFormat | None, Help("format of the increments (default: by the files)")
    ] = None
    output_format: Annotated[
        FolderFormat | None, Help("format of the new master (default: as the old one)")
    ] = None
    delimiter: Annotated[str, Help("the text between the fields of CSV", "TEXT")] = ","
    header: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    increment_options: Mapping[str, str] = field(default_factory=dict)
    output_options: Mapping[str, str] = field(default_factory=dict)
    on_bad_rows: OnBadRows = "fail"
    on_empty: OnEmpty = "fail"
    backups: Annotated[Backups, Help("how many older masters to keep", "N")] = 3
    dry_run: Annotated[bool, Help("change nothing; count what would change")] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """Raise InvalidInputError for empty `increments`, `ids` or `delete_prefix`."""
        for name, example in (("increments", "['incr/*.csv']"), ("ids", "['id']")):
            if given[name] is not None and not is_open(given[name]) and not given[name]:
                raise InvalidInputError(
                    f"mutate: {name} is empty; give a list, for example {name}={example}"
                )
        # Every file name begins with the empty text
        if given["delete_prefix"] == "":
            raise InvalidInputError(
                "delete_prefix='' would read every file as deletes; leave it out, or write 'del'"
            )

    def run(self, target: "Place") -> JobResult:  # type: ignore[override]  # a folder has no table
        """Let the engine merge; `opal_folder` decides which files are read and replaced."""
        return target.merge(self)
