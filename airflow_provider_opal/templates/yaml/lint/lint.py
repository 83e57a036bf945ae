"""Everything that can be known of YAML files before they run: each file, all of them together, and the lake's tables if asked."""

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
    """A file, or a folder with all that lies below it."""
    folder = path if path.is_dir() else path.parent
    files = list(distinct(yaml_files(path)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShortSpanWarning)  # reported with its position below
        for file in files:
            built(file)  # what Airflow itself has against a pipeline
    pipelines = [pipeline for file in files for pipeline in pipelines_of(file)]
    findings = [problem for file in files for problem in (*file.problems, *file.doubts())]
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
    named = [
        replace(problem, file=os.path.normpath(os.path.join(shown_in, problem.file)))
        for problem in set(findings)
    ]
    return Report(
        files=len(files),
        pipelines=sum(len(file.dags) + len(file.mutations) for file in files),
        problems=sorted(named),
    )


def _python(folder: Path) -> tuple[list[Pipeline], list[Problem]]:
    from airflow_provider_opal.templates.yaml.lint.python import has_python, python_pipelines

    return python_pipelines(folder.resolve()) if has_python(folder) else ([], [])


def _columns(files: list[YamlFile]) -> list[Problem]:
    from airflow_provider_opal.templates.yaml.lint.columns import of_the_schemas

    return [problem for file in files for problem in of_the_schemas(file)]


def _lake(files: list[YamlFile], pipelines: list[Pipeline]) -> tuple[list[Pipeline], list[Problem]]:
    from airflow_provider_opal.templates.yaml.lint.lake import (
        beside_the_lake,
        connections,
        resolved,
    )

    with connections():
        return resolved(pipelines), [problem for file in files for problem in beside_the_lake(file)]


def _nearly(folder: Path) -> Iterator[Problem]:
    for path in nearly_found(folder):
        yield Problem(
            os.path.relpath(path, folder),
            START,
            (),
            "the file is ignored because of its name; rename it to end in '.opal.yaml'",
            "warning",
        )


def _duplicate_ids(pipelines: list[Pipeline], python: list[Pipeline]) -> Iterator[Problem]:
    others = {pipeline.dag_id: pipeline for pipeline in python}
    for pipeline in pipelines:
        if other := others.get(pipeline.dag_id):
            yield pipeline.problem(
                f"the DAG {pipeline.dag_id!r} is made in {other.file}:{other.position.line} already; choose another id"
            )
