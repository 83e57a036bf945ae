"""The `*.opal.yaml` files below a folder, and what each of them says."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from airflow_provider_opal.templates.yaml.models.mistakes import explained
from airflow_provider_opal.templates.yaml.models.mutation import MutationModel
from airflow_provider_opal.templates.yaml.models.rules import doubts, findings, mutation_findings
from airflow_provider_opal.templates.yaml.models.run_options import DefaultArgs, SparkModel
from airflow_provider_opal.templates.yaml.models.version_1 import (
    MODELS,
    DagModel,
    FileModel,
    MaintenanceModel,
    MutationsFile,
    Options,
)
from airflow_provider_opal.templates.yaml.text.problem import (
    START,
    Keys,
    Position,
    Problem,
    YamlError,
    advice,
)
from airflow_provider_opal.templates.yaml.text.reader import MAX_BYTES, Document, read_document
from opal_lake.errors import InvalidInputError, NotFoundError

SUFFIX = ".opal.yaml"
_NEARLY = (".opal.yml", ".opal.json", ".opal.yaml.txt")
M = TypeVar("M", bound=BaseModel)
_BY_NAME = (SparkModel, MaintenanceModel, DefaultArgs)
_MINE = "x-"  # keys at the top for the writer's own anchors


@dataclass(slots=True)
class YamlFile:
    """A file: its sound pipelines, and what is wrong with the others."""

    path: Path
    name: str
    document: Document = field(default_factory=Document)
    dags: dict[str, DagModel] = field(default_factory=dict)
    mutations: dict[str, MutationModel] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def position(self, dag_id: str, *keys: str | int) -> Position:
        """Of a pipeline, or of a value in it."""
        return self.document.key_position((self._kind(dag_id), dag_id, *keys))

    def problem(self, dag_id: str, what: str, *keys: str | int) -> Problem:
        """A finding in one of its pipelines."""
        at: Keys = (self._kind(dag_id), dag_id, *keys)
        return Problem(
            self.name,
            self.document.key_position(at) if not keys else self.document.position(at),
            at,
            what,
        )

    def _kind(self, dag_id: str) -> str:
        return "mutations" if dag_id in self.mutations and dag_id not in self.dags else "dags"

    def drop(self, dag_id: str) -> None:
        """Without it the others of the file live on."""
        self.dags.pop(dag_id, None)
        self.mutations.pop(dag_id, None)

    def doubts(self) -> Iterator[Problem]:
        """What works and may surprise, where the pipeline says it, or `defaults` do."""
        for dag_id, dag in self.dags.items():
            for way, what in doubts(dag):
                at: Keys = ("dags", dag_id, *way)
                written_at = at if at in self.document.values else ("defaults", *way)
                yield Problem(self.name, self.document.position(written_at), at, what, "warning")


def yaml_files(path: Path) -> list[YamlFile]:
    """A file, or all below a folder in the order of their names, read."""
    if path.is_file() and not path.name.endswith(SUFFIX):
        raise InvalidInputError(
            f"{path} is ignored because of its name; rename it to end in {SUFFIX}, or name a folder"
        )
    if path.is_file():
        return [read_yaml(path, path.parent, shown_in=path.parent)]
    if not path.is_dir():
        raise NotFoundError(
            f"{path} is not there; name a folder of *{SUFFIX} files, or one of them"
        )
    return [read_yaml(file, path) for file in found_files(path)]


def expect_some(files: Sequence[YamlFile], path: Path) -> None:
    """A wrong folder must not pass for a sound one."""
    if not files:
        raise NotFoundError(
            f"there is no *{SUFFIX} file below {path}; `opal dag new orders` writes one to begin with"
        )


def found_files(folder: Path) -> Iterator[Path]:
    """In the order of their names. Links to folders are not followed, and what begins with a dot is left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        yield from (
            Path(parent, name)
            for name in sorted(names)
            if name.endswith(SUFFIX) and not name.startswith(".")
        )


