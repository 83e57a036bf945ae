"""The consoles of LakeChime's page, run as they are written.

`serve` runs in tests/lakechime/cli, because it does not end.
"""

import shlex
from pathlib import Path

import pytest

from lakechime import LakeChime
from lakechime.cli import build_parser, main
from lakechime.producers.tables import read_tables
from opal_lake.exit_codes import OK
from opal_lake.table import Table
from tests.docs.build import PAGES, example_with, examples
from tests.opal_lake import shop

HOW_TO = "docs/how-to/foreign-tables.md"
COMMANDS = [
    (example, command)
    for page in PAGES
    for example in examples(page, "console")
    for command in example.commands
]
LAKECHIME = [
    (example, shlex.split(command)[1:])
    for example, command in COMMANDS
    if command.startswith("lakechime ")
]


def test_lakechime_knows_every_command_and_option_that_the_docs_name() -> None:
    assert LAKECHIME
    for example, words in LAKECHIME:
        assert build_parser().parse(words).command == words[0], example


def test_the_page_s_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/lakechime.db"
    monkeypatch.setenv("LAKECHIME_URL", url)
    for example, words in LAKECHIME:
        if words[0] not in (
            "serve",
            "sync",
            "watch",
        ):  # those need tables; tests/lakechime/cli has them
            assert main(words) == OK, example
    with LakeChime.open(url) as client:
        assert [numbered.event.table for numbered in client.events().events] == [
            "web.logs",
            "shop.orders",
        ]


def test_the_page_s_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Table.create("lake/orders", shop.SCHEMA, keys=["sku"], delta="at")
    example = example_with(HOW_TO, "sync_opal")
    exec(example.text, {})
    assert capsys.readouterr().out.splitlines()[-1] == "1"


def test_the_page_s_file_of_tables_names_each_format(tmp_path: Path) -> None:
    [example] = examples(HOW_TO, "yaml")
    file = tmp_path / "tables.yaml"
    file.write_text(example.text, encoding="utf-8")
    assert [*read_tables(str(file)).sources] == [
        "shop.orders",
        "web.clicks",
        "web.pages",
        "east/web.views",
        "web.logs",
    ]
