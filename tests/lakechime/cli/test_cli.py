"""The command `lakechime` as somebody at a terminal, and a program, sees it."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakechime import LakeChime
from lakechime.cli import main
from lakechime.cli.command import MEANINGS
from opal_lake.exit_codes import INPUT, OK, RETRY
from tests.fixtures_cli import SOURCES
from tests.fixtures_lakechime import PATIENCE_S, serving, wait_until


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the default location, in AIRFLOW_HOME."""
    for name in ("LAKECHIME_URL", "LAKECHIME_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    return f"sqlite:///{tmp_path}/airflow/lakechime.db"


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = OK) -> str:
    assert main(words) == code, capsys.readouterr().err
    shown = capsys.readouterr()
    return shown.out if code == OK else shown.err


def feed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))


def line(number: int, **more: Any) -> str:
    return json.dumps(
        {"table": "shop.orders", "table_format": "DELTA", "snapshot_id": str(number), **more}
    )


def test_without_a_command_it_shows_all_of_them_with_examples_that_parse(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = run(capsys)
    for name in (
        "register",
        "events",
        "serve",
        "token",
        "consumers",
        "forget",
        "expire",
        "migrate",
        "check",
    ):
        assert re.search(rf"^  {name} ", page, re.MULTILINE)
    assert all(meaning in page for meaning in MEANINGS.values())
    assert max(map(len, page.splitlines())) <= 140


def test_one_event_by_options_then_as_a_list(
    capsys: pytest.CaptureFixture[str], database: str
) -> None:
    more = (
        "--format",
        "ICEBERG",
        "--partition",
        "2026-11-24",
        "--tag",
        "completeness.daily=99",
        "--operation",
        "APPEND",
    )
    assert (
        run(capsys, "register", "shop.orders", "--snapshot", "1", *more)
        == "registered: shop.orders as seq 1\n"
    )
    assert (
        run(capsys, "register", "shop.orders", "--snapshot", "1", *more)
        == "was registered already: shop.orders as seq 1\n"
    )
    gap = run(
        capsys,
        "register",
        "shop.orders",
        "--snapshot",
        "3",
        "--previous",
        "2",
        "--snapshot-ts",
        "2026-11-24T09:00:00",
        *more,
    )
    assert gap.startswith("registered: shop.orders as seq ")
    assert "its predecessor 2 is not registered" in gap
    with LakeChime.open(database) as client:
        [first, second] = client.events().events
    assert first.event.partition == ("2026-11-24",)
    assert dict(first.event.tags) == {"completeness.daily": "99"}
    assert second.event.snapshot_ts == 1_795_510_800_000
    page = run(capsys, "events", "shop.orders").splitlines()
    assert re.fullmatch(
        r"seq +registered \(UTC\) +table +partition +operation +snapshot +previous +format +tags",
        page[0],
    )
    assert re.search(
        r"shop\.orders +2026-11-24 +APPEND +3 +2 \(gap\) +ICEBERG +completeness\.daily=99$", page[2]
    )


def test_json_lines_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    feed(
        monkeypatch,
        line(1),
        "",
        line(2, prev_snapshot_id="1"),
        line(1),
        line(9, prev_snapshot_id="7"),
    )
    assert (
        run(capsys, "register", "-")
        == "registered 3 events; 1 were registered already; 1 predecessor not registered\n"
    )
    feed(monkeypatch, line(10))
    [answer] = json.loads(run(capsys, "register", "-", "--json"))
    assert (answer["event"]["snapshot_id"], answer["duplicate"], answer["gap"]) == (
        "10",
        False,
        False,
    )
    feed(monkeypatch, line(11), '{"table": "t", "tabel_format": "DELTA"}')
    said = run(capsys, "register", "-", code=INPUT)
    assert re.fullmatch(
        r"lakechime: line 2 of standard input: an event has no field 'tabel_format'; "
        r"its fields are .*\n",
        said,
    )
    assert json.loads(run(capsys, "events", "--json"))["events"][-1]["event"]["snapshot_id"] == "11"


@pytest.mark.parametrize(
    "words, said",
    [
        ("register t", "needs --format; write one of HIVE, ICEBERG"),
        ("register t --format DELTA", "only events of HIVE may leave out"),
        ("register t --format HIVE --tag x", "write --tag NAME=VALUE"),
        ("register t --format HIVE --partition-json {", "is not JSON"),
        ("register t --format HIVE --partition-json 7", "is not a list"),
        ("register - --format HIVE", "--format describes a single event"),
        ("events --after 1 --from 2026-11-24", "use either --after or the times"),
        ("events --from 2026-11-24", "need exactly one TABLE, got 0"),
        ("expire --older-than soon", "is not a span of time"),
        ("migrate --to 9999", "the revisions are base, v0001"),
        ("check --database mysql://host/db", "not in mysql"),
        ("sync t=iceberg:nowhere:x.y", "give its address: in the file of tables under options"),
        ("migrate --database http://host", "is a service, which upgrades its own database"),
        ("serve --database http://host", "name the database to serve by --database"),
        ("serve --certificate c.pem", "both --certificate and --key"),
        ("serve", "has no valid token"),
        ("serve --no-auth --host 0.0.0.0", "--no-auth would let everybody"),
        ("token revoke nobody", "unknown token nobody"),
    ],
)
def test_mistakes_are_one_clear_line(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    shown = run(capsys, *words.split(), code=INPUT)
    assert re.fullmatch(rf"lakechime: .*{re.escape(said)}.*\n", shown)


@pytest.mark.parametrize(
    "words, said",
    [
        ("regster t", "unknown command 'regster', did you mean 'register'?"),
        ("register t --forma HIVE", "'--forma' is not known to lakechime register"),
        ("register t --format FLAT", "invalid choice"),
        (
            "--database sqlite:////lake.db sync",
            "--database stands before the command; write lakechime COMMAND --database ...",
        ),
        ("--json check", "--json stands before the command"),
        (
            "token --json list",
            "--json stands before the command; write lakechime token COMMAND --json ...",
        ),
        ("events t --from yesterday", "'yesterday' is not a moment"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    shown = capsys.readouterr().err
    assert ended.value.code == INPUT
    assert said in shown
    assert shown.startswith("lakechime: ")
    assert shown.count("\n") == 1


def test_events_begin_after_a_seq_or_at_a_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "events") == "no event\n"
    feed(monkeypatch, *(line(number, tags={"odd": str(number % 2)}) for number in range(1, 41)))
    run(capsys, "register", "-")

    def snapshots(*words: str) -> list[str]:
        page = json.loads(run(capsys, "events", "--json", *words))
        return [entry["event"]["snapshot_id"] for entry in page["events"]]

    assert snapshots() == [str(number) for number in range(21, 41)]
    assert snapshots("shop.orders", "--tag", "odd=1", "--limit", "3") == ["35", "37", "39"]
    assert snapshots("--after", "0", "--limit", "2") == ["1", "2"]
    assert snapshots("shop.orders", "--from", "2026-01-01", "--limit", "2") == ["1", "2"]
    assert snapshots("shop.orders", "--to", "2026-01-01") == []
    assert snapshots("other") == []
    assert (
        run(capsys, "events", "--after", "0", "--limit", "2").splitlines()[-1]
        == "there are more events: show them with --after 2"
    )


def test_the_database_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    assert run(capsys, "migrate").startswith("done: from no tables to ")
    assert run(capsys, "migrate").startswith("nothing to do: the tables are of revision ")
    feed(monkeypatch, *map(line, range(1, 4)))
    run(capsys, "register", "-")
    assert "3 events" in run(capsys, "check")
    assert run(capsys, "expire", "--older-than", "1d") == "deleted 0 events\n"
    time.sleep(0.01)
    assert json.loads(run(capsys, "expire", "--older-than", "0s", "--json")) == {
        "expired": 2,
        "waited_for": [],
    }  # the newest of each table stays
    assert "add --yes" in run(capsys, "migrate", "--to", "base", code=INPUT)
    assert run(capsys, "migrate", "--to", "base", "--yes").endswith(" to no tables\n")


def test_expire_names_the_consumers_that_it_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    feed(monkeypatch, *map(line, range(1, 4)))
    run(capsys, "register", "-")
    assert "no consumer has a watermark" in run(capsys, "consumers")
    with LakeChime.open(database) as client:
        client.put_watermark("report", "events", 1, expected=None)
        client.put_watermark("quick", "events", 3, expected=None)
    assert [
        (row["consumer"], row["seq"], row["behind"])
        for row in json.loads(run(capsys, "consumers", "--json"))
    ] == [
        ("report", 1, 2),
        ("quick", 3, 0),
    ]
    time.sleep(0.01)
    lines = run(capsys, "expire", "--older-than", "0s").splitlines()
    assert lines[0] == "deleted 1 event"
    assert lines[1].startswith("kept events for consumer report: it is at seq 1, 2 events behind")
    assert lines[2:] == [
        "to forget a consumer that is permanently gone: lakechime forget CONSUMER --yes"
    ]
    assert "(its watermarks: events); add --yes" in run(capsys, "forget", "report", code=INPUT)
    assert run(capsys, "forget", "report", "--yes") == "deleted 1 watermark of report\n"
    assert "consumer report has no watermark" in run(
        capsys, "forget", "report", "--yes", code=INPUT
    )
    assert run(capsys, "expire", "--older-than", "0s") == "deleted 1 event\n"


def test_commands_work_with_the_address_of_a_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(f"sqlite:///{tmp_path}/served.db") as served:
        monkeypatch.setenv("LAKECHIME_URL", served.url)
        assert "no token was sent" in run(capsys, "check", code=INPUT)
        monkeypatch.setenv("LAKECHIME_TOKEN", served.tokens["admin"])
        feed(monkeypatch, *map(line, range(1, 4)))
        assert run(capsys, "register", "-") == "registered 3 events\n"
        secret = json.loads(run(capsys, "token", "create", "reader", "--role", "read", "--json"))[
            "token"
        ]
        listed = run(capsys, "token", "list")
        assert secret not in listed
        assert re.search(r"^reader +read +\d{4}-", listed, re.MULTILINE)
        monkeypatch.setenv("LAKECHIME_TOKEN", secret)
        assert len(json.loads(run(capsys, "events", "--json"))["events"]) == 3
        assert "needs the role admin" in run(capsys, "expire", "--older-than", "1d", code=INPUT)
        monkeypatch.setenv("LAKECHIME_TOKEN", served.tokens["admin"])
        assert run(capsys, "token", "revoke", "reader") == "revoked: reader\n"
        monkeypatch.setenv("LAKECHIME_TOKEN", secret)
        assert "unknown or revoked" in run(capsys, "events", code=INPUT)


def test_a_token_is_printed_once_and_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "etl", "--role", "write"]) == OK
    shown = capsys.readouterr()
    assert re.fullmatch(r"lakechime_[\w-]{43}\n", shown.out)
    assert shown.err == "token etl with the role write, which is not shown again:\n"
    assert shown.out.strip() not in run(capsys, "token", "list")


def test_a_service_that_is_away_can_be_tried_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakechime.remote.transport.FIRST_PAUSE_SECONDS", 0)
    assert "does not answer" in run(capsys, "check", "--database", "http://127.0.0.1:9", code=RETRY)


def lakechime(*words: str, **more: Any) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.Popen(
        [sys.executable, "-m", "lakechime.cli", *words],
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
        **more,
    )


def test_follow_shows_events_while_serve_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, "check")
    secret = run_token(capsys)
    server = lakechime("serve", "--port", str(free_port()))
    follower = None
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        [url] = re.findall(r"http://127\.0\.0\.1:\d+", said)
        assert "requires a token" in said
        wait_until(lambda: answers(url))
        with (tmp_path / "followed").open("w") as out:
            follower = lakechime("events", "--follow", "--json", stdout=out)
        with LakeChime.open(url, token=secret) as client:
            assert client.head() == 0
        run(capsys, "register", "late", "--format", "HIVE")
        wait_until(lambda: "late" in (tmp_path / "followed").read_text())
        [followed] = map(json.loads, (tmp_path / "followed").read_text().splitlines())
        assert followed["event"]["table"] == "late"
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE_S) in (OK, -signal.SIGINT, 130)
    finally:
        for process in filter(None, (server, follower)):
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def run_token(capsys: pytest.CaptureFixture[str]) -> str:
    return run(capsys, "token", "create", "one", "--role", "read").strip()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_error_names_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    run_token(capsys)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = run(capsys, "serve", "--port", str(listener.getsockname()[1]), code=RETRY)
    assert re.search(
        r"cannot listen on 127\.0\.0\.1 port \d+ .*choose another port with --port", said
    )


