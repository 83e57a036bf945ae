"""Links between README, the docs, the changelog and FORMAT.md lead to files and headings of the repository."""

import re
from pathlib import Path

import pytest

from tests.docs.examples import PAGES, ROOT, page_text

LINKED = (*PAGES, "CHANGELOG.md", "spark_apps/opal_lake/FORMAT.md")


def anchors(page: Path) -> set[str]:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page_text(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(found), f"{page}: {target}"


def test_what_names_a_page_of_the_docs_names_one_that_is_there() -> None:
    """Messages, docstrings and the changelog."""
    sources = [
        path
        for folder in ("airflow_provider_opal", "spark_apps", "tests/bench")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for path in (*sources, ROOT / "CHANGELOG.md", ROOT / "Makefile"):
        for page in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text(encoding="utf-8")):
            assert (ROOT / page).is_file(), f"{path}: {page}"
    assert not [
        str(path) for path in sources if re.search(r"\bREADME\b", path.read_text(encoding="utf-8"))
    ], "README is short: name a page"


def test_the_files_that_the_architecture_names_are_there() -> None:
    named = re.findall(
        r"`((?:opal_lake|opal_spark|airflow_provider_opal)/[\w/.]+)`",
        page_text("docs/architecture.md"),
    )
    assert len(named) > 10
    assert not [
        path
        for path in named
        if not any((ROOT / above / path).exists() for above in ("", "spark_apps"))
    ]
