"""`opal stream run --spark`: what it refuses, before Spark starts."""

from pathlib import Path

import pytest

from opal_lake.cli import main
from opal_lake.exit_codes import INPUT
from tests.fixtures_cli import metadata, opal_commands
from tests.opal_stream.orders import new_table

__all__ = ["metadata", "opal_commands"]

pytestmark = pytest.mark.usefixtures("opal_commands")


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["--kafka", "fetch.wait.max.ms=9"],
            "it has no setting for librdkafka's 'fetch.wait.max.ms'",
        ),
        (
            ["--start-timestamp", "2026-11-01", "--end-timestamp", "2026-11-02"],
            "--spark does not go with an interval: Spark does not read intervals; leave it out",
        ),
        (
            ["--flush-mb", "8"],
            "--flush-mb does not go with --spark: Spark's commits are limited by rows",
        ),
        (
            ["--processes", "2"],
            "--processes does not go with --spark: Spark spreads partitions over tasks by itself",
        ),
        (
            ["--commit", "gathered"],
            "--commit does not go with --spark: Spark makes its own commits; leave it out",
        ),
    ],
)
def test_options_that_spark_lacks_are_refused_before_it_starts(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = new_table(tmp_path)
    assert (
        main(
            [
                "stream",
                "run",
                table.uri,
                "--spark",
                "--bootstrap-servers",
                "127.0.0.1:1",
                "--topic",
                "t",
                *words,
            ]
        )
        == INPUT
    )
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["lake/x", "--topic", "t", "--conf", "a=b"],
            "--conf does nothing without --spark; add --spark,",
        ),
        (["lake/x", "--topic", "t", "--verbose"], "--verbose does nothing without --spark"),
    ],
)
def test_options_of_spark_are_for_spark_alone(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", "run", *words]) == INPUT
    assert said in capsys.readouterr().err
