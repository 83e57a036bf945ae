"""Guarantees of a store in S3 alone: responses, secrets and clients."""

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest

from opal_lake.errors import InvalidInputError, NotFoundError, StorageError
from opal_lake.storage import Storage, open_storage
from opal_lake.storage.s3 import S3Storage
from opal_lake.storage.s3_client import s3_client
from tests.s3_requests import counted

SECRET = "wJalrXUtnFEMI"
OPTIONS = {
    "aws_access_key_id": "AKIAEXAMPLE",
    "aws_secret_access_key": SECRET,
    "aws_session_token": SECRET,
    "region_name": "us-east-1",
}


@contextmanager
def answering(
    *answers: tuple[int, str], bodies: list[bytes] | None = None
) -> Iterator[tuple[Storage, list[str]]]:
    """Serve the answers in order, and repeat the last one.

    Requests are recorded, and their bodies in `bodies`.
    """
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if bodies is not None:
                bodies.append(sent)
            status, code = answers[min(len(seen), len(answers) - 1)]
            seen.append(f"{self.command} {self.path} {self.headers.get('If-None-Match')}")
            body = b""
            if code:
                body = f"<Error><Code>{code}</Code><Message>try later</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.do_PUT()

        def do_POST(self) -> None:
            self.do_PUT()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    try:
        yield (
            open_storage(
                "s3://lake/t", {**OPTIONS, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
            ),
            seen,
        )
    finally:
        server.shutdown()
        server.server_close()


def test_put_is_conditional() -> None:
    with answering((200, "")) as (store, seen):
        assert store.put_if_absent("a b", b"x")
    assert seen == ["PUT /lake/t/a%20b *"]


def test_failed_precondition_means_that_the_path_exists() -> None:
    with answering((412, "PreconditionFailed")) as (store, _):
        assert not store.put_if_absent("a", b"x")


def test_conflict_with_a_request_in_flight_is_tried_again() -> None:
    with answering(
        (409, "ConditionalRequestConflict"), (409, "ConditionalRequestConflict"), (200, "")
    ) as (store, seen):
        assert store.put_if_absent("a", b"x")
    assert len(seen) == 3


def test_a_view_of_bytes_is_sent_whole_at_every_try() -> None:
    data, bodies = bytes(range(256)) * 4096, list[bytes]()
    with answering(
        (503, "SlowDown"), (409, "ConditionalRequestConflict"), (200, ""), bodies=bodies
    ) as (store, seen):
        assert store.put_if_absent("a", memoryview(data))
    assert len(seen) == 3
    assert bodies == [data] * 3


def test_conflict_without_end_is_a_storage_error() -> None:
    with (
        answering((409, "ConditionalRequestConflict")) as (store, seen),
        pytest.raises(StorageError, match="t/a"),
    ):
        store.put_if_absent("a", b"x")
    assert 3 <= len(seen) <= 10


@pytest.mark.parametrize(
    "status,code,words",
    [
        (403, "AccessDenied", "denied access.*list"),
        (403, "InvalidAccessKeyId", "denied access"),
        (403, "SignatureDoesNotMatch", "denied access"),
        (400, "ExpiredToken", "denied access"),
        (404, "NoSuchBucket", "bucket 'lake' does not exist"),
        (500, "InternalError", "500 InternalError.*try later"),
        (501, "NotImplemented", "501 NotImplemented"),
    ],
)
def test_refusal_is_a_storage_error_without_secrets(status: int, code: str, words: str) -> None:
    with answering((status, code)) as (store, _):
        calls = (
            lambda: store.get("a"),
            lambda: store.put_if_absent("a", b""),
            lambda: list(store.list("")),
            lambda: store.delete(["a"]),
        )
        for call in calls[: 1 if status == 500 else 4]:  # boto3 is patient with it
            with pytest.raises(StorageError, match=words) as caught:
                call()
            assert SECRET not in str(caught.value)


def test_missing_key_is_not_found() -> None:
    with answering((404, "NoSuchKey")) as (store, _), pytest.raises(NotFoundError, match="t/a"):
        store.get("a")


def test_truncated_response_is_a_storage_error() -> None:
    class Truncating(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"x" * 10)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Truncating)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    store = open_storage(
        "s3://lake/t", {**OPTIONS, "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
    )
    with pytest.raises(StorageError):
        store.get("a")
    server.shutdown()
    server.server_close()


def test_store_that_does_not_answer_is_a_storage_error() -> None:
    with answering((200, "")) as (store, _):
        pass
    with pytest.raises(StorageError, match="did not answer"):
        store.get("a")


def test_no_request_is_sent_without_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = open_storage(
        "s3://credentials-are-missing/users", {"endpoint_url": "http://127.0.0.1:9"}
    )
    with pytest.raises(
        StorageError, match=r"credentials for bucket .* are missing: set AWS_ACCESS_KEY_ID"
    ):
        store.get("x")


@pytest.mark.s3
def test_missing_bucket_is_a_storage_error(s3_options: dict[str, str]) -> None:
    store = open_storage("s3://no-such-bucket/t", s3_options)
    for call in (
        lambda: store.get("a"),
        lambda: store.put_if_absent("a", b""),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StorageError, match="'no-such-bucket' does not exist"):
            call()


@pytest.mark.s3
def test_markers_of_folders_and_neighbours_of_the_table_are_not_listed(
    s3_options: dict[str, str],
) -> None:
    client = s3_client(tuple(sorted(s3_options.items())))
    for key in ("marked/t/", "marked/t/data/", "marked/t/data/x", "marked/t2/y", "marked/t/a//b"):
        client.put_object(Bucket="lake", Key=key, Body=b"")
    assert [entry.path for entry in open_storage("s3a://lake/marked/t", s3_options).list("")] == [
        "data/x"
    ]


@pytest.mark.s3
def test_a_whole_bucket_can_be_a_store(s3_options: dict[str, str]) -> None:
    keys = {name: value for name, value in s3_options.items() if name != "path_style"}
    boto3.session.Session().client("s3", **keys).create_bucket(Bucket="whole-bucket")
    store = open_storage("s3://whole-bucket/", s3_options)
    store.put_if_absent("a/x", b"1")
    assert [entry.path for entry in store.list("a")] == ["a/x"]


def test_secrets_are_not_shown() -> None:
    store = open_storage("s3://lake/t", OPTIONS)
    assert SECRET not in repr(store)
    assert SECRET not in str(store)


@pytest.mark.parametrize(
    "options",
    [
        {"aws_secret_access_key": SECRET},
        {"aws_access_key_id": SECRET},
        {"endpoint_url": f"http://user:{SECRET}@host:9000"},
        {"endpoint_url": SECRET},
        {"path_style": SECRET},
    ],
)
def test_half_or_malformed_options_are_refused_without_showing_them(
    options: dict[str, str],
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        open_storage("s3://lake/t", options)
    assert SECRET not in str(caught.value)


def test_credentials_in_a_uri_are_refused_without_showing_them() -> None:
    with pytest.raises(InvalidInputError, match="without credentials") as caught:
        open_storage(f"s3://AKIA:{SECRET}@lake/t")
    assert SECRET not in str(caught.value)


def test_a_pickled_store_finds_the_client_of_its_process() -> None:
    store = open_storage("s3://lake/t", OPTIONS)
    copy = pickle.loads(pickle.dumps(store))
    assert isinstance(store, S3Storage)
    assert copy == store
    assert s3_client(copy.options) is s3_client(store.options)


def test_other_service_needs_no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    keys = {name: value for name, value in OPTIONS.items() if name != "region_name"}
    assert (
        s3_client(
            tuple(sorted({**keys, "endpoint_url": "http://minio:9000"}.items()))
        ).meta.region_name
        == "us-east-1"
    )


def test_requests_are_counted_by_verb_and_part(s3_options: dict[str, str]) -> None:
    store, other = (
        open_storage("s3://lake/counted", s3_options),
        open_storage("s3://lake/counted-not", s3_options),
    )
    with counted(s3_options, store.uri) as requests:
        for name in ("data/a b=1/x", "_opal/log/1.json", "_opal/log/2.json"):
            assert store.put_if_absent(name, b"12345")
        assert not store.put_if_absent("data/a b=1/x", b"12345")
        assert other.put_if_absent("data/x", b"1")
        assert store.get("_opal/log/1.json") == store.get("_opal/log/1.json")
        store.get("data/a b=1/x", 1, 2)
        assert len(list(store.list("_opal/log/", "_opal/log/1.json"))) == 1
        store.delete(["_opal/log/1.json", "_opal/log/2.json"])
    assert requests.parts == {
        ("PUT", "data"): 2,
        ("PUT", "_opal/log"): 2,
        ("GET", "_opal/log"): 2,
        ("GET", "data"): 1,
        ("LIST", "_opal/log"): 1,
        ("DELETE", "many objects"): 1,
    }
    assert requests.repeated == {"/lake/counted/_opal/log/1.json": 2}
    assert str(requests).startswith("9 requests: 3 GET, 1 LIST, 4 PUT, 1 DELETE")


@pytest.mark.parametrize("status", [200, 412, 403])
def test_any_response_has_the_stores_time_without_a_request_for_it(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        BaseHTTPRequestHandler, "date_time_string", lambda *_: "Tue, 14 Nov 2023 22:13:20 GMT"
    )
    with answering((status, "")) as (store, seen):
        assert store.now_us() is None
        with suppress(StorageError):
            store.put_if_absent("a", b"x")
        store_us = store.now_us()
        assert store_us is not None
        assert 0 <= store_us - 1_700_000_000_000_000 < 60_000_000
        assert (store.now_us() or 0) > store_us, "time goes on between answers"
        assert len(seen) == 1


def test_responses_of_one_second_never_turn_the_stores_time_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dates = iter(
        ["Tue, 14 Nov 2023 22:13:20 GMT"] * 2
        + ["Tue, 14 Nov 2023 22:13:25 GMT", "Tue, 14 Nov 2023 22:13:10 GMT"]
    )
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda self: next(dates))
    store_us = []
    with answering((200, "")) as (store, _):
        for number in range(4):
            store.put_if_absent(f"a{number}", b"")
            store_us.append(store.now_us() or 0)
            time.sleep(0.02)
    first, same, later, back = store_us
    assert first + 20_000 <= same < first + 1_000_000
    assert later // 1_000_000 == same // 1_000_000 + 5
    assert back // 1_000_000 == later // 1_000_000 - 15, (
        "another second is believed, whichever way the store's clock went"
    )


@pytest.mark.skipif(
    not hasattr(time, "CLOCK_BOOTTIME"), reason="the system counts no time of sleep"
)
def test_the_stores_time_goes_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock of a machine that sleeps for an hour stands still."""
    with answering((200, "")) as (store, _):
        store.put_if_absent("a", b"x")
        store_us, count = store.now_us(), time.clock_gettime_ns
        monkeypatch.setattr(
            time,
            "clock_gettime_ns",
            lambda clock: count(clock) + 3600 * 10**9 * (clock == time.CLOCK_BOOTTIME),
        )
        assert (store.now_us() or 0) - (store_us or 0) >= 3600 * 10**6


@pytest.mark.parametrize("date", ["", "yesterday", "Tue, 99 Nov 2023 22:13:20 GMT"])
def test_invalid_date_is_ignored(date: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda *_: date)
    with answering((200, "")) as (store, _):
        assert store.put_if_absent("a", b"x")
        assert store.now_us() is None
