"""The paths of LakeChime's service, from its own routes."""

from collections.abc import Iterator

from fastapi.routing import APIRoute

from lakechime.remote.problems import PROBLEMS
from lakechime.service.access import BY_TOKEN
from lakechime.service.app import create_app
from lakechime.store.sql_store import SqlStore

_RIGHTS = {BY_TOKEN.read: "read", BY_TOKEN.write: "write", BY_TOKEN.admin: "admin"}


def paths() -> str:
    """Return the table of paths: the role that each needs, and what it does."""
    return "\n".join(["| path | role | what it does |", "|---|---|---|", *_rows()])


def errors() -> str:
    """Return the table of the service's errors."""
    lines = ["| status | `error` | meaning |", "|---|---|---|"]
    problems = sorted((problem.status, problem.name, problem.meaning) for problem in PROBLEMS)
    lines += [f"| {status} | `{name}` | {meaning} |" for status, name, meaning in problems]
    return "\n".join(lines)


def _rows() -> Iterator[str]:
    for route in create_app(_no_store, BY_TOKEN).routes:
        assert isinstance(route, APIRoute)
        methods = " ".join(sorted(route.methods))
        description = " ".join(route.description.split())
        yield f"| `{methods} {route.path}` | {_role(route)} | {description} |"


def _role(route: APIRoute) -> str:
    for dependency in route.dependant.dependencies:
        if dependency.call in _RIGHTS:
            return _RIGHTS[dependency.call]
    return "none"


def _no_store() -> SqlStore:
    raise AssertionError("the documentation must not open a store")