def loaded(code: str, *modules: str) -> Sequence[str]:
    program = (
        f"import sys; {code}; "
        f"print(*({modules!r} and [name for name in {modules!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == OK, done.stderr
    return done.stdout.split()


def test_help_and_the_client_of_a_service_load_no_more_than_they_need() -> None:
    heavy = ("sqlalchemy", "fastapi", "pyarrow", "numpy")
    assert loaded("from lakechime.cli import build_parser; build_parser()", *heavy, "httpx") == []
    assert loaded("from lakechime import LakeChime; LakeChime.open('http://host')", *heavy) == []


def test_client_refuses_an_event_that_no_database_can_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_argument = b"\xff".decode("utf-8", "surrogateescape")
    for words in (
        ("register", as_argument, "--format", "HIVE"),
        ("register", "t", "--format", "HIVE", "--tag", f"a={as_argument}"),
        ("register", "t", "--format", "HIVE", "--partition", as_argument),
    ):
        run(capsys, *words, code=INPUT)
    feed(monkeypatch, r'{"table": "t", "table_format": "HIVE", "tags": {"a": "\ud800"}}')
    assert "unpaired surrogate" in run(capsys, "register", "-", code=INPUT)
    too_long = run(capsys, "register", "\u6f22" * 512, "--format", "HIVE", code=INPUT)
    assert "takes 1,536 bytes in UTF-8, and a name may take 1,024" in too_long
    assert "0 events" in run(capsys, "check")


def test_range_with_expired_events_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(monkeypatch, *map(line, range(1, 4)))
    run(capsys, "register", "-")
    time.sleep(0.01)
    run(capsys, "expire", "--older-than", "0s")
    assert main(["events", "shop.orders", "--from", "2020-01-01T00:00:00Z"]) == OK
    assert "events of shop.orders have expired, and some before 20" in capsys.readouterr().err
