"""The service's answers: clear errors, limits, pages, and a free event loop."""

import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakechime import DataChangeEvent, LakeChime, TableFormat, UnavailableError
from lakechime.service.access import NO_ACCESS_CONTROL
from lakechime.service.app import create_app
from lakechime.service.limits import MAX_BODY_BYTES
from lakechime.store.sql_store import SqlStore
from tests.fixtures_lakechime import CERTIFICATES, Served, listening, serving, sqlite_url


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(sqlite_url(tmp_path)) as running:
        yield running


def post(served: Served, path: str, body: Any) -> httpx.Response:
    return request(
        served, "POST", path, content=body if isinstance(body, bytes) else json.dumps(body).encode()
    )


def request(served: Served, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {
        "Authorization": f"Bearer {served.tokens['admin']}",
        "Content-Type": "application/json",
    }
    return httpx.request(
        method, served.url + path, headers=headers, timeout=60, verify=CERTIFICATES, **more
    )


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"table": "shop.orders", "table_format": "ICEBERG", "snapshot_id": str(number), **more}


@pytest.mark.parametrize(
    "path, body, said",
    [
        (
            "/v1/events",
            {"events": [{**event(1), "tabel": "t"}]},
            "events[0]: an event has no field 'tabel'; its fields are table",
        ),
        (
            "/v1/events",
            {"events": [], "outobx": None},
            "unknown field 'outobx'; did you mean 'outbox'?",
        ),
        (
            "/v1/events",
            {"events": [event(1, seq=4)]},
            "leave both out, because registration assigns them",
        ),
        (
            "/v1/events",
            {"events": [event(1, tags={"a": "x" * 1_000_000})]},
            "tag 'a' has 1,000,000 characters, and may have 1,024",
        ),
        (
            "/v1/events",
            {"events": [{"table": "t", "table_format": "ICEBERG"}]},
            "has no snapshot_id; name the snapshot, which only events of HIVE",
        ),
        ("/v1/events/query", {"tabels": ["t"]}, "did you mean 'tables'?"),
        (
            "/v1/events/query",
            {"tables": ["t"], "limit": 0},
            "limit: Input should be greater than or equal to 1",
        ),
        (
            "/v1/events/query",
            {"tables": ["t"], "after": "7"},
            "after: Input should be a valid integer",
        ),
        ("/v1/events/query", {"start_ts": 5}, "end_ts=None are not a range of times"),
        (
            "/v1/events/query",
            {"partition": "2026-11-24"},
            "partition: partition='2026-11-24' is not a list",
        ),
        (
            "/v1/events/find",
            {"interests": [{"tables": []}]},
            "interests[0].tables: List should have at least 1 item",
        ),
        (
            "/v1/triggers/snapshot",
            {"tables": ["t"], "mode": "some"},
            "mode: Input should be 'any' or 'all'",
        ),
        ("/v1/events", [], "body: Input should be a valid dictionary"),
        ("/v1/events", b"{", "the body is not JSON"),
    ],
)
def test_error_for_an_invalid_request_is_one_sentence(
    served: Served, path: str, body: Any, said: str
) -> None:
    answer = post(served, path, body)
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid")
    assert said in answer.json()["message"]
    with served.open() as client:
        assert client.head() == 0


def test_unknown_parameters_of_a_url_are_refused(served: Served) -> None:
    answer = request(served, "GET", "/v1/events/tail?afetr=7")
    assert (answer.status_code, answer.json()["message"]) == (
        422,
        "query: unknown field 'afetr'; did you mean 'after'?",
    )


def test_a_parameter_of_a_url_is_taken_once(served: Served) -> None:
    answer = request(served, "GET", "/v1/events/tail?after=1&after=0")
    assert (answer.status_code, answer.json()["message"]) == (
        422,
        "the URL has 'after' 2 times; write it once",
    )


def test_error_names_an_unknown_path_or_method(served: Served) -> None:
    missing, wrong = request(served, "GET", "/v2/events"), request(served, "PATCH", "/v1/events")
    assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]) == (405, "method_not_allowed")


def test_a_body_with_an_event_of_another_partition_depth_registers_nothing(served: Served) -> None:
    assert post(served, "/v1/events", {"events": [event(1, partition=["a", 1])]}).status_code == 200
    answer = post(served, "/v1/events", {"events": [event(2), event(3, partition=["a"])]})
    assert answer.status_code == 422
    assert "levels" in answer.json()["message"]
    with served.open() as client:
        assert len(client.events().events) == 1


@pytest.mark.parametrize("length_is_said", [True, False])
def test_a_larger_body_is_refused(served: Served, length_is_said: bool) -> None:
    body = b'{"events": ["' + b"x" * MAX_BODY_BYTES + b'"]}'
    chunks = (body[start : start + 65_536] for start in range(0, len(body), 65_536))
    answer = request(served, "POST", "/v1/events", content=body if length_is_said else chunks)
    assert (answer.status_code, answer.json()["error"]) == (413, "too_large")
    assert f"larger than {MAX_BODY_BYTES:,} bytes" in answer.json()["message"]
    assert request(served, "GET", "/v1/head").status_code == 200


