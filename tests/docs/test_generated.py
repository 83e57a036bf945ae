"""The generated parts of the docs hold everything that they are generated from."""

import argparse
import json
import posixpath
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import airflow_provider_opal
from docs.hooks import airflow_api, command_line, lakechime_api, lists, rooms, yaml_reference
from docs.hooks.site import GENERATED, MARKER, PAGES, ROOT, generate, site_links
from lakechime.cli import build_parser as lakechime_parser
from lakechime.remote.problems import PROBLEMS
from lakechime.service.access import BY_TOKEN
from lakechime.service.app import create_app
from opal_lake.cli import build_parser
from opal_lake.definition.conditions.parser import FUNCTIONS, parse
from opal_lake.definition.properties import PROPERTIES
from opal_stream.tracking.metrics import HELP
from tests.docs.build import PAGES as SOURCES
from tests.docs.build import page_text
from tests.fixtures_cli import metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

LINTED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from parsers(inner)


@pytest.mark.usefixtures("opal_commands")
def test_the_command_line_page_has_every_command_and_option() -> None:
    page = command_line.page()
    for parser in parsers(build_parser()):
        assert parser.prog == "opal" or f" {parser.prog}\n" in page
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help", "--version") or option in page, (
                    f"{parser.prog} {option}"
                )
    assert "%(default)s" not in page


def test_the_lakechime_page_has_every_command_option_path_and_error() -> None:
    page = command_line.lakechime_page()
    for parser in parsers(lakechime_parser()):
        assert parser.prog == "lakechime" or f" {parser.prog}\n" in page
        for action in parser._actions:
            for option in action.option_strings:
                assert option in ("-h", "--help", "--version") or option in page, (
                    f"{parser.prog} {option}"
                )
    assert "%(default)s" not in page
    document = create_app(lambda: pytest.fail("nothing is asked"), BY_TOKEN).openapi()
    assert set(re.findall(r" (/\S+)`", lakechime_api.paths())) == {
        *document["paths"],
        "/openapi.json",
    }
    assert set(re.findall(r"\d \| `(\w+)`", lakechime_api.errors())) == {
        problem.name for problem in PROBLEMS
    }


def test_the_yaml_page_has_every_key_of_the_published_schema() -> None:
    page, schema = (
        yaml_reference.page(),
        json.loads(yaml_reference.SCHEMA.read_text(encoding="utf-8")),
    )
    sections = {
        section.partition("\n")[0].strip("`"): section for section in page.split("### ")[1:]
    }
    places = yaml_reference.paths(schema)
    assert places.keys() == schema["$defs"].keys()
    models = {"Top level": schema} | {places[name]: schema["$defs"][name] for name in places}
    for name, model in models.items():
        assert not [key for key in model["properties"] if f"`{key}`" not in sections[name]], name
    anchors = {yaml_reference.anchor(title) for title in sections}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors


def test_the_reference_has_every_name_of_the_provider() -> None:
    names = [name for group in airflow_api.GROUPS.values() for name in group]
    assert sorted(names) == sorted(airflow_provider_opal.__all__)
    for group in airflow_api.GROUPS:
        for name in airflow_api.GROUPS[group]:
            assert f"### `{name}`" in airflow_api.group(group)
    pages = "\n".join(airflow_api.group(group) for group in airflow_api.GROUPS)
    assert re.findall(r"^\| `(\w+)` \| [^|]* \|  \|", pages, re.MULTILINE) == []


def test_the_reference_lists_every_property_metric_and_function() -> None:
    assert set(re.findall(r"^\| `(\w+)`", lists.properties(), re.MULTILINE)) == set(PROPERTIES)
    assert set(re.findall(r"^\| `(\w+)`", lists.metrics(), re.MULTILINE)) == set(HELP)
    assert set(re.findall(r"^\| `(\w+)`", lists.functions(), re.MULTILINE)) == set(FUNCTIONS)


def test_the_page_of_conditions_shows_conditions() -> None:
    page = (ROOT / "docs/reference/conditions.md").read_text(encoding="utf-8")
    shown = re.findall(r"^    (?!the delete|comparable| )(.+)", page, re.MULTILINE)
    assert len(shown) == 4
    for text in shown:
        parse(text)


def test_the_picture_has_the_floors_that_imports_are_checked_by() -> None:
    houses = rooms.houses()
    assert [*houses, "pyspark_opal"] == LINTED[
        "root_packages"
    ]  # which is one line, and has no rooms
    for contract in LINTED["contracts"]:
        if "containers" in contract:
            [package] = contract["containers"]
            floors = [tuple(re.split(r" [|:] ", layer)) for layer in contract["layers"]]
            assert houses[package].floors == tuple(floors)
    svg = rooms.picture()
    for house in houses.values():
        for room in (room for floor in house.floors for room in floor):
            path = rooms.SOURCES[house.name] / house.name / room
            assert path.is_dir() or path.with_suffix(".py").is_file(), path
            assert f">{room}</text>" in svg
    assert "\n\n" not in svg


def test_the_tree_has_every_package() -> None:
    packages = [
        path.parent
        for name, folder in rooms.SOURCES.items()
        for path in (folder / name).rglob("__init__.py")
    ]
    assert sorted(re.findall(r"^ *- `(\w+)`: \S", rooms.tree(), re.MULTILINE)) == sorted(
        path.name for path in packages
    )


@pytest.mark.usefixtures("opal_commands")
def test_every_marker_is_known_and_every_part_is_in_a_page() -> None:
    named = [name for page in SOURCES for name in MARKER.findall(page_text(page))]
    assert sorted(named) == sorted(GENERATED)
    assert not [page for page in SOURCES if "<!-- generated" in generate(page_text(page))]


def test_links_that_work_in_the_repository_work_in_the_site() -> None:
    pages = {*(page.removeprefix("docs/") for page in SOURCES if page.startswith("docs/")), *PAGES}
    for page in SOURCES:
        source = page.removeprefix("docs/")
        for link in re.findall(r"\]\((?!http)([^)#\s]+)[)#]", site_links(page_text(page), source)):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
            is_chart = target.endswith(".png") and (ROOT / target).is_file()
            assert target in pages or is_chart, f"{page}: {target}"


def test_the_site_is_built_strictly_and_names_no_other_host(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text(encoding="utf-8")
        for path in (tmp_path / "site").rglob("*.html")
    }
    loaded = {
        name: re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=\"?((?:https?:)?//[^\s\">]+)", text
        )
        for name, text in built.items()
    }
    assert not {name: names for name, names in loaded.items() if names}
    assert "OpalTable" in built["reference/opal-table.html"]
    assert "<svg" in built["explanation/architecture.html"]
