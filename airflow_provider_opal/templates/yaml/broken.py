"""A broken YAML file as Airflow's import error of that file, without effect on other DAGs.

An exception in the loader would be the loader's error, and Airflow takes all DAGs of a file with an
error out of service. So a broken file becomes a DAG that cannot be serialized. Airflow's DAG
processor records this error under the DAG's own `relative_fileloc`, here the YAML file, and goes
on. Everywhere else (`airflow dags test`, a DagBag in a test) one such DAG would end the whole run.
There its `validate` fails: an import error of the loader, which does not affect the other DAGs.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import DAG

from airflow_provider_opal.templates.yaml.text.problem import Problem
from opal_lake.errors import InvalidInputError


class BrokenYaml(DAG):
    """A DAG in place of a YAML file's faulty pipelines.

    It never reaches Airflow's database.
    """

    def __init__(
        self, path: Path, problems: Sequence[Problem], all_problems: Sequence[Problem]
    ) -> None:
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        super().__init__(f"opal_broken_yaml_{digest}", tags=["opal"])
        self.path = path
        self.problems = tuple(problems)
        self.all_problems = tuple(all_problems)

    @property
    def relative_fileloc(self) -> str | None:
        """The location of the YAML file; the importer sets that of the loader."""
        loader: str | None = self.__dict__.get("_loader")
        if loader is None:
            return None
        from_loader = os.path.relpath(self.path, os.path.dirname(self.fileloc))
        return os.path.normpath(os.path.join(os.path.dirname(loader), from_loader))

    @relative_fileloc.setter
    def relative_fileloc(self, loader: str | None) -> None:
        self.__dict__["_loader"] = loader

    def validate(self) -> None:
        """Raise the problems, except in the DAG processor.

        Airflow calls this before it adds a DAG to a bag. A bag has only one message for the loader,
        so this message has the problems of all files.
        """
        if not is_dag_processor():
            raise InvalidInputError(message_of(self.all_problems))
        super().validate()  # type: ignore[no-untyped-call]  # Airflow's has no types

    def get_serialized_fields(self) -> NoReturn:  # type: ignore[override]  # never returns
        """Raise the problems when Airflow serializes the DAG."""
        # Airflow would wrap any other exception in words about this DAG
        from airflow.exceptions import SerializationError

        raise SerializationError(message_of(self.problems))


def is_dag_processor() -> bool:
    """Return whether DAGs are parsed for Airflow's database, in a process of its own."""
    return os.environ.get("_AIRFLOW_PROCESS_CONTEXT") == "client"


def message_of(problems: Sequence[Problem]) -> str:
    """Return a line for each problem."""
    return "\n" + "\n".join(map(str, problems))


def register_broken(
    path: Path, problems: Sequence[Problem], all_problems: Sequence[Problem]
) -> Any:
    """Register the DAG of a broken file with Airflow, by a `with` like every DAG."""
    with BrokenYaml(path, problems, all_problems) as dag:
        return dag
