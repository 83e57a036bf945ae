"""Links of README, docs, changelog and FORMAT.md lead to existing files and headings."""

import re
from pathlib import Path

import pytest

from tests.docs.build import PAGES, ROOT, page_text

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
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(linked), f"{page}: {target}"


def test_named_pages_of_the_docs_exist() -> None:
    """Messages, docstrings and the changelog."""
    sources = [
        path
        for folder in ("airflow_provider_opal", "spark_apps", "tests/bench")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for path in (*sources, ROOT / "CHANGELOG.md", ROOT / "Makefile"):
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8")):
            assert (ROOT / page).is_file(), f"{path}: {page}"
    assert not [
        str(path) for path in sources if re.search(r"\bREADME\b", path.read_text(encoding="utf-8"))
    ], "README is short: name a page"


def test_the_files_that_the_architecture_names_exist() -> None:
    named = re.findall(
        r"`((?:opal_lake|opal_spark|airflow_provider_opal)/[\w/.]+)`",
        page_text("docs/explanation/architecture.md"),
    )
    assert len(named) > 10
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not [path for path in missing if not (ROOT / "spark_apps" / path).exists()]
