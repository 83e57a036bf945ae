"""Hooks of mkdocs: the generated parts of pages, and the files of the site that lie outside of `docs/`."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.hooks import command_line, lakechime_api, lists, rooms, yaml_reference

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.html",
    "CHANGELOG.md": "changelog.html",
    "spark_apps/opal_lake/FORMAT.md": "format.html",
}
CHARTS = "tests/bench/results"
MARKER = re.compile(r"^<!-- generated: (\w+) .*-->$", re.MULTILINE)
GENERATED = {
    "commands": command_line.page,
    "functions": lists.functions,
    "lakechime_commands": command_line.lakechime_page,
    "lakechime_errors": lakechime_api.errors,
    "lakechime_paths": lakechime_api.paths,
    "picture": rooms.picture,
    "properties": lists.properties,
    "tree": rooms.tree,
    "yaml": yaml_reference.page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """README is the home page; FORMAT, the changelog and the charts stay where they are."""
    charts = {
        path.relative_to(ROOT).as_posix(): f"charts/{path.name}"
        for path in (ROOT / CHARTS).glob("*.png")
    }
    for name, target in (PAGES | charts).items():
        files.append(
            File(name, str(ROOT), config.site_dir, use_directory_urls=False, dest_uri=target)
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links are written as they work in the repository; here all files lie in one tree, whose root is `docs/`."""
    del config, files
    return generate(site_links(markdown, page.file.src_uri))


def site_links(markdown: str, source: str) -> str:
    if source == "README.md":
        return markdown.replace("](docs/", "](")
    # A folder is no page
    linked = re.sub(rf"\[([^]]+)\]\(\.\./{CHARTS}\)", rf"`{CHARTS}`", markdown)
    return linked.replace("](../", "](")


def generate(markdown: str) -> str:
    """With the generated parts in place of their markers."""
    return MARKER.sub(lambda marker: GENERATED[marker[1]](), markdown)