def test_deep_json_is_refused_as_invalid(served: Served) -> None:
    deep = b'{"events": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    answer = post(served, "/v1/events", deep)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"] in ("malformed", "invalid")


def test_pages_and_times_and_the_tail_name_each_event_once(served: Served) -> None:
    post(
        served,
        "/v1/events",
        {"events": [event(number, tags={"even": str(number % 2)}) for number in range(1, 26)]},
    )
    snapshot_ids, after, more = [], 0, True
    while more:
        page = post(
            served,
            "/v1/events/query",
            {"tables": ["shop.orders"], "tags": {"even": "0"}, "after": after, "limit": 5},
        ).json()
        snapshot_ids += [entry["event"]["snapshot_id"] for entry in page["events"]]
        after, more = page["next_after"], page["more"]
    assert snapshot_ids == [str(number) for number in range(2, 26, 2)]
    times = {"start_ts": 0, "end_ts": 1 << 50, "limit": 20}
    first = post(served, "/v1/events/query", times).json()
    rest = post(served, "/v1/events/query", {**times, "after": first["next_after"]}).json()
    assert (len(first["events"]), first["more"], len(rest["events"]), rest["more"]) == (
        20,
        True,
        5,
        False,
    )
    assert post(served, "/v1/events/query", {**times, "end_ts": 1}).json()["events"] == []
    tail = request(served, "GET", "/v1/events/tail?after=0&limit=3").json()
    assert [entry["event"]["snapshot_id"] for entry in tail["events"]] == ["1", "2", "3"]


def test_triggers_are_evaluated_by_the_service(served: Served) -> None:
    post(
        served,
        "/v1/events",
        {"events": [event(1, partition=["a"], tags={"completeness.daily": "99"})]},
    )
    asked = {"table": "shop.orders", "partition": ["a"]}
    assert len(post(served, "/v1/triggers/partition", asked).json()["events"]) == 1
    assert post(served, "/v1/triggers/partition", {**asked, "tags": {"x": "1"}}).json() == {
        "events": [],
        "expired_seq": 0,
    }
    assert post(served, "/v1/triggers/partition", {**asked, "start_ts": 1 << 47}).json() == {
        "events": [],
        "expired_seq": 0,
    }
    fired = post(served, "/v1/triggers/snapshot", {"tables": ["shop.orders", "other"]}).json()[
        "fired"
    ]
    assert ([entry["snapshot_id"] for entry in fired["events"]], fired["from_seq"]) == (["1"], 0)
    again = {"tables": [{"table": "shop.orders"}], "after_seq": fired["to_seq"]}
    assert post(served, "/v1/triggers/snapshot", again).json() == {"fired": None}
    assert post(
        served, "/v1/triggers/snapshot", {"tables": ["shop.orders", "other"], "mode": "all"}
    ).json() == {"fired": None}


