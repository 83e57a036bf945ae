"""Answers to random requests, which are always documented, and never a bug."""

from pathlib import Path

import pytest
import schemathesis

from tests.fixtures_lakechime import fuzz, is_broken, serving

PARTS = 10
NEEDED = {
    "POST /v1/events",
    "POST /v1/events/query",
    "PUT /v1/watermark",
    "DELETE /v1/token",
}


def test_answers_fit_the_document(tmp_path: Path) -> None:
    assert {*asked(tmp_path, 5, slice(None))} >= NEEDED


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_answers_to_many_requests_fit_the_document(tmp_path: Path, part: int) -> None:
    """Check every tenth operation."""
    assert asked(tmp_path, 200, slice(part, None, PARTS))


def asked(folder: Path, examples: int, part: slice) -> list[str]:
    """Return the operations that were called; each answered as the document says."""
    with serving(f"sqlite:///{folder}/lakechime.db") as served:
        return fuzz(served.url, served.tokens["admin"], examples, part)


WHOLE = {
    "/v1/watermark": (
        {"consumer": "a"},
        {"consumer": ["a"]},
        {"consumer": {"a": 1}},
        {"consumer": "a", "x": None},
        {"consumer": "a", "key": {}},
    ),
    "/v1/events/tail": (
        None,
        {"limit": "5"},
        {"limit": "5.0"},
        {"limit": [5]},
        {"after": "0", "limit": None},
    ),
}
BROKEN = {
    "/v1/watermark": (
        None,
        {"consumer": ""},
        {"consumer": []},
        {"consumer": ["a", "b"]},
        {"consumer": "a\x00"},
        {"consumer": "a", "x": "1"},
    ),
    "/v1/events/tail": (
        {"limit": "x"},
        {"limit": "5.5"},
        {"limit": "0"},
        {"limit": ""},
        {"after": "-1"},
    ),
}


def test_whether_a_case_is_broken_follows_from_what_arrives(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path}/lakechime.db") as served:
        headers = {"Authorization": f"Bearer {served.tokens['admin']}"}
        document = schemathesis.openapi.from_url(f"{served.url}/openapi.json", headers=headers)
        for queries, broken in ((WHOLE, False), (BROKEN, True)):
            for path, query in ((path, query) for path, some in queries.items() for query in some):
                case = document[path]["GET"].Case(query=query)
                assert is_broken(case) == broken, (path, query)
                assert case.call(headers=headers).status_code == (422 if broken else 200), (
                    path,
                    query,
                )
