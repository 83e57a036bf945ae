"""Rows of increments that are wrong: said with file, line and reason, or put aside."""

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
_MOST_BYTES = 1 << 30  # of a file that is looked through for a line


def refuse(
    rows: DataFrame, number: int, files: Sequence[Readable], options: Mapping[str, str]
) -> None:
    """The first of them."""
    _refuse(
        rows,
        number,
        files,
        options,
        "Correct the files, or put bad rows aside with on_bad_rows='quarantine' (--quarantine)",
    )


def refuse_unclosed(
    rows: DataFrame, number: int, files: Sequence[Readable], options: Mapping[str, str]
) -> None:
    """Also of a run that puts bad rows aside: what follows an open quote may be the rest of a field, and look like a row."""
    _refuse(rows.where(F.col(BAD) == UNCLOSED), number, files, options, CLOSE_QUOTES)


def _refuse(
    rows: DataFrame, number: int, files: Sequence[Readable], options: Mapping[str, str], advice: str
) -> None:
    bad = (
        rows.where(F.col(BAD).isNotNull())
        .orderBy(FILE, BLOCK, RANK)
        .select(FILE, BAD, RAW)
        .limit(_SHOWN)
        .collect()
    )
    copies = [
        sum((other[FILE], other[RAW]) == (row[FILE], row[RAW]) for other in bad[:at]) + 1
        for at, row in enumerate(bad)
    ]
    lines = [
        f"{_place(row, copy, files, options)}: {row[BAD]}: {row[RAW]:.200}"
        for row, copy in zip(bad, copies, strict=True)
    ]
    more = f"; and {count_text(number - len(bad), 'more row')}" if number > len(bad) else ""
    raise InvalidInputError(f"{'; '.join(lines)}{more}. Nothing was changed. {advice}")


def put_aside(
    rows: DataFrame, work: Work, files: Sequence[Readable], options: Mapping[str, str]
) -> str:
    """Those of the files that have some, as JSON lines with file, line, reason and row. Returns where."""
    folder = hadoop_uri(work.side, work.rejected)
    names = F.create_map(
        *[part for file in files for part in (F.lit(file.number), F.lit(file.increment.source))]
    )
    bad = rows.where(F.col(BAD).isNotNull()).select(FILE, BLOCK, RANK, BAD, RAW)
    texts = [file for file in files if _has_lines(file)]
    if texts:
        copy = F.row_number().over(Window.partitionBy(FILE, RAW).orderBy(BLOCK, RANK)).alias(COPY)
        bad = bad.select("*", copy).join(
            numbered_lines(rows.sparkSession, texts, options), [FILE, RAW, COPY], "left"
        )
    line = F.col(LINE) if texts else F.lit(None).cast("int")
    columns = [
        names[F.col(FILE)].alias("file"),
        line.alias("line"),
        F.col(BAD).alias("reason"),
        F.col(RAW).alias("row"),
    ]
    shown = bad.orderBy(FILE, BLOCK, RANK).select(*columns)
    shown.coalesce(1).write.mode("overwrite").json(folder)
    return folder


def _place(row: Row, copy: int, files: Sequence[Readable], options: Mapping[str, str]) -> str:
    file = next(file for file in files if file.number == row[FILE])
    encoding = options.get("encoding", "utf-8")
    number = (
        line_number(file.storage, file.path, encoding, row[RAW], copy) if _has_lines(file) else None
    )
    return file.increment.source + (f", line {number}" if number is not None else "")


def _has_lines(file: Readable) -> bool:
    """And not too many to look for one."""
    return (
        not file.increment.name.endswith((".parquet", ".orc", ".avro"))
        and file.increment.size <= _MOST_BYTES
    )
