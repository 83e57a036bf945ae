"""The merge of increments into a folder with Spark: it reads, decides and writes."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from opal_folder.master_folder import MasterFile, MasterForm
from opal_folder.mutation import Merged, Work, open_master, run_mutation
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.operations.mutate import Mutate
from opal_lake.result import JobResult
from opal_lake.storage.spark_path import hadoop_uri
from opal_spark.engine.columns import columns_named, quoted
from opal_spark.engine.failures import observed_count, spark_errors
from opal_spark.engine.session import (
    add_avro,
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

# The ids of up to so many mutations are sent to every executor, instead of shuffling the master
_BROADCAST_ROWS = 2_000_000
_NEW_FILE_ROWS = 1_000_000
_IN_MEMORY_BYTES = 32 << 20  # of increments
_CELLS = "_opal_cells"
_ACTIONS = (rules_of.INSERT, rules_of.UPDATE, rules_of.DELETE, rules_of.UNCHANGED, rules_of.UNKNOWN)


def mutate(spark: SparkSession, master: str, job: Mutate) -> JobResult:
    """Merge increments into a folder of files. The same token twice merges once."""
    options = _store_options(spark, [master, *job.increments])
    merge = _Merge(spark=spark, job=job, options=options)
    folder = open_master(master, options)
    with spark_errors():
        return run_mutation(folder, job, merge, options)


def _store_options(spark: SparkSession, uris: Iterable[str]) -> dict[str, str]:
    """Return the store options for the first of the URIs that has some."""
    for uri in uris:
        options = storage_options(spark, uri)
        if options:
            return options
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """The merge that `run_mutation` calls."""

    spark: SparkSession
    job: Mutate
    options: Mapping[str, str]

    def __call__(self, work: Work) -> Merged:
        master_bytes = sum(file.size for file in work.master)
        increment_bytes = sum(file.size for file in work.increments)
        with (
            shuffles_of(self.spark, master_bytes + increment_bytes),
            java_charsets(self.spark, needed=needs_java_charsets(self.job)),
        ):
            master = self._master(work)
            with files_named(work, master, increment_options(self.job)):
                return self._merge_into(master, work)

    def _merge_into(self, master: MasterFiles, work: Work) -> Merged:
        """Check the rows of the increments, and merge the good ones into the master."""
        kind = increment_format(self.job, work)
        if "avro" in (master.format, self.job.output_format, kind):
            add_avro(self.spark)
        record = self._record(work, master)
        files = readable_increments(work)
        in_files = [field for field in record.fields if field.name not in record.partition_by]
        check_fields(self.job.output_format or master.format, in_files)
        csv = increment_options(self.job)
        forms = forms_of(files, self.job, record, kind, csv)
        if not forms:
            report = _report(files, {}, {}, {})
            return Merged(counts={"files": len(files)}, is_changed=False, files=report)
        read_rows = read_increments(self.spark, forms, self.job, record, csv)
        with _cached(read_rows, work) as rows:
            stats = {row[FILE]: row.asDict() for row in _stats(rows).collect()}
            _check_headers(forms, stats, csv)
            unclosed = _total(stats, "unclosed")
            rejected = _total(stats, "rejected")
            if unclosed:
                refuse_unclosed(rows, unclosed, files, csv)
            if rejected and self.job.on_bad_rows == "fail":
                refuse(rows, rejected, files, csv)
            if _total(stats, "rows") and not _total(stats, "have_op"):
                refuse_unmet_op(record)
            notes = []
            if rejected and work.target is not None:
                bad_files = [file for file in files if stats.get(file.number, {}).get("rejected")]
                folder = put_aside(rows, work, bad_files, csv)
                notes.append(f"{count_text(rejected, 'bad row')} put aside in {folder}")
            merging = _Merging(
                merge=self, work=work, master=master, record=record, files=files, stats=stats
            )
            is_good_row = F.col(BAD).isNull() & ~F.col(HEADER)
            merged = merging.run(rows.where(is_good_row))
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
        """Raise InvalidInputError if the job would read the master in another form.

        With another delimiter, or with a first row that is read as a header, values would be lost.
        """
        if self.job.format not in (None, form.format):
            raise InvalidInputError(
                f"the last run wrote the master as {form.format}, not as "
                f"format={self.job.format!r} (--format). Leave it out; to write another format, "
                "give output_format= (--output-format)"
            )
        if form.format != "csv":
            return
        own = own_options(self.job)
        wrong = contradictions(own, form.options) or contradictions(form.options, own)
        if not wrong:
            return
        name = next(iter(wrong))
        recorded = form.options.get(name)
        was = "the default" if recorded is None else repr(recorded)
        now = repr(own[name]) if name in own else "the default"
        raise InvalidInputError(
            f"the last run wrote the master with {name}={was}, and this run would read it with "
            f"{now}; {_remedy(name, recorded)}"
        )

    def _record(self, work: Work, master: MasterFiles) -> Record:
        given = schema_given(self.spark, self.job.schema)
        if given is not None and work.master and master.format not in ("csv", "json"):
            self._refuse_lost_fields(master, given)
        fields = given or self._known_schema(work, master)
        if not fields.names:
            raise InvalidInputError(
                "neither the master nor the increments have a line that names the fields: "
                "give schema= (--schema)"
            )
        folders = master.partition_by
        is_partitioned = bool(folders or self.job.partition_by)
        has_names = (
            self.job.schema is not None
            or work.form is not None
            or master.format != "csv"
            or is_true(master.csv, "header")
        )
        if is_partitioned and not has_names:
            raise InvalidInputError(
                "a partitioned master of CSV files without headers needs names for its fields: "
                "give schema='id STRING, country STRING, ...' (--schema)"
            )
        by_line, encoding = False, "UTF-8"
        if (self.job.output_format or master.format) == "csv":
            by_line = not is_true(master.csv, "multiline")
            encoding = write_options(self.job).get("encoding", encoding)
        try:
            record = record_of(self.job, fields, folders)
        except InvalidInputError as error:
            if given is not None or master.format != "csv":
                raise
            file_and_line = naming_file(master)
            if file_and_line is None:
                raise
            file, _ = file_and_line
            raise InvalidInputError(
                f"{error}. The fields' names come from {file}, line 1: correct the line, or the "
                "delimiter"
            ) from error
        return replace(record, by_line=by_line, encoding=encoding)

    def _known_schema(self, work: Work, master: MasterFiles) -> StructType:
        if not work.master and work.form is None:
            return self._new_schema(work)
        try:
            return known_schema(self.spark, master, work.form)
        except InvalidInputError:
            # If a repeated key is the reason, this error names its line
            refuse_repeated_keys(self.spark, master)
            raise

    def _refuse_lost_fields(self, master: MasterFiles, given: StructType) -> None:
        """Raise InvalidInputError if the new master would lack fields of the old master.

        For CSV and JSON, the row that has such a field is refused instead.
        """
        lost = lost_fields(found_schema(self.spark, master), given)
        if lost:
            raise InvalidInputError(
                f"the master has fields that schema= (--schema) lacks: {', '.join(lost)}. "
                "Add these fields, or leave schema= out. Nothing was changed"
            )

    def _new_schema(self, work: Work) -> StructType:
        """Return the schema of a new master, from the increments that are not deletes."""
        upserts = []
        files = []
        for file in readable_increments(work):
            size = file.increment.size
            if file.increment.is_deletes(self.job.delete_prefix):
                continue
            upserts.append(file)
            if size:
                files.append(MasterFile(root=file.storage.uri, path=file.path, size=size))
        if not files:
            raise InvalidInputError(
                "the folder has no master, and no increment has rows from which a master could be "
                "made; give schema= (--schema), or correct the path"
            )
        increments = MasterFiles(
            files=files,
            format=increment_format(self.job, work),
            options=self.options,
            csv=increment_options(self.job),
        )
        in_files = found_schema(self.spark, increments)
        schema = StructType([*in_files.fields])
        for name in upserts[0].increment.folders:
            if name in self.job.partition_by and name not in in_files.names:
                schema.add(name, StringType())
        return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merging:
    """A merge whose increments have been checked.

    `stats` has counts of rows by the number of the file: see `_stats`.
    """

    merge: _Merge
    work: Work
    master: MasterFiles
    record: Record
    files: Sequence[Readable]
    stats: Mapping[int, Mapping[str, int]]

    def run(self, mutations: DataFrame) -> Merged:
        rules = Rules.of(self.merge.job, self.record, self.work.suffix)
        winners = rules_of.winners(mutations, rules)
        files = self._files_to_read(mutations)
        with (
            _cached(winners, self.work) as wins,
            _cached(self._decided(wins, files, rules), self.work) as decisions,
        ):
            actions = [row.asDict() for row in rules_of.actions_by_file(decisions, rules).collect()]
            late: dict[int, int] = {}
            # Late mutations are counted in a second pass over all mutations, only if there are any
            if any(row[rules_of.HAVE_LATE] for row in actions):
                late_rows = rules_of.by_file(mutations, decisions, rules).collect()
                late = {row[FILE]: row["late"] for row in late_rows}
            totals = Counter[str]()
            for row in actions:
                totals[row["action"]] += row["records"]
                totals["conflicts"] += row["conflicts"]
            changed = totals["inserts"] + totals["updates"] + totals["deletes"]
            counts = self._counts(totals, late)
            report = _report(self.files, self.stats, _by_file_and_action(actions), late)
            replaced = self._replaced(decisions) if changed else []
            if self.master.format == self._kind == "parquet":
                refuse_unsigned(replace(self.master, files=replaced))
            is_rehearsal = self.work.target is None
            if changed and is_rehearsal:
                self._rehearse(decisions, replaced)
            if not changed or is_rehearsal:
                return Merged(
                    counts=counts,
                    is_changed=bool(changed),
                    files=report,
                    notes=self._notes(counts),
                )
            counts["rows_written"] = self._write(decisions, replaced)
        counts["files_replaced"] = len(replaced)
        replaced_files = set(replaced)
        untouched = [file for file in self.work.master if file not in replaced_files]
        return Merged(
            counts=counts,
            is_changed=True,
            form=self._form,
            untouched=untouched,
            files=report,
            notes=self._notes(counts),
        )

    def _files_to_read(self, mutations: DataFrame) -> list[MasterFile]:
        """Return the files of the master that may hold records of the increments.

        With fixed partitions these are the files of the increments' partitions; otherwise all. A
        delete that has only an id may be in any partition.
        """
        names = self.record.partition_by
        if not self.merge.job.fixed_partitions or self._is_new_layout or not names:
            return list(self.work.master)
        row = F.col(ROW)
        folder = F.struct(*[row.getField(name).cast("string").alias(name) for name in names])
        folders = set()
        for mutation in mutations.select(folder.alias("folder"), DELETED).distinct().collect():
            values = tuple(mutation.folder)
            # A delete that has only an id does not name its folder
            if mutation[DELETED] and None in values:
                return list(self.work.master)
            folders.add(values)
        return self._in_folders(folders)

    @property
    def _kind(self) -> str:
        """The new master's format."""
        return self.merge.job.output_format or self.master.format

    @property
    def _form(self) -> MasterForm:
        """The new master's form, for its readers and for the next run."""
        is_csv = self._kind == "csv"
        return MasterForm(
            format=self._kind,
            schema=self.record.fields.jsonValue(),
            options=written_options(self.merge.job) if is_csv else {},
        )

    @property
    def _typed(self) -> list[StructField]:
        """The fields in CSV files of the master whose types are not texts."""
        if self.master.format != "csv":
            return []
        in_files = [
            field for field in self.record.fields if field.name not in self.record.partition_by
        ]
        return [field for field in in_files if not isinstance(field.dataType, StringType)]

    @property
    def _stays_csv(self) -> bool:
        return self.master.format == self._kind == "csv"

    @property
    def _is_new_layout(self) -> bool:
        """True if the new master has other folders than the old master."""
        return list(self.record.partition_by) != self.master.partition_by

    def _decided(self, wins: DataFrame, files: Sequence[MasterFile], rules: Rules) -> DataFrame:
        if not files:
            return rules_of.decided(wins, None, rules)
        part = replace(self.master, files=files)
        check_text(self.merge.spark, part, self.record.fields)
        rows = read_files(self.merge.spark, part, self.record.fields)
        master = checked_rows(rows, part.partition_by)
        ids = wins.select(*keys(self.record))
        if self._is_small:
            ids = F.broadcast(ids)
        old = rules_of.touched_rows(master, ids, rules)
        return rules_of.decided(wins, old, rules)

    @property
    def _is_small(self) -> bool:
        """True if the ids of all mutations can be sent to every executor."""
        return _total(self.stats, "rows") <= _BROADCAST_ROWS

    def _counts(self, totals: Mapping[str, int], late: Mapping[int, int]) -> dict[str, int]:
        rejected = _total(self.stats, "rejected")
        mutations = _total(self.stats, "rows") - rejected
        records_by_action = {name: totals[name] for name in _ACTIONS}
        late_mutations = sum(late.values())
        return {
            "files": len(self.files),
            "mutations": mutations,
            **records_by_action,
            "late": late_mutations,
            "superseded": mutations - sum(records_by_action.values()) - late_mutations,
            "conflicts": totals["conflicts"],
            "rejected": rejected,
        }

    def _notes(self, counts: Mapping[str, int]) -> list[str]:
        notes = []
        if counts["late"]:
            mutations = count_text(counts["late"], "mutation")
            notes.append(f"{mutations} came late: the master has a newer state of the record")
        if counts["conflicts"]:
            records = count_text(counts["conflicts"], "record")
            notes.append(
                f"{records} have mutations with the same order and different content: "
                "the last one in the files counts"
            )
        return notes

    def _replaced(self, decisions: DataFrame) -> list[MasterFile]:
        """Return the files of the master that are rewritten.

        These are all files, unless only some folders change.
        """
        is_new_format = self._kind != self.master.format or bool(self.merge.job.output_options)
        if is_new_format or self._is_new_layout or not self.record.partition_by:
            return list(self.work.master)
        has_master = rules_of.OLD_PARTITION in decisions.columns
        touched = rules_of.touched_partitions(decisions, self.record, has_master=has_master)
        return self._in_folders(touched)

    def _in_folders(self, values: Collection[tuple[str | None, ...]]) -> list[MasterFile]:
        """Return the files whose folders have these values.

        Values are compared in the types of the record: `month=01` has the value 1 of a number.
        """
        fields = [self.record.fields[name] for name in self.record.partition_by]
        # The values of each file's folders, as the folders' names write them
        texts_of_files = [tuple(file.values().values()) for file in self.work.master]
        folders = sorted(set(texts_of_files), key=str)
        names = StructType([StructField(field.name, StringType()) for field in fields])
        typed = [F.col(quoted(field.name)).cast(field.dataType).cast("string") for field in fields]
        # In one partition, so that the collected values have the order of `folders`
        rows = self.merge.spark.createDataFrame(folders, names).coalesce(1)
        values_of_folders = rows.select(*typed).collect()
        chosen = set()
        for folder, folder_values in zip(folders, values_of_folders, strict=True):
            if tuple(folder_values) in values:
                chosen.add(folder)
        files_and_texts = zip(self.work.master, texts_of_files, strict=True)
        return [file for file, texts in files_and_texts if texts in chosen]

    def _write(self, decisions: DataFrame, replaced: Sequence[MasterFile]) -> int:
        """Write new rows, and unchanged rows of replaced files; return their number."""
        assert self.work.target is not None
        record, spark = self.record, self.merge.spark
        wanted_files = -(-_total(self.stats, "rows") // _NEW_FILE_ROWS)
        new_files = max(1, min(parallelism(spark), wanted_files))
        rows = rules_of.new_rows(decisions, record).coalesce(new_files)
        csv = write_options(self.merge.job)
        if self._stays_csv:
            rows = self._as_cells(rows, csv)
        if replaced:
            rows = self._unchanged_rows(decisions, replaced).unionByName(rows)
        observed = Observation("mutate")
        rows = rows.observe(observed, F.count(F.lit(1)).alias("rows"))
        if record.partition_by:
            rows = rows.hint("rebalance", *columns_named(record.partition_by))
        options = {"csv": csv, "json": JSON_WRITE}.get(self._kind, {})
        writer = (
            rows.write.mode("overwrite")
            .format(self._kind)
            .options(**options)
            .partitionBy(*record.partition_by)
        )
        with standard_times(spark):
            writer.save(hadoop_uri(self.work.side, self.work.target))
        return observed_count(observed, "rows")

    def _as_cells(self, rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
        """Return new rows as texts of CSV cells; unchanged rows are texts already."""
        typed = {field.name for field in self._typed}
        columns = []
        for field in self.record.fields:
            if field.name in typed:
                columns.append(cell_text(field, options))
            else:
                columns.append(F.col(quoted(field.name)))
        return rows.select(*columns)

    def _rehearse(self, decisions: DataFrame, replaced: Sequence[MasterFile]) -> None:
        """Raise the error that writing the unchanged rows would raise.

        The rows are read for that only if an error is possible.
        """
        is_exact = self._stays_csv or not self._typed
        can_fail = not is_exact or bool(self.record.unwritable_faults())
        if replaced and can_fail:
            rows = self._unchanged_rows(decisions, replaced)
            rows.write.format("noop").mode("overwrite").save()

    def _unchanged_rows(self, decisions: DataFrame, replaced: Sequence[MasterFile]) -> DataFrame:
        """Return the rows of replaced files that no mutation changes or deletes.

        Rows of CSV are read as texts: a type might round values, or write them in another form.
        """
        record, typed = self.record, self._typed
        fields = StructType()
        for field in record.fields:
            if field in typed:
                field = StructField(field.name, StringType())
            fields.add(field)
        part = replace(self.master, files=replaced)
        old = read_files(self.merge.spark, part, fields).select(*columns_named(fields.names))
        values = {name: F.col(quoted(name)) for name in fields.names}
        # Ids are compared as typed values; other fields are typed only for a format other than CSV
        needed = [field for field in typed if field.name in record.ids or not self._stays_csv]
        if needed:
            old = old.withColumn(_CELLS, typed_cells(needed, self.master.csv))
        for field in needed:
            values[field.name] = F.col(_CELLS).getField(field.name).alias(field.name)
        replaced_ids = rules_of.replaced_ids(decisions, keys(record))
        if self._is_small:
            replaced_ids = F.broadcast(replaced_ids)
        names_and_keys = zip(record.ids, keys(record), strict=True)
        is_same_id = [values[name] == F.col(key) for name, key in names_and_keys]
        writable = writable_rows(old, replace(record, fields=fields))
        unchanged = writable.join(replaced_ids, is_same_id, "left_anti")
        if self._stays_csv:
            return unchanged.select(*columns_named(fields.names))
        return exact_rows(unchanged, typed).select(*values.values())


def _remedy(name: str, recorded: str | None) -> str:
    """Return the advice that gives an option of the master its recorded value."""
    if recorded is None:
        return (
            f"leave the option {name} out; to set it only for increments, use increment_options= "
            "(--increment-option)"
        )
    if name == "header" and recorded == "true":
        return "give header=True (leave --no-header out)"
    if name == "header":
        return "give header=False (--no-header)"
    if name == "sep":
        return f"give delimiter={recorded!r} (--delimiter)"
    return f"give options={{{name!r}: {recorded!r}}} (--csv-option {name}={recorded})"


def _stats(rows: DataFrame) -> DataFrame:
    """Return a row for each file with the counts of its rows."""
    is_row = ~F.col(HEADER)
    return rows.groupBy(FILE).agg(
        F.count_if(is_row).alias("rows"),
        F.count_if(F.col(BAD).isNotNull() & is_row).alias("rejected"),
        F.count_if(F.col(DELETED) & is_row).alias("delete_rows"),
        F.count_if(F.col(BAD) == UNCLOSED).alias("unclosed"),
        F.count_if(F.col(HAS_OP) & is_row).alias("have_op"),
        F.count_if(HEADER).alias("headers"),
    )


def _total(stats: Mapping[int, Mapping[str, int]], count: str) -> int:
    return sum(row[count] for row in stats.values())


def _check_headers(
    forms: Mapping[Form, Sequence[Readable]],
    stats: Mapping[int, Mapping[str, int]],
    options: Mapping[str, str],
) -> None:
    """Raise InvalidInputError for a file whose header occurs twice.

    It occurs twice in concatenated files. A line like the header is never read as a row.
    """
    encoding = options.get("encoding", "utf-8")
    for form, files in forms.items():
        for file in files:
            if file.number not in stats:
                continue
            times = stats[file.number]["headers"]
            if times <= 1:
                continue
            where = file.increment.source
            line = line_number(file.storage, file.path, encoding, form.header or "", 2)
            if line is not None:
                where += f", line {line}"
            raise InvalidInputError(
                f"{where}: the file's header occurs {times} times; remove all but the first one"
            )


def _by_file_and_action(actions: Iterable[Mapping[str, int]]) -> dict[int, dict[str, int]]:
    """Return the number of records by file number and action."""
    records: dict[int, dict[str, int]] = {}
    for row in actions:
        records.setdefault(row[FILE], {})[str(row["action"])] = row["records"]
    return records


def _report(
    files: Sequence[Readable],
    stats: Mapping[int, Mapping[str, int]],
    actions: Mapping[int, Mapping[str, int]],
    late: Mapping[int, int],
) -> list[dict[str, object]]:
    """Return a line for each file with the counts of its rows and actions."""
    lines = []
    for file in files:
        counts = stats.get(file.number, {"rows": 0, "rejected": 0})
        records = actions.get(file.number, {})
        line: dict[str, object] = {
            "file": file.increment.source,
            "rows": counts["rows"],
            "rejected": counts["rejected"],
        }
        for name in _ACTIONS:
            line[name] = records.get(name, 0)
        line["late"] = late.get(file.number, 0)
        lines.append(line)
    return lines


@contextmanager
def _cached(rows: DataFrame, work: Work) -> Iterator[DataFrame]:
    """Yield the rows as a DataFrame that Spark computes once, within the block.

    Many rows are stored on disk immediately: stored in memory first, they filled a heap of 1 GB.
    """
    is_small = sum(increment.size for increment in work.increments) < _IN_MEMORY_BYTES
    level = StorageLevel.MEMORY_AND_DISK if is_small else StorageLevel.DISK_ONLY
    cached_rows = rows.persist(level)
    try:
        yield cached_rows
    finally:
        cached_rows.unpersist()
