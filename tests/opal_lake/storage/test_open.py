"""The opening of stores by URIs."""

import subprocess
import sys
from pathlib import Path

import pytest

from opal_lake.errors import InvalidInputError
from opal_lake.storage import open_storage


@pytest.mark.parametrize(
    "uri,normalised",
    [
        ("/a/b/", "/a/b"),
        ("/a/./c/../b", "/a/b"),
        ("/", "/"),
        ("file:///a/b//", "file:///a/b"),
        ("file:/a/b", "file:///a/b"),
        ("FILE://localhost/a%20b", "file:///a%20b"),
        ("s3://lake/a b/t/", "s3://lake/a b/t"),
        ("s3a://lake", "s3a://lake"),
        ("memory://x/y/", "memory://x/y"),
    ],
)
def test_uri_is_normalised(uri: str, normalised: str) -> None:
    assert open_storage(uri).uri == normalised


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("a b/t").uri == f"{tmp_path}/a b/t"
    assert open_storage("a:b").uri == f"{tmp_path}/a:b"


def test_a_folder_by_path_and_by_uri_is_the_same_store(tmp_path: Path) -> None:
    open_storage(f"{tmp_path}/t").put_if_absent("x", b"1")
    assert open_storage(f"file://{tmp_path}/t").get("x") == b"1"
    assert open_storage(f"file:{tmp_path}/t").get("x") == b"1"


def test_memory_stores_are_shared_by_name() -> None:
    open_storage("memory://shared-by-name").put_if_absent("x", b"1")
    assert open_storage("memory://shared-by-name/").get("x") == b"1"
    assert list(open_storage("memory://another-name").list("")) == []


def test_error_of_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(
        InvalidInputError, match=r"'gs'.*file:///path.*s3://bucket/path.*s3a://.*memory://name"
    ):
        open_storage("gs://lake/t")


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "memory://",
        "file://server/share",
        "s3://",
        "s3:///t",
        "s3://lake//t",
        "s3://lake/../t",
        "s3://lake--x-s3/t",
    ],
)
def test_uri_without_a_path_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInputError):
        open_storage(uri)


@pytest.mark.parametrize("uri", ["file:foo/bar", "FILE:t", "s3:lake/t", "memory:x"])
def test_scheme_without_a_slash_makes_no_folder_of_that_name(uri: str) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"'{uri}' has no / after .*file:///path.*\./{uri}"
    ):
        open_storage(uri)


@pytest.mark.parametrize("uri", ["memory://x", "/a", "s3://lake/t"])
def test_an_unknown_option_is_refused_by_name(uri: str) -> None:
    with pytest.raises(InvalidInputError, match="colour"):
        open_storage(uri, {"colour": "blue"})


def test_boto3_is_imported_only_for_s3() -> None:
    code = (
        "from opal_lake.storage import open_storage; open_storage('/tmp/x'); "
        "open_storage('memory://x'); print('boto3' in sys.modules)"
    )
    assert _run(code) == "False"


def test_without_boto3_the_error_names_the_extra() -> None:
    code = (
        "sys.modules['boto3'] = None; from opal_lake.storage import open_storage; "
        "open_storage('s3://lake/t')"
    )
    assert "pip install 'opal-lake[s3]'" in _run(code)


def _run(code: str) -> str:
    program = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip()
