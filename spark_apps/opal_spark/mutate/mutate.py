"""One mutation of a folder with Spark: what is read, decided and written."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from opal_folder.mutation import Merged, Work, open_place, run_mutation
from opal_folder.place import MasterFile, MasterForm
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.operations.mutate import Mutate
from opal_lake.result import JobResult
from opal_lake.storage.spark_path import hadoop_uri
from opal_spark.engine.columns import quoted
from opal_spark.engine.failures import observed_count, spark_errors
from opal_spark.engine.session import (
    bring_avro,
    java_charsets,
    parallelism,
    shuffles_of,
    standard_times,
    storage_options,
)
from opal_spark.mutate import decisions as rules_of
from opal_spark.mutate.bad_rows import put_aside, refuse, refuse_unclosed
from opal_spark.mutate.csv_text import (
    JSON_WRITE,
    cell_text,
    contradictions,
    increment_options,
    needs_java_charsets,
    own_options,
    typed_cells,
    write_options,
    written_options,
)
from opal_spark.mutate.decisions import Rules
from opal_spark.mutate.groups import Form, Readable, forms_of, increment_format, readable_increments
from opal_spark.mutate.master import (
    MasterFiles,
    format_named,
    found_schema,
    known_schema,
    naming_file,
    read_files,
)
from opal_spark.mutate.parquet_files import refuse_unsigned
from opal_spark.mutate.record import (
    Record,
    lost_fields,
    record_of,
    refuse_unmet_op,
    schema_given,
)
from opal_spark.mutate.rows import BAD, DELETED, FILE, HAS_OP, HEADER, ROW, keys, read_increments
from opal_spark.mutate.sound import (
    check_fields,
    check_text,
    checked_rows,
    exact_rows,
    files_named,
    refuse_repeated_keys,
    writable_rows,
)
from opal_spark.sources.text.csv_lines import is_true, line_number
from opal_spark.sources.text.csv_quotes import UNCLOSED

_BROADCAST_ROWS = (
    2_000_000  # ids of so many mutations are sent to every executor instead of shuffling the master
)
_NEW_FILE_ROWS = 1_000_000
_IN_MEMORY_BYTES = 32 << 20
_CELLS = "_opal_cells"


def mutate(spark: SparkSession, master: str, job: Mutate) -> JobResult:
    """Merge increments into a folder of files. The same token twice merges once."""
    options = storage_options(spark, master) or next(
        filter(None, (storage_options(spark, path) for path in job.increments)), {}
    )
    place = open_place(master, options)
    with spark_errors():
        return run_mutation(place, job, _Merge(spark=spark, job=job, options=options), options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """A merge as `run_mutation` calls it."""

    spark: SparkSession
    job: Mutate
    options: Mapping[str, str]

    def __call__(self, work: Work) -> Merged:
        size = sum(file.size for file in work.master) + sum(file.size for file in work.increments)
        with (
            shuffles_of(self.spark, size),
            java_charsets(self.spark, needed=needs_java_charsets(self.job)),
        ):
            return self._merged(work)

    def _merged(self, work: Work) -> Merged:
        master = self._master(work)
        with files_named(work, master, increment_options(self.job)):
            return self._merged_into(master, work)

    def _merged_into(self, master: MasterFiles, work: Work) -> Merged:
        if "avro" in (master.format, self.job.output_format, increment_format(self.job, work)):
            bring_avro(self.spark)
        record, files = self._record(work, master), readable_increments(work)
        check_fields(
            self.job.output_format or master.format,
            [field for field in record.fields if field.name not in record.partition_by],
        )
        csv = increment_options(self.job)
        forms = forms_of(files, self.job, record, increment_format(self.job, work), csv)
        if not forms:
            return Merged(
                counts={"files": len(files)}, is_changed=False, files=_report(files, {}, {}, {})
            )
        rows = read_increments(self.spark, forms, self.job, record, csv)
        with _kept(rows, work) as kept_rows:
            stats = {row[FILE]: row.asDict() for row in _stats(kept_rows).collect()}
            _check_headers(forms, stats, csv)
            rejected = sum(row["rejected"] for row in stats.values())
            if unclosed := sum(row["unclosed"] for row in stats.values()):
                refuse_unclosed(kept_rows, unclosed, files, csv)
            if rejected and self.job.on_bad_rows == "fail":
                refuse(kept_rows, rejected, files, csv)
            have_op = sum(row["have_op"] for row in stats.values())
            if not have_op and any(row["rows"] for row in stats.values()):
                refuse_unmet_op(record)
            notes, bad_files = (
                [],
                [file for file in files if stats.get(file.number, {}).get("rejected")],
            )
            if rejected and work.target is not None:
                notes.append(
                    f"{count_text(rejected, 'bad row')} lie in {put_aside(kept_rows, work, bad_files, csv)}"
                )
            merging = _Merging(
                merge=self, work=work, master=master, record=record, files=files, stats=stats
            )
            merged = merging.run(kept_rows.where(F.col(BAD).isNull() & ~F.col(HEADER)))
            return replace(merged, notes=[*notes, *merged.notes])

    def _master(self, work: Work) -> MasterFiles:
        names = [file.path for file in work.master]
        if work.form is not None:
            self._check_against_record(work.form)
            kind = work.form.format
        elif names:
            kind = format_named(names, self.job.format, "files of the master")
        else:
            kind = self.job.format or self.job.output_format or increment_format(self.job, work)
        return MasterFiles(
            files=work.master, format=kind, options=self.options, csv=own_options(self.job)
        )

    def _check_against_record(self, form: MasterForm) -> None:
        """Raise InvalidInputError if the job would read the master otherwise than it was written.

        With another delimiter, or a first row that is taken for a header, values would be lost.
        """
        if self.job.format not in (None, form.format):
            raise InvalidInputError(
                f"the last run wrote the master as {form.format}, and format={self.job.format!r} "
                "says otherwise; leave format= out (a new format is output_format=)"
            )
        if form.format != "csv":
            return
        own = own_options(self.job)
        wrong = contradictions(own, form.options) or contradictions(form.options, own)
        for name in wrong:
            recorded = form.options.get(name)
            was = "the default" if recorded is None else repr(recorded)
            now = repr(own[name]) if name in own else "the default"
            raise InvalidInputError(
                f"the last run wrote the master with {name}={was}, and this one would read it with "
                f"{now}; {_remedy(name, recorded)}"
            )

    def _record(self, work: Work, master: MasterFiles) -> Record:
        given = schema_given(self.spark, self.job.schema)
        if given is not None and work.master and master.format not in ("csv", "json"):
            self._refuse_lost_fields(master, given)
        fields = given or self._known_schema(work, master)
        if not fields.names:
            raise InvalidInputError(
                "neither the master nor the increments have a line that says what fields there are: give schema="
            )
        parts = master.partition_by
        has_names = (
            self.job.schema is not None
            or work.form is not None
            or master.format != "csv"
            or is_true(master.csv, "header")
        )
        if (parts or self.job.partition_by) and not has_names:
            raise InvalidInputError(
                "a partitioned master of CSV without headers needs its fields' names, because its files lack those of the folders: "
                "give schema='id STRING, country STRING, ...'"
            )
        is_csv = (self.job.output_format or master.format) == "csv"
        by_line = is_csv and not is_true(master.csv, "multiline")
        encoding = write_options(self.job).get("encoding", "UTF-8") if is_csv else "UTF-8"
        try:
            return replace(record_of(self.job, fields, parts), by_line=by_line, encoding=encoding)
        except InvalidInputError as error:
            if (
                given is not None
                or master.format != "csv"
                or (naming := naming_file(master)) is None
            ):
                raise
            raise InvalidInputError(
                f"{error}. They are those of {naming[0]}, line 1: correct the file, or the delimiter"
            ) from error

    def _known_schema(self, work: Work, master: MasterFiles) -> StructType:
        if not work.master and work.form is None:
            return self._new_schema(work)
        try:
            return known_schema(self.spark, master, work.form)
        except InvalidInputError:
            refuse_repeated_keys(self.spark, master)  # which says the line, if there is one
            raise

    def _refuse_lost_fields(self, master: MasterFiles, given: StructType) -> None:
        """Raise InvalidInputError if the new master would lack fields that the old one has.

        Rows of CSV and JSON with such fields are refused one by one.
        """
        lost = lost_fields(found_schema(self.spark, master), given)
        if lost:
            raise InvalidInputError(
                f"the master has fields that schema= (--schema) lacks: {', '.join(lost)}. Add them, "
                "or leave schema= out. Nothing was changed"
            )

    def _new_schema(self, work: Work) -> StructType:
        """Of a master that is not there yet: that of the first increments that are no deletes."""
        upserts = [
            file
            for file in readable_increments(work)
            if not file.increment.is_deletes(self.job.delete_prefix)
        ]
        files = [
            MasterFile(root=file.storage.uri, path=file.path, size=file.increment.size)
            for file in upserts
            if file.increment.size
        ]
        if not files:
            raise InvalidInputError(
                "there is no master, and no increment with rows that would make one; give schema= or correct the path"
            )
        kind = increment_format(self.job, work)
        csv = increment_options(self.job)
        found = found_schema(
            self.spark, MasterFiles(files=files, format=kind, options=self.options, csv=csv)
        )
        folders = [
            name
            for name in upserts[0].increment.folders
            if name in self.job.partition_by and name not in found.names
        ]
        return StructType([*found.fields, *(StructField(name, StringType()) for name in folders)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merging:
    """A merge whose increments are known to be good."""

    merge: _Merge
    work: Work
    master: MasterFiles
    record: Record
    files: Sequence[Readable]
    stats: Mapping[int, Mapping[str, int]]

    def run(self, mutations: DataFrame) -> Merged:
        rules = Rules.of(self.merge.job, self.record, self.work.suffix)
        wins = rules_of.winners(mutations, rules)
        looked_at = self._looked_at(mutations)
        with (
            _kept(wins, self.work) as kept_wins,
            _kept(self._decided(kept_wins, looked_at, rules), self.work) as decisions,
        ):
            actions = [row.asDict() for row in rules_of.actions_by_file(decisions, rules).collect()]
            have_late = any(
                row[rules_of.HAVE_LATE] for row in actions
            )  # else nothing is worth a look at all mutations again
            late = (
                {
                    row[FILE]: row["late"]
                    for row in rules_of.by_file(mutations, decisions, rules).collect()
                }
                if have_late
                else {}
            )
            totals = Counter[str]()
            for row in actions:
                totals[row["action"]] += row["records"]
                totals["conflicts"] += row["conflicts"]
            changed = totals["inserts"] + totals["updates"] + totals["deletes"]
            counts = self._counts(totals, late)
            per_file = _report(self.files, self.stats, _nested(actions), late)
            replaced = self._replaced(decisions) if changed else []
            if self.master.format == self._kind == "parquet":
                refuse_unsigned(replace(self.master, files=replaced))
            if changed and self.work.target is None:
                self._rehearse(decisions, replaced)
            if not changed or self.work.target is None:
                return Merged(
                    counts=counts,
                    is_changed=bool(changed),
                    files=per_file,
                    notes=self._notes(counts),
                )
            counts["rows_written"] = self._write(decisions, replaced)
        counts["files_replaced"] = len(replaced)
        untouched = [file for file in self.work.master if file not in set(replaced)]
        return Merged(
            counts=counts,
            is_changed=True,
            form=self._form,
            untouched=untouched,
            files=per_file,
            notes=self._notes(counts),
        )

    def _looked_at(self, mutations: DataFrame) -> list[MasterFile]:
        """Files that may hold records of the increments; all, unless records stay in their partitions and no delete is of an id alone."""
        if (
            not self.merge.job.fixed_partitions
            or self._is_new_layout
            or not self.record.partition_by
        ):
            return list(self.work.master)
        folder = F.struct(
            *[
                F.col(ROW).getField(name).cast("string").alias(name)
                for name in self.record.partition_by
            ]
        )
        named = [
            (tuple(row.folder), row[DELETED])
            for row in mutations.select(folder.alias("folder"), DELETED).distinct().collect()
        ]
        if any(is_deleted and None in values for values, is_deleted in named):
            return list(self.work.master)
        return self._in_folders({values for values, _ in named})

    @property
    def _kind(self) -> str:
        """The new master's format."""
        return self.merge.job.output_format or self.master.format

    @property
    def _form(self) -> MasterForm:
        """How the new master is written, for who reads it and for the next run."""
        is_csv = self._kind == "csv"
        return MasterForm(
            format=self._kind,
            schema=self.record.fields.jsonValue(),
            options=written_options(self.merge.job) if is_csv else {},
        )

    @property
    def _typed(self) -> list[StructField]:
        """Fields in files of CSV that are no texts."""
        if self.master.format != "csv":
            return []
        fields = [
            field for field in self.record.fields if field.name not in self.record.partition_by
        ]
        return [field for field in fields if not isinstance(field.dataType, StringType)]

    @property
    def _stays_csv(self) -> bool:
        return self.master.format == self._kind == "csv"

    @property
    def _is_new_layout(self) -> bool:
        """Whether the new master has folders that the old one lacks."""
        return list(self.record.partition_by) != self.master.partition_by

    def _decided(self, wins: DataFrame, files: Sequence[MasterFile], rules: Rules) -> DataFrame:
        if not files:
            return rules_of.decided(wins, None, rules)
        looked_at = replace(self.master, files=files)
        check_text(self.merge.spark, looked_at, self.record.fields)
        rows = read_files(self.merge.spark, looked_at, self.record.fields)
        master = checked_rows(rows, looked_at.partition_by)
        ids = F.broadcast(wins.select(*keys(self.record))) if self._is_small() else wins
        return rules_of.decided(wins, rules_of.touched_rows(master, ids, rules), rules)

    def _is_small(self) -> bool:
        return sum(row["rows"] for row in self.stats.values()) <= _BROADCAST_ROWS

    def _counts(self, totals: Mapping[str, int], late: Mapping[int, int]) -> dict[str, int]:
        rows = sum(row["rows"] for row in self.stats.values())
        rejected = sum(row["rejected"] for row in self.stats.values())
        records = sum(
            number for name, number in totals.items() if name not in ("conflicts", rules_of.LATE)
        )
        lost = sum(late.values())
        counts = {
            "files": len(self.files),
            "mutations": rows - rejected,
            **{name: totals[name] for name in _ACTIONS},
        }
        return counts | {
            "late": lost,
            "superseded": rows - rejected - records - lost,
            "conflicts": totals["conflicts"],
            "rejected": rejected,
        }

    def _notes(self, counts: Mapping[str, int]) -> list[str]:
        notes = []
        if counts["late"]:
            notes.append(
                f"{count_text(counts['late'], 'mutation')} came late: the master has something newer"
            )
        if counts["conflicts"]:
            notes.append(
                f"{count_text(counts['conflicts'], 'record')} with different content of one order: what came later in the files counts"
            )
        return notes

    def _replaced(self, decisions: DataFrame) -> list[MasterFile]:
        """The files that are written anew."""
        is_other = self._kind != self.master.format or bool(self.merge.job.output_options)
        if is_other or self._is_new_layout or not self.record.partition_by:
            return list(self.work.master)
        touched = rules_of.touched_partitions(
            decisions, self.record, has_master=rules_of.OLD_PARTITION in decisions.columns
        )
        return self._in_folders(touched)

    def _in_folders(self, values: Collection[tuple[str | None, ...]]) -> list[MasterFile]:
        """Files whose folders have these values, however the folders' names write them: `month=01` is 1 where the month is a number."""
        fields = [self.record.fields[name] for name in self.record.partition_by]
        folders = sorted({tuple(file.values().values()) for file in self.work.master}, key=str)
        names = StructType([StructField(field.name, StringType()) for field in fields])
        texts = [F.col(quoted(field.name)).cast(field.dataType).cast("string") for field in fields]
        meant = map(
            tuple,
            self.merge.spark.createDataFrame(folders, names).coalesce(1).select(*texts).collect(),
        )
        chosen = {folder for folder, value in zip(folders, meant, strict=True) if value in values}
        return [file for file in self.work.master if tuple(file.values().values()) in chosen]

    def _write(self, decisions: DataFrame, replaced: Sequence[MasterFile]) -> int:
        """What stays of the replaced files, and the new rows. Returns how many there are."""
        record, spark = self.record, self.merge.spark
        new_files = -(-sum(row["rows"] for row in self.stats.values()) // _NEW_FILE_ROWS)
        rows = rules_of.new_rows(decisions, record).coalesce(
            max(1, min(parallelism(spark), new_files))
        )
        options = write_options(self.merge.job)
        if self._stays_csv:
            typed = {field.name for field in self._typed}
            rows = rows.select(
                *[
                    cell_text(field, options) if field.name in typed else F.col(quoted(field.name))
                    for field in record.fields
                ]
            )
        if replaced:
            rows = self._staying(decisions, replaced).unionByName(rows)
        kind = self._kind
        observed = Observation("mutate")
        rows = rows.observe(observed, F.count(F.lit(1)).alias("rows"))
        if record.partition_by:
            rows = rows.hint("rebalance", *[F.col(quoted(name)) for name in record.partition_by])
        assert self.work.target is not None
        options = options if kind == "csv" else JSON_WRITE if kind == "json" else {}
        writer = (
            rows.write.mode("overwrite")
            .format(kind)
            .options(**options)
            .partitionBy(*record.partition_by)
        )
        with standard_times(spark):
            writer.save(hadoop_uri(self.work.side, self.work.target))
        return observed_count(observed, "rows")

    def _rehearse(self, decisions: DataFrame, replaced: Sequence[MasterFile]) -> None:
        """Meets what would fail the writing of rows that stay. Where nothing can, they are not read again."""
        record, is_exact = self.record, self._stays_csv or not self._typed
        if replaced and not (is_exact and not record.unwritable()):
            self._staying(decisions, replaced).write.format("noop").mode("overwrite").save()

    def _staying(self, decisions: DataFrame, replaced: Sequence[MasterFile]) -> DataFrame:
        """Rows of these files that no mutation replaces. Those of CSV are read as texts: a type may round them, or write them otherwise."""
        record, typed = self.record, self._typed
        fields = StructType(
            [
                StructField(field.name, StringType()) if field in typed else field
                for field in record.fields
            ]
        )
        old = read_files(self.merge.spark, replace(self.master, files=replaced), fields).select(
            *map(quoted, fields.names)
        )
        needed = [field for field in typed if field.name in record.ids or not self._stays_csv]
        if needed:
            old = old.withColumn(_CELLS, typed_cells(needed, self.master.csv))
        values = {name: F.col(quoted(name)) for name in fields.names} | {
            field.name: F.col(_CELLS).getField(field.name).alias(field.name) for field in needed
        }
        ids = rules_of.replaced_ids(decisions, keys(record))
        gone = F.broadcast(ids) if self._is_small() else ids
        same = [
            values[name] == F.col(key) for name, key in zip(record.ids, keys(record), strict=True)
        ]
        staying = writable_rows(old, replace(record, fields=fields)).join(gone, same, "left_anti")
        if self._stays_csv:
            return staying.select(*map(quoted, fields.names))
        return exact_rows(staying, typed).select(*values.values())


def _remedy(name: str, recorded: str | None) -> str:
    """Say how to give an option of the master's CSV as it was recorded."""
    if recorded is None:
        return f"leave the option {name} out; for increments alone it is --increment-option"
    if name == "header":
        is_set = recorded == "true"
        flag = "give no --no-header" if is_set else "--no-header"
        return f"give header={is_set} ({flag})"
    if name == "sep":
        return f"give delimiter={recorded!r} (--delimiter)"
    return f"give options={{{name!r}: {recorded!r}}} (--csv-option {name}={recorded})"


_ACTIONS = (rules_of.INSERT, rules_of.UPDATE, rules_of.DELETE, rules_of.UNCHANGED, rules_of.UNKNOWN)


def _stats(rows: DataFrame) -> DataFrame:
    number = F.count_if(~F.col(HEADER)).alias("rows")
    bad = F.count_if(F.col(BAD).isNotNull() & ~F.col(HEADER)).alias("rejected")
    deletes = F.count_if(F.col(DELETED) & ~F.col(HEADER)).alias("delete_rows")
    unclosed = F.count_if(F.col(BAD) == UNCLOSED).alias("unclosed")
    have_op = F.count_if(F.col(HAS_OP) & ~F.col(HEADER)).alias("have_op")
    return rows.groupBy(FILE).agg(
        number, bad, deletes, unclosed, have_op, F.count_if(HEADER).alias("headers")
    )


def _check_headers(
    forms: Mapping[Form, Sequence[Readable]],
    stats: Mapping[int, Mapping[str, int]],
    options: Mapping[str, str],
) -> None:
    """A line like the header is no row, wherever it stands: files that were put together would have several."""
    for form, files in forms.items():
        for file in files:
            if file.number in stats and (times := stats[file.number]["headers"]) > 1:
                where = line_number(
                    file.storage, file.path, options.get("encoding", "utf-8"), form.header or "", 2
                )
                place = "" if where is None else f", line {where}"
                raise InvalidInputError(
                    f"{file.increment.source}{place}: its header is there {times} times: take out all but the first line"
                )


def _nested(actions: Iterable[Mapping[str, int]]) -> dict[int, dict[str, int]]:
    nested: dict[int, dict[str, int]] = {}
    for row in actions:
        nested.setdefault(row[FILE], {})[str(row["action"])] = row["records"]
    return nested


def _report(
    files: Sequence[Readable],
    stats: Mapping[int, Mapping[str, int]],
    actions: Mapping[int, Mapping[str, int]],
    late: Mapping[int, int],
) -> list[dict[str, object]]:
    """Of each file: its rows, and what those that count did."""
    lines = []
    for file in files:
        known, done = stats.get(file.number), actions.get(file.number, {})
        line: dict[str, object] = {"file": file.increment.source, "rows": 0, "rejected": 0}
        if known is not None:
            line |= {"rows": known["rows"], "rejected": known["rejected"]}
        lines.append(
            line
            | {name: done.get(name, 0) for name in _ACTIONS}
            | {"late": late.get(file.number, 0)}
        )
    return lines


@contextmanager
def _kept(rows: DataFrame, work: Work) -> Iterator[DataFrame]:
    """Computed once. Many rows go to the disk at once: on their way there through memory they filled a heap of 1 GB."""
    is_small = sum(increment.size for increment in work.increments) < _IN_MEMORY_BYTES
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK if is_small else StorageLevel.DISK_ONLY)
    try:
        yield rows
    finally:
        rows.unpersist()
