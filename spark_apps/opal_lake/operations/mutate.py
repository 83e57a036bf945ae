"""The operation on a folder of files, which needs no table."""

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
        raise InvalidInputError(f"{name}={value!r}; write a whole number of at least 0")
    return value


FolderFormat = Annotated[str, one_of(*FOLDER_FORMATS)]
OrderType = Annotated[str, one_of(*ORDER_TYPES)]
Backups = Annotated[int, Kind(_backups, "N", takes_number=True)]


@declaration
class Mutate(Job):
    """Merge files of inserts, updates and deletes into a folder of files, the master.

    Fields are named, or given by their ordinals from 0. `order` is a field, or one of
    "file_suffix" (the number after the last `_` of a file's name) and "file_position"; the latest
    mutation of a record wins, of equal ones the one that comes later in the files. `options` are
    those of Spark's CSV for the master, `increment_options` and `output_options` what is different
    there.
    """

    name: ClassVar[str] = "mutate"
    needs_table: ClassVar[bool] = False

    increments: Sequence[str]
    ids: Columns
    order: Annotated[
        str, Help("what is later: a field, or file_suffix, or file_position", "FIELD")
    ] = BY_POSITION
    order_type: Annotated[OrderType, Help("of a field of text")] = "numeric"
    op_field: Annotated[str | None, Help("the field with the operation of a row", "FIELD")] = None
    deleted_op: Annotated[str, Help("what it holds in rows that delete their record", "TEXT")] = "D"
    delete_prefix: Annotated[
        str | None, Help("files whose names begin so hold deletes: rows, or ids alone", "TEXT")
    ] = None
    partition_by: Annotated[
        Columns,
        Help("folders of the new master; repeat for more (default: as those of the old one)"),
    ] = field(default_factory=list)
    fixed_partitions: Annotated[
        bool, Help("no record moves: look only into the partitions that increments name")
    ] = False
    schema: Annotated[
        str | None,
        Help("the fields as in CREATE TABLE (default: as found; of CSV all are text)", "SQL"),
    ] = None
    format: Annotated[FolderFormat | None, Help("of the master (default: by the files)")] = None
    increment_format: Annotated[
        FolderFormat | None, Help("of the increments (default: by the files)")
    ] = None
    output_format: Annotated[
        FolderFormat | None, Help("of the new master (default: as the old one)")
    ] = None
    delimiter: Annotated[str, Help("between the fields of CSV", "TEXT")] = ","
    header: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    increment_options: Mapping[str, str] = field(default_factory=dict)
    output_options: Mapping[str, str] = field(default_factory=dict)
    on_bad_rows: OnBadRows = "fail"
    on_empty: OnEmpty = "fail"
    backups: Annotated[Backups, Help("how many older masters to keep", "N")] = 3
    dry_run: Annotated[bool, Help("change nothing, and count what would")] = False

    @classmethod
    def check_together(cls, given: Mapping[str, Any], is_open: Callable[[Any], bool]) -> None:
        """There is something to read, and a record has an id."""
        for name, example in (("increments", "['incr/*.csv']"), ("ids", "['id']")):
            if given[name] is not None and not is_open(given[name]) and not given[name]:
                raise InvalidInputError(
                    f"mutate: {name} is empty; give a list, as {name}={example}"
                )
        if given["delete_prefix"] == "":
            raise InvalidInputError(
                "delete_prefix='' would make a delete of every file; leave it out, or write 'del'"
            )

    def run(self, place: "Place") -> JobResult:  # type: ignore[override]  # a folder is no table
        """Let the engine merge: its package `opal_folder` decides what is taken and swapped."""
        return place.merge(self)
