"""The `*.opal.yaml` files below a folder, their pipelines and their problems."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from airflow_provider_opal.templates.yaml.models.mistakes import explained
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.rules import (
    doubts,
    findings,
    mutation_findings,
    script_findings,
)
from airflow_provider_opal.templates.yaml.models.run_options import DefaultArgs, SparkModel
from airflow_provider_opal.templates.yaml.models.script import ScriptModel
from airflow_provider_opal.templates.yaml.models.version_1 import (
    MODELS,
    AnyFile,
    DagModel,
    MaintenanceModel,
    Options,
)
from airflow_provider_opal.templates.yaml.text.problem import (
    KINDS,
    START,
    Keys,
    Position,
    Problem,
    YamlError,
    near_name,
)
from airflow_provider_opal.templates.yaml.text.reader import MAX_BYTES, Document, read_document
from opal_lake.errors import InvalidInputError, NotFoundError

SUFFIX = ".opal.yaml"
_NEARLY = (".opal.yml", ".opal.json", ".opal.yaml.txt")
M = TypeVar("M", bound=BaseModel)
_BY_NAME = (SparkModel, MaintenanceModel, DefaultArgs)
_OWN_KEYS = "x-"  # prefix of keys at the top for the writer's own anchors


@dataclass(slots=True)
class YamlFile:
    """A file: its sound pipelines, and the problems of its faulty ones."""

    path: Path
    name: str
    document: Document = field(default_factory=Document)
    dags: dict[str, DagModel] = field(default_factory=dict)
    mutations: dict[str, MutationModel] = field(default_factory=dict)
    scripts: dict[str, ScriptModel] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def position(self, dag_id: str, *keys: str | int) -> Position:
        """Return the position of a pipeline, or of a value in it."""
        return self.document.key_position((self._kind(dag_id), dag_id, *keys))

    def problem(self, dag_id: str, what: str, *keys: str | int) -> Problem:
        """Return a finding in one of the pipelines."""
        at: Keys = (self._kind(dag_id), dag_id, *keys)
        if keys:
            position = self.document.position(at)
        else:
            position = self.document.key_position(at)
        return Problem(self.name, position, at, what)

    def _kind(self, dag_id: str) -> str:
        by_kind: dict[str, Mapping[str, Any]]
        by_kind = {"dags": self.dags, "mutations": self.mutations, "scripts": self.scripts}
        kinds = (kind for kind, members in by_kind.items() if dag_id in members)
        return next(kinds, "dags")

    def drop(self, dag_id: str) -> None:
        """Remove a faulty pipeline; the others of the file stay."""
        self.dags.pop(dag_id, None)
        self.mutations.pop(dag_id, None)
        self.scripts.pop(dag_id, None)

    def doubts(self) -> Iterator[Problem]:
        """Yield warnings about settings that work but may surprise.

        The position of a warning is in the pipeline, or in `defaults`.
        """
        for dag_id, dag in self.dags.items():
            for keys, what in doubts(dag):
                at: Keys = ("dags", dag_id, *keys)
                position = self.document.position(at)
                if at not in self.document.values:
                    position = self.document.position(("defaults", *keys))
                yield Problem(self.name, position, at, what, "warning")


def yaml_files(path: Path) -> list[YamlFile]:
    """Read a file, or all files below a folder in the order of their names."""
    if path.is_file() and not path.name.endswith(SUFFIX):
        raise InvalidInputError(
            f"{path} is ignored because of its name; rename it to end in {SUFFIX}, or name a folder"
        )
    if path.is_file():
        return [read_yaml(path, path.parent, shown_in=path.parent)]
    if not path.is_dir():
        raise NotFoundError(
            f"{path} does not exist; name a folder of *{SUFFIX} files, or one of them"
        )
    return [read_yaml(file, path) for file in found_files(path)]


def expect_some(files: Sequence[YamlFile], path: Path) -> None:
    """Raise NotFoundError if no file was found: a wrong folder must not look sound."""
    if not files:
        raise NotFoundError(
            f"no *{SUFFIX} files below {path}; `opal dag new orders` writes one to begin with"
        )


def found_files(folder: Path) -> Iterator[Path]:
    """Yield the YAML files below a folder, in the order of their names.

    Links to folders are not followed, and names that begin with a dot are left out.
    """
    for path in _walked(folder):
        if path.name.endswith(SUFFIX) and not path.name.startswith("."):
            yield path


def nearly_found(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder whose endings are nearly right."""
    for path in _walked(folder):
        if path.name.endswith(_NEARLY):
            yield path


def _walked(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        # os.walk visits the folders that stay in this list, in its order
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        folders.sort()
        for name in sorted(names):
            yield Path(parent, name)


def read_yaml(path: Path, folder: Path, shown_in: Path | None = None) -> YamlFile:
    """Read a file. All mistakes become its problems."""
    file = YamlFile(path=path, name=os.path.relpath(path, shown_in or folder))
    try:
        file.document = read_document(_bytes(path, folder))
    except YamlError as error:
        file.problems = [Problem(file.name, error.position, (), str(error))]
        return file
    problems = _add_pipelines(file)
    file.problems = sorted(problem.of(file.name) for problem in set(problems))
    for problem in file.problems:
        if problem.dag_id is not None:
            file.drop(problem.dag_id)
    return file


def _bytes(path: Path, folder: Path) -> bytes:
    # Otherwise a link in a repository could show other files of the machine
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise YamlError(
            START, "this is a link to a file outside of the folder; copy the file into it"
        )
    try:
        # Reading a pipe would wait for its writer
        if not stat.S_ISREG(os.stat(real).st_mode):
            raise YamlError(START, "this is not a file; put a YAML file in its place")
        with real.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)  # one byte more, to detect a file that is too large
    except OSError as error:
        raise YamlError(
            START, f"the file cannot be read ({error.strerror}); let Airflow's user read it"
        ) from error


