"""Bad rows of increments: refused with file, line and reason, or put aside."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F

from opal_folder.mutation import Work
from opal_lake.errors import InvalidInputError, count_text
from opal_lake.storage.spark_path import hadoop_uri
from opal_spark.mutate.groups import Readable
from opal_spark.mutate.rows import BAD, BLOCK, COPY, FILE, LINE, RANK, RAW, numbered_lines
from opal_spark.sources.text.csv_lines import line_number
from opal_spark.sources.text.csv_quotes import CLOSE_QUOTES, UNCLOSED

_SHOWN = 5
_MAX_BYTES = 1 << 30  # a larger file is not searched for the number of a line


def refuse(
    rows: DataFrame, number: int, files: Sequence[Readable], options: Mapping[str, str]
) -> None:
    """Raise InvalidInputError with the first of `number` bad rows."""
    advice = "Correct the files, or put bad rows aside with on_bad_rows='quarantine' (--quarantine)"
    bad_rows = rows.where(F.col(BAD).isNotNull())
    _refuse(bad_rows, number, files, options, advice)


def refuse_unclosed(
    rows: DataFrame, number: int, files: Sequence[Readable], options: Mapping[str, str]
) -> None:
    """Raise InvalidInputError with the first of `number` rows with an open quote.

    Such rows are not put aside: the lines after an open quote may be the rest of a field, although
    they look like rows.
    """
    unclosed_rows = rows.where(F.col(BAD) == UNCLOSED)
    _refuse(unclosed_rows, number, files, options, CLOSE_QUOTES)


def _refuse(
    rows: DataFrame, number: int, files: Sequence[Readable], options: Mapping[str, str], advice: str
) -> None:
    in_order = rows.orderBy(FILE, BLOCK, RANK)
    first_rows = in_order.select(FILE, BAD, RAW).limit(_SHOWN).collect()
    # Several lines of a file may have the same text: the n-th bad row is the n-th of these lines
    copies = Counter[tuple[int, str]]()
    problems = []
    for row in first_rows:
        copies[row[FILE], row[RAW]] += 1
        where = _file_and_line(row, copies[row[FILE], row[RAW]], files, options)
        problems.append(f"{where}: {row[BAD]}: {row[RAW]:.200}")
    if number > len(first_rows):
        problems.append(f"and {count_text(number - len(first_rows), 'more row')}")
    raise InvalidInputError(f"{'; '.join(problems)}. Nothing was changed. {advice}")


def put_aside(
    rows: DataFrame, work: Work, files: Sequence[Readable], options: Mapping[str, str]
) -> str:
    """Write the bad rows of files as JSON lines, and return the folder.

    A JSON line has the row's file, its line in the file, the reason and the row.
    """
    folder = hadoop_uri(work.side, work.rejected)
    numbers_and_sources = []
    for file in files:
        numbers_and_sources += [F.lit(file.number), F.lit(file.increment.source)]
    sources = F.create_map(*numbers_and_sources)
    bad = rows.where(F.col(BAD).isNotNull()).select(FILE, BLOCK, RANK, BAD, RAW)
    with_lines = [file for file in files if _has_lines(file)]
    if with_lines:
        # Several lines of a file may have the same text: the n-th bad row is the n-th of these
        equal_rows = Window.partitionBy(FILE, RAW).orderBy(BLOCK, RANK)
        bad = bad.withColumn(COPY, F.row_number().over(equal_rows))
        lines = numbered_lines(rows.sparkSession, with_lines, options)
        bad = bad.join(lines, [FILE, RAW, COPY], "left")
        line = F.col(LINE)
    else:
        line = F.lit(None).cast("int")
    shown = bad.orderBy(FILE, BLOCK, RANK).select(
        sources[F.col(FILE)].alias("file"),
        line.alias("line"),
        F.col(BAD).alias("reason"),
        F.col(RAW).alias("row"),
    )
    shown.coalesce(1).write.mode("overwrite").json(folder)
    return folder


def _file_and_line(
    row: Row, copy: int, files: Sequence[Readable], options: Mapping[str, str]
) -> str:
    file = next(file for file in files if file.number == row[FILE])
    number = None
    if _has_lines(file):
        encoding = options.get("encoding", "utf-8")
        number = line_number(file.storage, file.path, encoding, row[RAW], copy)
    if number is None:
        return file.increment.source
    return f"{file.increment.source}, line {number}"


def _has_lines(file: Readable) -> bool:
    """Return whether a file has lines, and is small enough to be searched for a line."""
    is_text = not file.increment.name.endswith((".parquet", ".orc", ".avro"))
    return is_text and file.increment.size <= _MAX_BYTES