def test_a_database_that_is_busy_stops_no_other_answer(served: Served, tmp_path: Path) -> None:
    """Ask for health while a registration waits for a lock."""
    holder = sqlite3.connect(tmp_path / "lakechime.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    answers: list[int] = []
    waiting = threading.Thread(
        target=lambda: answers.append(
            post(served, "/v1/events", {"events": [event(1)]}).status_code
        )
    )
    waiting.start()
    for _ in range(5):
        assert request(served, "GET", "/health").json() == {"status": "ok"}
    assert waiting.is_alive()
    assert answers == []
    holder.execute("ROLLBACK")
    holder.close()
    waiting.join(60)
    assert answers == [200]


def test_service_answers_again_after_a_database_outage(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("no folder yet")
    url = f"sqlite:///{folder}/lakechime.db"

    def open_store() -> SqlStore:
        try:
            return SqlStore.open(url)
        except OSError as error:
            raise UnavailableError(f"the disk is away: {error}") from error

    with listening(create_app(open_store, NO_ACCESS_CONTROL)) as at:
        answer = httpx.get(f"{at}/v1/head")
        assert (answer.status_code, answer.json()["error"], answer.headers["Retry-After"]) == (
            503,
            "unavailable",
            "1",
        )
        assert httpx.get(f"{at}/ready").status_code == 503
        assert str(folder) not in answer.text, "where the database is, only the log says"
        assert httpx.get(f"{at}/health").status_code == 200
        folder.unlink()
        assert httpx.get(f"{at}/ready").status_code == 200
        with LakeChime.open(at) as client:
            client.register([DataChangeEvent(table="t", table_format=TableFormat.HIVE)])
            assert client.head() == 1


def test_a_wrong_database_is_the_service_s_fault(tmp_path: Path) -> None:
    with listening(
        create_app(lambda: SqlStore.open("mysql://nowhere/db"), NO_ACCESS_CONTROL)
    ) as at:
        answer = httpx.get(f"{at}/v1/head")
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
    assert "its database" in answer.json()["message"]


def test_a_bug_of_the_service_is_answered_without_its_details(tmp_path: Path) -> None:
    def open_store() -> SqlStore:
        raise ZeroDivisionError("a secret that is only for the log")

    with listening(create_app(open_store, NO_ACCESS_CONTROL)) as at:
        answer = httpx.get(f"{at}/v1/head")
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "bug",
        "message": "a bug in the service (ZeroDivisionError); its log has the traceback",
    }


def test_the_document_names_every_path_and_every_error(served: Served) -> None:
    document = request(served, "GET", "/openapi.json").json()
    assert {
        "/v1/events",
        "/v1/events/query",
        "/v1/watermark",
        "/v1/triggers/snapshot",
        "/health",
    } <= {*document["paths"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith("/v1"):
                assert {"401", "403", "422", "503"} <= {*operation["responses"]}, (method, path)
                assert operation["security"] == [{"HTTPBearer": []}]
            if "requestBody" in operation:
                assert {"400", "413"} <= {*operation["responses"]}, (method, path)
    assert "ValidationError" not in json.dumps(document)


def test_a_long_unknown_name_is_cut_before_anything_is_compared_with_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "lakechime.service.models.difflib.get_close_matches",
        lambda name, *_, **__: asked.append(name) or [],
    )
    answer = post(served, "/v1/events/find", {"interests": [], "x" * 1_000_000: 1})
    assert "unknown field" in answer.json()["message"]
    assert len(answer.text) < 1_000
    assert [len(name) for name in asked] == [80]


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("PUT", "/v1/watermark", r'{"consumer": "c", "key": "k", "value": "\ud800"}'),
        ("PUT", "/v1/watermark", r'{"consumer": "c", "key": "k", "value": {"a": ["\udfff"]}}'),
        ("PUT", "/v1/watermark", r'{"consumer": "c", "key": "k", "value": {"\ud800": 1}}'),
        ("PUT", "/v1/watermark", r'{"consumer": "\ud800", "value": 1}'),
        ("PUT", "/v1/watermark", r'{"consumer": "c", "key": "\ud800", "value": 1}'),
        ("PUT", "/v1/watermark", r'{"consumer": "c", "value": 1, "step": "\ud800"}'),
        ("PUT", "/v1/watermark", r'{"consumer": "c", "value": 1, "\ud800": 1}'),
        ("POST", "/v1/events", r'{"events": [{"table": "\ud800", "table_format": "HIVE"}]}'),
        (
            "POST",
            "/v1/events",
            r'{"events": [{"table": "t", "table_format": "HIVE", "tags": {"a": "\ud800"}}]}',
        ),
        (
            "POST",
            "/v1/events",
            r'{"events": [{"table": "t", "table_format": "HIVE", "partition": ["\ud800"]}]}',
        ),
        ("POST", "/v1/events", r'{"events": [], "outbox": {"table": "t", "position": "\ud800"}}'),
        (
            "POST",
            "/v1/events",
            r'{"events": [], "outbox": {"table": "t", "position": 1, "seen": {"\ud800": 1}}}',
        ),
        (
            "POST",
            "/v1/events",
            r'{"events": [], "outbox": {"table": "t", "position": 1, "seen": {"a": "\ud800"}}}',
        ),
        ("POST", "/v1/events/query", r'{"tables": ["\ud800"]}'),
        ("POST", "/v1/events/query", r'{"tags": {"\ud800": "a"}}'),
        ("POST", "/v1/events/find", r'{"interests": [{"tables": ["t"], "partition": ["\ud800"]}]}'),
        ("POST", "/v1/triggers/snapshot", r'{"tables": ["t"], "tags": {"a": "\ud800"}}'),
        ("POST", "/v1/triggers/partition", r'{"table": "t", "partition": ["\ud800"]}'),
        ("POST", "/v1/tokens", r'{"name": "\ud800", "role": "read"}'),
        ("POST", "/v1/tokens", r'{"name": "n", "role": "\ud800"}'),
    ],
)
def test_an_unpaired_surrogate_is_refused_at_every_entrance(
    served: Served, method: str, path: str, body: str
) -> None:
    answer = request(served, method, path, content=body.encode())
    assert (answer.status_code, answer.json()["error"]) == (422, "invalid")
    assert request(served, "GET", "/v1/watermarks?consumer=c").json() == {"watermarks": []}
    assert request(served, "GET", "/v1/table?table=t").json() == {"state": None}


def test_a_name_that_no_index_takes_is_refused_with_its_size(served: Served) -> None:
    answer = post(served, "/v1/events", {"events": [event(1, cluster="\u6f22" * 512)]})
    assert answer.status_code == 422
    assert "takes 1,536 bytes in UTF-8, and a name may take 1,024" in answer.json()["message"]


def test_a_partition_that_expired_is_answered_as_gone(served: Served) -> None:
    with served.open() as client:
        client.register(
            [
                DataChangeEvent(table="t", table_format="HIVE", partition=(day,))
                for day in ("1", "2")
            ]
        )
        client.expire(1 << 60)
    answer = post(served, "/v1/triggers/partition", {"table": "t", "partition": ["1"]})
    assert (answer.status_code, answer.json()["error"]) == (410, "expired")
    never = post(served, "/v1/triggers/partition", {"table": "t", "partition": ["3"]})
    assert never.json() == {"events": [], "expired_seq": 0}
