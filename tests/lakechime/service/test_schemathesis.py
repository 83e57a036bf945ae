"""Whatever is sent, the answer is one that the OpenAPI document names, and never a bug. Of the mounted app the cluster's tests show it."""

from pathlib import Path

import pytest

from tests.fixtures_lakechime import fuzz, serving


@pytest.mark.parametrize("examples", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_answers_fit_the_document(tmp_path: Path, examples: int) -> None:
    with serving(f"sqlite:///{tmp_path}/lakechime.db") as served:
        asked = fuzz(served.url, served.tokens["admin"], examples)
    assert {"POST /v1/events", "POST /v1/events/query", "PUT /v1/watermark", "DELETE /v1/tokens/{name}"} <= {*asked}
