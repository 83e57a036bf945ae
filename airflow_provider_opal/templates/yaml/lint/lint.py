"""The checks of `opal dag lint`: of each file, of all files together, and of the lake's tables."""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_provider_opal.templates.short_spans import ShortSpanWarning
from airflow_provider_opal.templates.yaml.files import (
    YamlFile,
    expect_some,
    nearly_found,
    yaml_files,
)
from airflow_provider_opal.templates.yaml.lint.graph import Pipeline, between, pipelines_of
from airflow_provider_opal.templates.yaml.loader import built, distinct
from airflow_provider_opal.templates.yaml.text.problem import START, Problem, dotted


@dataclass(slots=True)
class Report:
    """The files that lint checked, and its findings."""

    files: int = 0
    pipelines: int = 0
    problems: list[Problem] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[Problem]:
        return [problem for problem in self.problems if problem.kind in kinds]

    def to_json(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "pipelines": self.pipelines,
            "problems": [problem_json(problem) for problem in self.problems],
        }


def problem_json(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.position.line,
        "column": problem.position.column,
        "at": dotted(problem.at),
        "kind": problem.kind,
        "message": problem.what,
    }


def lint(path: Path, *, lake: bool = False) -> Report:
    """Check a file, or a folder and everything below it."""
    folder = path if path.is_dir() else path.parent
    files = list(distinct(yaml_files(path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortSpanWarning)  # reported with its position below
        for file in files:
            built(file)  # adds the pipelines that Airflow rejects to the problems
    pipelines = list[Pipeline]()
    findings = list[Problem]()
    for file in files:
        pipelines += pipelines_of(file)
        findings += file.problems
        findings += file.doubts()
    findings += _columns(files)
    if path.is_dir():
        python, failed = _python(path)
        nearly = list(_nearly(path))
        if not (python or failed or nearly):
            expect_some(files, path)
        findings += [*failed, *nearly, *_duplicate_ids(pipelines, python)]
        pipelines += python
    if lake:
        pipelines, from_lake = _lake(files, pipelines)
        findings += from_lake
    findings += between(pipelines)
    shown_in = os.path.relpath(folder)
    problems = []
    # A set, because several checks may find the same mistake
    for problem in set(findings):
        shown_file = os.path.normpath(os.path.join(shown_in, problem.file))
        problems.append(replace(problem, file=shown_file))
    sound = sum(len(file.dags) + len(file.mutations) + len(file.scripts) for file in files)
    return Report(files=len(files), pipelines=sound, problems=sorted(problems))


def _python(folder: Path) -> tuple[list[Pipeline], list[Problem]]:
    from airflow_provider_opal.templates.yaml.lint.python import has_python, python_pipelines

    if not has_python(folder):
        return [], []
    return python_pipelines(folder.resolve())


def _columns(files: list[YamlFile]) -> list[Problem]:
    from airflow_provider_opal.templates.yaml.lint.columns import of_the_schemas

    findings = list[Problem]()
    for file in files:
        findings += of_the_schemas(file)
    return findings


def _lake(files: list[YamlFile], pipelines: list[Pipeline]) -> tuple[list[Pipeline], list[Problem]]:
    from airflow_provider_opal.templates.yaml.lint.lake import (
        connections,
        lake_findings,
        resolved,
    )

    from_lake = list[Problem]()
    with connections():
        for file in files:
            from_lake += lake_findings(file)
        return resolved(pipelines), from_lake


def _nearly(folder: Path) -> Iterator[Problem]:
    for path in nearly_found(folder):
        file = os.path.relpath(path, folder)
        what = "the file is ignored because of its name; rename it to end in '.opal.yaml'"
        yield Problem(file, START, (), what, "warning")


def _duplicate_ids(pipelines: list[Pipeline], python: list[Pipeline]) -> Iterator[Problem]:
    others = {pipeline.dag_id: pipeline for pipeline in python}
    for pipeline in pipelines:
        other = others.get(pipeline.dag_id)
        if other:
            origin = f"{other.file}:{other.position.line}"
            yield pipeline.problem(
                f"the DAG {pipeline.dag_id!r} is already made in {origin}; choose another id"
            )
