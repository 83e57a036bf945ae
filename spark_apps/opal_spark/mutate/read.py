"""A master as a DataFrame, read as the last run wrote it."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from opal_folder.mutation import open_place, refuse_tables
from opal_folder.place import MasterFile, MasterForm, Place
from opal_lake.errors import InvalidInputError, NoRowsError
from opal_spark.engine.session import bring_avro, storage_options
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
    """Read the master at a URI as it is now; on S3 by the newest list.

    What the last run recorded says how: format, delimiter, header, encoding and schema. `format`
    and `options` (of Spark's CSV reader) are for a master that no run has written; a CSV master
    then needs the option `header`. InvalidInputError if they contradict the record, or if
    the folder is a table.
    """
    check_session(spark)
    stored = storage_options(spark, uri)
    place = open_place(uri, stored)
    refuse_tables(place, stored, "read it with its own reader")
    files, form = _files_and_form(place)
    if not files and form is None:
        raise NoRowsError(f"there is no master in {uri}: correct the path, or run opal mutate")
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
        bring_avro(spark)
    master = MasterFiles(files=files, format=kind, options=stored, csv=csv)
    schema = known_schema(spark, master, form)
    if not files:
        return spark.createDataFrame([], schema)
    return checked_rows(read_files(spark, master, schema), master.partition_by)


def _files_and_form(place: Place) -> tuple[list[MasterFile], MasterForm | None]:
    """List the files of one master with its form, also while a run replaces it."""
    while True:
        form = place.form()
        files = place.master_files()
        if place.form() == form:
            return files, form


def _check_against_record(
    uri: str, form: MasterForm, format: str | None, given: Mapping[str, str]
) -> None:
    if format not in (None, form.format):
        raise InvalidInputError(
            f"the last run wrote {uri} as {form.format}, and format={format!r} says otherwise; "
            "leave format= out"
        )
    if form.format != "csv" and given:
        raise InvalidInputError(
            f"the last run wrote {uri} as {form.format}, which takes no options of CSV: "
            f"leave {', '.join(sorted(given))} out"
        )
    wrong = contradictions(form.options, given)
    if wrong:
        name, (recorded, value) = next(iter(wrong.items()))
        raise InvalidInputError(
            f"the last run wrote {uri} with {name}={recorded!r}, and options say {value!r}; "
            "leave the option out"
        )
