"""The retries and errors of the store behind a service; contracts have the rest."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakechime import (
    AccessError,
    ConflictError,
    DataChangeEvent,
    ExpiredError,
    InvalidEventError,
    LakeChime,
    NotFoundError,
    Outbox,
    SchemaError,
    TableFormat,
    UnavailableError,
)
from lakechime.answers import Interest
from lakechime.remote.http import MAX_BATCH_ENTRIES, HttpStore, HttpTokens
from lakechime.remote.problems import PROBLEMS, error_of, problem_json, problem_of
from lakechime.remote.transport import ATTEMPTS, Transport
from tests.fixtures_lakechime import CERTIFICATES, Served, serving


class Proxy(http.server.BaseHTTPRequestHandler):
    """Stands before nothing: answers what it is told to, and counts."""

    protocol_version = "HTTP/1.1"
    script: list[tuple[int, str]]
    asked: list[str]
    url: str

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(f"{self.command} {self.path.partition('?')[0]}")
        status, text = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if status == 0:  # cut off in the middle
            self.close_connection = True
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[type[Proxy]]:
    handler: Any = type("OneProxy", (Proxy,), {"script": [], "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield handler
        server.shutdown()


def client(url: str, pauses: list[float] | None = None) -> LakeChime:
    return LakeChime(
        HttpStore(transport=Transport(url=url, sleep=(pauses if pauses is not None else []).append))
    )


EVENT = DataChangeEvent(table="t", table_format=TableFormat.HIVE)
BUSY = json.dumps({"error": "unavailable", "message": "the database is locked; try again"})


@pytest.mark.parametrize("failure", [(502, "<html>bad gateway"), (503, BUSY), (504, ""), (0, "")])
def test_questions_and_registrations_are_asked_again(
    proxy: type[Proxy], failure: tuple[int, str]
) -> None:
    pauses: list[float] = []
    proxy.script = [failure, failure, (200, '{"head": 7}')]
    assert client(proxy.url, pauses).head() == 7
    assert pauses == sorted(pauses) != []
    proxy.script = [
        failure,
        (
            200,
            json.dumps(
                {
                    "registered": [
                        {"event": {**EVENT.to_json(), "seq": 1}, "duplicate": True, "gap": False}
                    ]
                }
            ),
        ),
    ]
    assert client(proxy.url).register([EVENT])[0].event.seq == 1


def test_it_gives_up_in_the_end(proxy: type[Proxy]) -> None:
    proxy.script = [(503, BUSY)]
    with pytest.raises(UnavailableError, match="the database is locked; try again"):
        client(proxy.url).head()
    assert len(proxy.asked) == ATTEMPTS


class Lossy(http.server.BaseHTTPRequestHandler):
    """Stands before a service: passes every request on, and loses the first answers."""

    protocol_version = "HTTP/1.1"
    behind: str
    lost: int

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        sent = {name: self.headers[name] for name in ("Authorization", "Content-Type")}
        answer = httpx.request(
            self.command, self.behind + self.path, content=body, headers=sent, verify=CERTIFICATES
        )
        handler = type(self)
        if handler.lost > 0:
            handler.lost -= 1
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PUT = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def losing(served: Served, count: int) -> Iterator[LakeChime]:
    """Yield a client, the next answers to which are lost."""
    handler: Any = type("OneLossy", (Lossy,), {"behind": served.url, "lost": count})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        transport = Transport(url=url, token=served.tokens["admin"], sleep=[].append)
        yield LakeChime(HttpStore(transport=transport))
        server.shutdown()


def test_a_watermark_whose_answer_was_lost_is_moved_once_and_answered(served: Served) -> None:
    with served.open() as direct, losing(served, 2) as chime:
        direct.register([EVENT])
        mark = chime.put_watermark("c", "events", 1, expected=None)
        assert direct.watermark("c", "events") == mark
        assert mark.revision == 1
    with served.open() as direct, losing(served, 1) as chime:
        moved = chime.put_watermark("c", "events", 0, expected=mark.revision)
        assert (moved.revision, direct.watermark("c", "events")) == (2, moved)
    with served.open() as direct, losing(served, 1) as chime:
        chime.delete_watermark("c", "events", expected=moved.revision)
        assert direct.watermark("c", "events") is None


def test_a_refused_watermark_whose_answer_was_lost_is_refused(served: Served) -> None:
    """Another process moved it to the same value: that was not this client."""
    with served.open() as direct, losing(served, 1) as chime:
        mark = direct.put_watermark("c", "at", 1, expected=None)
        direct.put_watermark("c", "at", 2, expected=mark.revision)
        with pytest.raises(ConflictError):
            chime.put_watermark("c", "at", 2, expected=mark.revision)


def test_a_watermark_that_nothing_answers_may_have_been_moved(served: Served) -> None:
    with (
        losing(served, ATTEMPTS) as chime,
        pytest.raises(UnavailableError, match="read the state before you try again"),
    ):
        chime.put_watermark("c", "at", 1, expected=None)


def test_a_step_of_a_producer_may_be_sent_twice(served: Served) -> None:
    """Lose the first answer: the second is the same, and other producers are refused."""
    sent = {"events": [EVENT.to_json()], "outbox": {"table": "t", "position": 1}}
    with served.open() as chime:
        first = chime.store.transport.post("/v1/events", sent)["registered"]  # type: ignore[attr-defined]  # a store over HTTP
        (again,) = chime.register([EVENT], outbox=Outbox(table="t", position=1))
        assert again.event.to_json() == first[0]["event"]
        assert again.duplicate


def test_an_answer_that_was_lost_says_that_it_may_have_been_done(proxy: type[Proxy]) -> None:
    proxy.script = [(0, "")]
    with pytest.raises(UnavailableError, match="read the state before you try again"):
        client(proxy.url).expire(0)
    assert len(proxy.asked) == 1


def test_error_names_a_service_that_does_not_answer() -> None:
    pauses: list[float] = []
    with pytest.raises(
        UnavailableError,
        match=r"http://127.0.0.1:9 does not answer .*; check that it runs, and try again",
    ):
        client("http://127.0.0.1:9", pauses).put_watermark("c", "", 1, expected=None)
    assert len(pauses) == ATTEMPTS - 1  # it was never sent


@pytest.mark.parametrize(
    "status, text",
    [(200, "<html>welcome"), (404, "not here"), (302, ""), (404, '{"detail": "Not Found"}')],
)
def test_another_program_at_the_address_is_named(
    proxy: type[Proxy], status: int, text: str
) -> None:
    proxy.script = [(status, text)]
    with pytest.raises(NotFoundError, match="but not as a LakeChime service"):
        client(proxy.url).head()
    assert len(proxy.asked) == 1


@pytest.mark.parametrize(
    "url", ["http://", "http://user:secret@host", "http://host?x=1", "http://host#x"]
)
def test_urls_that_cannot_be_meant_are_refused_and_show_no_password(url: str) -> None:
    with pytest.raises(InvalidEventError) as refused:
        LakeChime.open(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("token", ["", " ", "a\nb", "ü"])
def test_tokens_that_cannot_be_are_refused(token: str) -> None:
    with pytest.raises(AccessError, match="copy it as"):
        LakeChime.open("http://host", token=token)


def test_every_error_comes_back_as_itself() -> None:
    for error in (
        InvalidEventError("a"),
        ConflictError("b"),
        NotFoundError("c"),
        UnavailableError("d"),
        SchemaError("e"),
        ExpiredError("f"),
    ):
        problem = problem_of(error)
        back = error_of(problem.status, problem_json(problem, str(error)))
        assert (type(back), str(back)) == (type(error), str(error))
    assert {type(error_of(problem.status, problem_json(problem, ""))) for problem in PROBLEMS} == {
        InvalidEventError,
        ConflictError,
        NotFoundError,
        UnavailableError,
        SchemaError,
        AccessError,
        ExpiredError,
    }


def test_a_database_that_refuses_the_service_is_not_the_asker_s_fault() -> None:
    assert problem_of(AccessError("password authentication failed")).status == 503


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(f"sqlite:///{tmp_path}/lakechime.db") as running:
        yield running


def test_many_and_large_events_go_in_several_requests_and_keep_their_order(served: Served) -> None:
    large = {f"tag-{number}": "x" * 1000 for number in range(16)}
    events = [
        DataChangeEvent(
            table=f"t{number % 7}",
            table_format="OPAL",
            snapshot_id=str(number),
            tags=({}, large)[number % 10 == 0],
        )
        for number in range(2 * MAX_BATCH_ENTRIES + 1)
    ]
    with served.open("write") as chime:
        given = chime.register(events, outbox=Outbox(table="t0", position={"version": 7}))
        assert [registered.event.snapshot_id for registered in given] == [
            event.snapshot_id for event in events
        ]
        seqs = [registered.event.seq or 0 for registered in given]
        assert seqs == sorted(set(seqs))
        assert len(chime.events_between("t0", 0, 1 << 50).events) == len(events[::7])
        state = chime.table_state("t0")
        assert state is not None
        assert state.position == {"version": 7}
        with pytest.raises(ConflictError):
            chime.register(events[:1], outbox=Outbox(table="t0", position={"version": 8}))
        answer = chime.find(
            [Interest(tables=(f"t{number % 8}",)) for number in range(2 * MAX_BATCH_ENTRIES)]
        )
        assert len(answer.seqs) == 2 * MAX_BATCH_ENTRIES
        assert answer.seqs[:8] == (*seqs[:7], None)
        assert answer.head == seqs[-1]


def test_without_a_token_the_message_says_how_to_give_one(served: Served) -> None:
    with (
        LakeChime.open(served.url) as chime,
        pytest.raises(AccessError, match=r"no token was sent.*LAKECHIME_TOKEN"),
    ):
        chime.head()
    with served.open("read") as chime:
        assert chime.check().startswith(served.url)
        with pytest.raises(
            AccessError, match=r"needs the role write .*the token has the role read"
        ):
            chime.register([EVENT])


def test_a_token_is_in_no_traceback() -> None:
    assert "secret" not in repr(HttpStore.open("http://127.0.0.1:1", token="lakechime_secret"))


@pytest.mark.parametrize("name", [".", "..", "a/b", "/", "../x", "%2e%2e", "a?b#c", "ü ü"])
def test_a_token_of_any_name_is_revoked(served: Served, name: str) -> None:
    transport = Transport(url=served.url, token=served.tokens["admin"])
    keeper = HttpTokens(transport=transport)
    secret = keeper.create(name, "read")
    with LakeChime.open(served.url, token=secret) as chime:
        assert chime.head() == 0
        keeper.revoke(name)
        with pytest.raises(AccessError):
            chime.head()
    transport.close()
