"""A master as a DataFrame, read as the last run wrote it."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from opal_folder.master_folder import MasterFile, MasterFolder, MasterForm
from opal_folder.mutation import open_master, refuse_tables
from opal_lake.errors import InvalidInputError, NoRowsError
from opal_spark.engine.session import add_avro, storage_options
from opal_spark.engine.versions import check_session
from opal_spark.mutate.csv_text import contradictions
from opal_spark.mutate.master import MasterFiles, format_named, known_schema, read_files
from opal_spark.mutate.sound import checked_rows
from opal_spark.sources.text.csv_lines import plain_names


def read_master(
    spark: SparkSession,
    uri: str,
    format: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the current rows of the master at a URI.

    A run records the master's format, delimiter, header, encoding and schema. Without such a record
    `format` and `options` (of Spark's CSV reader) describe the master; a CSV master then needs the
    option `header`. Raises InvalidInputError if they contradict the record, or if the folder is an
    Opal table.
    """
    check_session(spark)
    stored = storage_options(spark, uri)
    folder = open_master(uri, stored)
    refuse_tables(folder, stored, "read it with its own reader")
    files, form = _files_and_form(folder)
    if not files and form is None:
        raise NoRowsError(f"{uri} has no master: correct the path, or run opal mutate")
    given = plain_names(options or {})
    if form is not None:
        _check_against_record(uri, form, format, given)
        kind, csv = form.format, {**form.options, **given}
    else:
        kind = format_named([file.path for file in files], format, "files of the master")
        csv = {"sep": ",", **given}
        if kind == "csv" and "header" not in given:
            raise InvalidInputError(
                f"no run has recorded whether the CSV files in {uri} begin with a header; "
                "add options={'header': 'true'} or {'header': 'false'}"
            )
    if kind == "avro":
        add_avro(spark)
    master = MasterFiles(files=files, format=kind, options=stored, csv=csv)
    schema = known_schema(spark, master, form)
    if not files:
        return spark.createDataFrame([], schema)
    return checked_rows(read_files(spark, master, schema), master.partition_by)


def _files_and_form(folder: MasterFolder) -> tuple[list[MasterFile], MasterForm | None]:
    """List the master's files with its form, even while a run replaces it."""
    # If the form is the same before and after, the listed files are those of this form
    while True:
        form = folder.form()
        files = folder.master_files()
        if folder.form() == form:
            return files, form


def _check_against_record(
    uri: str, form: MasterForm, format: str | None, given: Mapping[str, str]
) -> None:
    if format not in (None, form.format):
        raise InvalidInputError(
            f"the last run wrote {uri} as {form.format}, not as format={format!r}; "
            "leave format= out"
        )
    if form.format != "csv" and given:
        raise InvalidInputError(
            f"the last run wrote {uri} as {form.format}, to which options of CSV do not apply: "
            f"leave {', '.join(sorted(given))} out"
        )
    wrong = contradictions(form.options, given)
    if wrong:
        name, (recorded, value) = next(iter(wrong.items()))
        raise InvalidInputError(
            f"the last run wrote {uri} with {name}={recorded!r}, but options= has {value!r}; "
            f"leave {name} out"
        )
