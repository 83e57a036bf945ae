"""The paths of LakeChime's service, from its own routes."""

from collections.abc import Iterator

from fastapi.routing import APIRoute

from lakechime.remote.problems import PROBLEMS
from lakechime.service.access import BY_TOKEN
from lakechime.service.app import create_app
from lakechime.store.sql_store import SqlStore

_RIGHTS = {BY_TOKEN.read: "read", BY_TOKEN.write: "write", BY_TOKEN.admin: "admin"}


def paths() -> str:
    """Each path, the role that it needs, and what it does."""
    return "\n".join(["| path | role | what it does |", "|---|---|---|", *_rows()])


def errors() -> str:
    rows = sorted((problem.status, problem.name, problem.meaning) for problem in PROBLEMS)
    return "\n".join(
        [
            "| status | `error` | meaning |",
            "|---|---|---|",
            *(f"| {status} | `{name}` | {text} |" for status, name, text in rows),
        ]
    )


def _rows() -> Iterator[str]:
    for route in create_app(_no_store, BY_TOKEN).routes:
        assert isinstance(route, APIRoute)
        right = next(
            (
                _RIGHTS[inner.call]
                for inner in route.dependant.dependencies
                if inner.call in _RIGHTS
            ),
            "none",
        )
        yield f"| `{' '.join(sorted(route.methods))} {route.path}` | {right} | {' '.join(route.description.split())} |"


def _no_store() -> SqlStore:
    raise AssertionError("the documentation asks for no event")
