"""Hooks of mkdocs: the generated parts of pages, and files of the site from outside of `docs/`."""

import posixpath
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.hooks import (
    airflow_api,
    command_line,
    lakechime_api,
    lists,
    rooms,
    yaml_reference,
)

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.html",
    "CHANGELOG.md": "changelog.html",
    "spark_apps/opal_lake/FORMAT.md": "format.html",
}
CHARTS = "tests/bench/results"
MARKER = re.compile(r"^<!-- generated: (\w+) .*-->$", re.MULTILINE)
GENERATED: dict[str, Callable[[], str]] = {
    **{name: partial(airflow_api.group, name) for name in airflow_api.GROUPS},
    "commands": command_line.page,
    "functions": lists.functions,
    "lakechime_commands": command_line.lakechime_page,
    "lakechime_errors": lakechime_api.errors,
    "lakechime_paths": lakechime_api.paths,
    "metrics": lists.metrics,
    "picture": rooms.picture,
    "properties": lists.properties,
    "tree": rooms.tree,
    "yaml": yaml_reference.page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as home page, FORMAT, the changelog and the charts."""
    targets = dict(PAGES)
    for path in (ROOT / CHARTS).glob("*.png"):
        targets[path.relative_to(ROOT).as_posix()] = f"charts/{path.name}"
    for name, target in targets.items():
        file = File(name, str(ROOT), config.site_dir, use_directory_urls=False, dest_uri=target)
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with generated parts, and with links as the site needs them.

    Links are written as they work in the repository; in the site all files are in one tree, whose
    root is `docs/`.
    """
    del config, files
    return generate(site_links(markdown, page.file.src_uri))


def site_links(markdown: str, source: str) -> str:
    """Rewrite links between files of the repository as links between pages.

    `source` is the page's path in the site's sources: `docs/` is their root there.
    """
    # The site has no page for a folder
    linked = re.sub(rf"\[([^]]+)\]\((?:\.\./)+{CHARTS}\)", rf"`{CHARTS}`", markdown)
    here = source if source in PAGES else f"docs/{source}"

    def site_link(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2]
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        in_site = in_repository.removeprefix("docs/")
        start = posixpath.dirname(source) or "."
        return f"]({posixpath.relpath(in_site, start)}{anchor or ''})"

    return re.sub(r"\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)", site_link, linked)


def generate(markdown: str) -> str:
    """Return a page with the generated parts in place of their markers."""
    return MARKER.sub(lambda marker: GENERATED[marker[1]](), markdown)