def nearly_found(folder: Path) -> Iterator[Path]:
    """Files whose endings are nearly right."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(_NEARLY))


def read_yaml(path: Path, folder: Path, shown_in: Path | None = None) -> YamlFile:
    """Never fails: what is wrong is in it."""
    file = YamlFile(path=path, name=os.path.relpath(path, shown_in or folder))
    try:
        file.document = read_document(_bytes(path, folder))
    except YamlError as error:
        file.problems = [Problem(file.name, error.position, (), str(error))]
        return file
    problems = _checked(file)
    file.problems = sorted(problem.of(file.name) for problem in set(problems))
    if any(problem.dag_id is None for problem in file.problems):
        file.dags, file.mutations = {}, {}
    for problem in file.problems:
        file.drop(problem.dag_id or "")
    return file


def _bytes(path: Path, folder: Path) -> bytes:
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise YamlError(
            START, "this is a link to a file outside of the folder; copy the file into it"
        )
    try:
        if not stat.S_ISREG(os.stat(real).st_mode):
            raise YamlError(START, "this is no file; put a YAML file in its place")
        with real.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise YamlError(
            START, f"the file cannot be read ({error.strerror}); give Airflow's user the right to"
        ) from error


def _checked(file: YamlFile) -> list[Problem]:
    document = file.document
    value = document.value
    if value is None:
        return [
            Problem(
                "", START, (), "the file is empty; `opal dag new orders` writes one to begin with"
            )
        ]
    if not isinstance(value, dict):
        return [
            Problem(
                "",
                document.position(()),
                (),
                "a mapping is needed; begin with 'version: 1' and 'dags:'",
            )
        ]
    value = {key: inner for key, inner in value.items() if not key.startswith(_MINE)}
    model = _model_of(value, document)
    if isinstance(model, Problem):
        return [*document.problems, model]
    problems = list(document.problems)
    try:
        model.model_validate(value)
    except ValidationError as error:
        problems += [
            problem
            for problem in explained(error, document, model)
            if not _known(problem, document.problems)
        ]
    whole = [problem for problem in problems if problem.dag_id is None]
    if whole:
        return problems
    defaults = Options.model_validate(value.get("defaults") or {})
    broken = {problem.dag_id for problem in problems}
    for dag_id, body in _bodies(value, "dags", broken):
        dag = with_defaults(DagModel.model_validate(body), defaults)
        file.dags[dag_id] = dag
        problems += [
            _finding(document, ("dags", dag_id, *way), what) for way, what in findings(dag)
        ]
    for dag_id, body in _bodies(value, "mutations", broken):
        mutation = with_defaults(MutationModel.model_validate(body), defaults)
        file.mutations[dag_id] = mutation
        problems += [
            _finding(document, ("mutations", dag_id, *way), what)
            for way, what in mutation_findings(mutation)
        ]
    return problems


def _bodies(value: dict[str, Any], kind: str, broken: set[str | None]) -> list[tuple[str, Any]]:
    found = value.get(kind)
    return (
        [(dag_id, body) for dag_id, body in found.items() if dag_id not in broken]
        if isinstance(found, dict)
        else []
    )


def _known(problem: Problem, before: list[Problem]) -> bool:
    """Whether the reader refused the same value: its replacement is not reported again."""
    return any(problem.at[: len(earlier.at)] == earlier.at for earlier in before if earlier.at)


def _finding(document: Document, at: Keys, what: str) -> Problem:
    position = document.position(at) if at in document.values else document.key_position(at[:2])
    return Problem("", position, at, what)


def _model_of(
    value: dict[str, Any], document: Document
) -> type[FileModel | MutationsFile] | Problem:
    newest = max(MODELS)
    if "version" not in value:
        near = [key for key in value if advice(key, ["version"]).startswith("did you mean")]
        hint = (
            f"rename {near[0]!r} to 'version'"
            if near
            else f"add 'version: {newest}' as the first line"
        )
        return Problem(
            "",
            document.key_position((near[0],)) if near else document.position(()),
            ("version",),
            f"is missing; {hint}",
        )
    version = value["version"]
    if isinstance(version, bool) or not isinstance(version, int) or version not in MODELS:
        what = f"version {version!r} is not known; write 'version: {newest}', or install a newer airflow-provider-opal"
        return Problem("", document.position(("version",)), ("version",), what)
    with_tables, without = MODELS[version]
    return without if "mutations" in value and "dags" not in value else with_tables


def with_defaults(dag: M, defaults: Options) -> M:
    """What the pipeline says counts. `spark` (and its settings), `maintenance` and `default_args` are joined by name, the rest replaced."""
    return _joined(dag, defaults)


def _joined(own: M, base: BaseModel) -> M:
    update: dict[str, Any] = {}
    for name in base.model_fields_set:
        if name not in type(own).model_fields:  # a default of tables, and this is none
            continue
        theirs, ours = getattr(base, name), getattr(own, name)
        if name not in own.model_fields_set:
            update[name] = theirs
        elif isinstance(ours, _BY_NAME) and isinstance(theirs, _BY_NAME):
            update[name] = _joined(ours, theirs)
        elif isinstance(ours, dict) and isinstance(theirs, dict):
            update[name] = theirs | ours
    return own.model_copy(update=update)
