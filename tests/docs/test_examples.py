"""Rules of every example: a test runs it, and the named programs know its commands.

Python and `opal` run in test_examples_spark.py, files of Airflow in
tests/airflow_provider_opal/test_guide.py and under a real Airflow in cluster/test_examples.py next
to it.
"""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from opal_lake.cli import build_parser
from opal_lake.cli.command import OpalParser
from tests.docs.build import PAGES, ROOT, TABLE_PAGES, Example, examples, page_text
from tests.fixtures_cli import LAKE, PROVIDER, metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

PIPELINE = "docs/tutorials/pipeline.md"
# Pages whose examples run in tests/airflow_provider_opal/test_guide.py
AIRFLOW = {
    PIPELINE,
    "docs/how-to/backfills.md",
    "docs/how-to/consumers.md",
    "docs/how-to/foreign-tables.md",  # and in test_examples_lakechime.py
    "docs/how-to/operators.md",
}
STREAMING = {  # in test_examples_streaming.py
    "docs/tutorials/stream.md",
    "docs/how-to/alarms.md",
    "docs/how-to/debezium.md",
    "docs/how-to/streams.md",
}
IN_PROCESS = ["docs/how-to/constraints.md"]  # need nothing but an empty folder
PROGRAMS = {"airflow", "lakechime", "make", "mkdir", "opal", "pip", "printf", "spark-submit"}
CONSOLE = [example for page in PAGES for example in examples(page, "console")]
COMMANDS = [(example, command) for example in CONSOLE for command in example.commands]
SPANS = [
    (page, span)
    for page in PAGES
    for span in re.findall(
        r"`(opal [^`]+)`", re.sub(r"```.*?```", "", page_text(page), flags=re.DOTALL)
    )
]
MAX_README_WORDS = 700


def commands_of(program: str) -> list[tuple[Example, list[str]]]:
    return [
        (example, shlex.split(command.partition(" > ")[0])[1:])
        for example, command in COMMANDS
        if command.startswith(f"{program} ")
    ]


def test_readme_is_short_and_begins_with_what_it_is_and_two_commands() -> None:
    text = page_text("README.md")
    assert len(text.split()) <= MAX_README_WORDS
    assert text.startswith("# airflow-provider-opal\n")
    assert re.search(
        r"A mutable table on an immutable lake.*\$ make demo .*\$ make test ",
        "\n".join(text.splitlines()[:12]),
        re.DOTALL,
    )


def test_every_example_is_run_by_some_test() -> None:
    python = {page for page in PAGES if examples(page, "python")}
    assert python <= {*TABLE_PAGES, *AIRFLOW, *STREAMING, *IN_PROCESS}
    assert {page for page in PAGES if examples(page, "yaml")} == {
        "README.md",
        PIPELINE,
        "docs/how-to/columns.md",  # in templates/yaml/test_lint.py
        "docs/how-to/foreign-tables.md",
        "docs/how-to/sql-tables.md",  # in templates/yaml/test_scripts.py
    }
    assert {example.page for example, _ in commands_of("opal")} <= {
        *TABLE_PAGES,
        *STREAMING,
        "docs/how-to/clusters.md",
        "docs/reference/yaml.md",
    }
    assert {command.split()[0] for _, command in COMMANDS} == PROGRAMS
    assert {example.language for page in PAGES for example in examples(page)} == {
        "console",
        "ini",  # in test_service.py
        "python",
        "text",
        "yaml",
    }


@pytest.mark.parametrize("page", IN_PROCESS)
def test_examples_without_spark_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in examples(page, "python"):
        exec(example.text, names)


def test_a_text_is_what_the_python_before_it_prints() -> None:
    for page in PAGES:
        languages = ["", *(example.language for example in examples(page))]
        assert {before for before, language in pairwise(languages) if language == "text"} <= {
            "python"
        }, page


def test_readme_s_pipeline_is_that_of_the_airflow_guide() -> None:
    assert [example.text for example in examples("README.md", "yaml")] == [
        example.text for example in examples(PIPELINE, "yaml")
    ]


@pytest.mark.usefixtures("opal_commands")
def test_opal_knows_every_command_and_option_that_the_docs_name() -> None:
    parser = build_parser()
    for example, words in commands_of("opal"):
        assert parser.parse(words).command == words[0], example
    for page, span in SPANS:
        verb, *words = shlex.split(span)[1:]
        if verb in ("COMMAND", "--help"):
            continue
        assert verb in parser.verbs(), (page, span)
        named = parser.verbs()[verb]
        own = named.verbs() if isinstance(named, OpalParser) else {}
        if words and words[0] in own:
            named = own[words[0]]
        known = named.format_help()
        assert [word for word in words if word.startswith("--") and word not in known] == [], (
            page,
            span,
        )


def test_make_has_every_target_and_variable_that_the_docs_name() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"\$\((?:if \$\(|or \$\()?([A-Z_]+)", makefile))
    spans = [
        shlex.split(words)
        for page in PAGES
        for words in re.findall(r"`make ([^`]+)`", page_text(page))
    ]
    for words in [*spans, *(words for _, words in commands_of("make"))]:
        target, *given = words
        assert target in targets, words
        assert {word.partition("=")[0] for word in given} <= variables, words


def test_pip_can_install_what_the_docs_say() -> None:
    projects = {LAKE["name"]: LAKE, "./spark_apps": LAKE, PROVIDER["name"]: PROVIDER, ".": PROVIDER}
    for page in (*PAGES, "spark_apps/README.md"):
        for name, extras in re.findall(
            r"""['"]([a-z./_-]+)\[([a-z0-9,]+)\]['"]""", page_text(page)
        ):
            if name != "local":
                assert {*extras.split(",")} <= {*projects[name]["optional-dependencies"]}, page
    for _, words in commands_of("pip"):
        assert words[0] == "install"
        assert {word.partition("[")[0] for word in words[1:]} <= {"./spark_apps", "."}, words