def _add_pipelines(file: YamlFile) -> list[Problem]:
    """Add the pipelines of a readable file to it, and return its problems.

    A file with a problem that concerns all of it gets no pipelines.
    """
    document = file.document
    value = document.value
    if value is None:
        what = "the file is empty; `opal dag new orders` writes one to begin with"
        return [Problem("", START, (), what)]
    if not isinstance(value, dict):
        what = "a mapping is needed; begin with 'version: 1' and 'dags:'"
        return [Problem("", document.position(()), (), what)]
    value = _without_own_keys(value)
    model = _model_of(value, document)
    if isinstance(model, Problem):
        return [*document.problems, model]
    problems = list(document.problems)
    try:
        model.model_validate(value)
    except ValidationError as error:
        known = document.problems
        mistakes = explained(error, document, model)
        problems += [mistake for mistake in mistakes if not _is_known(mistake, known)]
    if any(problem.dag_id is None for problem in problems):  # it concerns the whole file
        return problems
    defaults = Options.model_validate(value.get("defaults") or {})
    broken = {problem.dag_id for problem in problems}
    problems += _pipeline_problems(file, value, defaults, broken)
    return problems


def _without_own_keys(value: dict[str, Any]) -> dict[str, Any]:
    """Return the top of a file without the writer's own keys."""
    return {key: inner for key, inner in value.items() if not key.startswith(_OWN_KEYS)}


def _pipeline_problems(
    file: YamlFile, value: dict[str, Any], defaults: Options, broken: set[str | None]
) -> Iterator[Problem]:
    """Yield the problems within pipelines, and add these to the file."""
    document = file.document
    for dag_id, body in _bodies(value, "dags", broken):
        dag = with_defaults(DagModel.model_validate(body), defaults)
        file.dags[dag_id] = dag
        for keys, what in findings(dag):
            yield _finding(document, ("dags", dag_id, *keys), what)
    for dag_id, body in _bodies(value, "mutations", broken):
        mutation = with_defaults(MutationModel.model_validate(body), defaults)
        file.mutations[dag_id] = mutation
        for keys, what in mutation_findings(mutation):
            yield _finding(document, ("mutations", dag_id, *keys), what)
    for dag_id, body in _bodies(value, "scripts", broken):
        script = with_defaults(ScriptModel.model_validate(body), defaults)
        file.scripts[dag_id] = script
        for keys, what in script_findings(script, file.path.parent):
            yield _finding(document, ("scripts", dag_id, *keys), what)


def _bodies(value: dict[str, Any], kind: str, broken: set[str | None]) -> list[tuple[str, Any]]:
    """Return the ids and bodies of the pipelines of a kind that have no problem yet."""
    pipelines = value.get(kind)
    if not isinstance(pipelines, dict):
        return []
    bodies = []
    for dag_id, body in pipelines.items():
        if dag_id not in broken:
            bodies.append((dag_id, body))
    return bodies


def _is_known(problem: Problem, before: list[Problem]) -> bool:
    """Return whether the reader has already reported the value of a problem.

    The reader puts another value in its place, and a problem of that one would mislead.
    """
    for earlier in before:
        is_below = problem.at[: len(earlier.at)] == earlier.at
        if earlier.at and is_below:
            return True
    return False


def _finding(document: Document, at: Keys, what: str) -> Problem:
    """Return a problem at a value, or at its pipeline if the value is not written."""
    if at in document.values:
        position = document.position(at)
    else:
        position = document.key_position(at[:2])
    return Problem("", position, at, what)


def _model_of(value: dict[str, Any], document: Document) -> AnyFile | Problem:
    """Return the model of a file's version, or the problem of its version."""
    newest = max(MODELS)
    if "version" not in value:
        misspelt = next((key for key in value if near_name(key, ["version"])), None)
        if misspelt is None:
            position, hint = document.position(()), f"add 'version: {newest}' as the first line"
        else:
            position, hint = document.key_position((misspelt,)), f"rename {misspelt!r} to 'version'"
        return Problem("", position, ("version",), f"is missing; {hint}")
    version = value["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version not in MODELS:
        what = (
            f"version {version!r} is not known; write 'version: {newest}', "
            "or install a newer airflow-provider-opal"
        )
        return Problem("", document.position(("version",)), ("version",), what)
    models = MODELS[version]
    kind = next((kind for kind in models if kind in value), KINDS[0])
    return models[kind]


def with_defaults(dag: M, defaults: Options) -> M:
    """Return a pipeline with the defaults of its file.

    The pipeline's own values win. `spark` (and its settings), `maintenance` and `default_args` are
    joined by name, the other keys replaced.
    """
    return _joined(dag, defaults)


def _joined(own: M, base: BaseModel) -> M:
    """Return a model with the values of a base where it has none."""
    update: dict[str, Any] = {}
    for name in base.model_fields_set:
        if name not in type(own).model_fields:  # a default for tables, and this is a mutation
            continue
        default, value = getattr(base, name), getattr(own, name)
        if name not in own.model_fields_set:
            update[name] = default
        elif isinstance(value, _BY_NAME) and isinstance(default, _BY_NAME):
            update[name] = _joined(value, default)
        elif isinstance(value, dict) and isinstance(default, dict):
            update[name] = default | value
    return own.model_copy(update=update)
