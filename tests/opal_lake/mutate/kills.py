"""Mutations that kill themselves before each step that others can see: a folder or file made, renamed, linked, removed, a request sent.

    python -m tests.opal_lake.mutate.kills FOLDER-OR-S3-URI EVERY [FIRST] [ENDPOINT]

Kills before the steps FIRST, FIRST + EVERY and so on, and prints how many. After each kill a reader must see the old master or the new
one, and the next run must complete it.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from opal_lake.mutate import journal
from opal_lake.mutate.mutation import open_place, run_mutation
from opal_lake.storage import open_storage
from tests.opal_lake.mutate.plain_merge import LINES, NEW, OLD, PlainMerge, content, job, text_of

STEPS = {"os.rename", "os.link", "os.mkdir", "os.rmdir", "os.remove", "shutil.rmtree", "ctypes.dlopen", "http.client.send"}
_hook: list[Callable[[str, tuple[Any, ...]], None]] = []


def main(base: str, every: int, first: int, options: dict[str, str]) -> int:
    sys.addaudithook(lambda event, arguments: _hook[0](event, arguments) if _hook else None)
    kills = 0
    for step in range(first, 100_000, every):
        uri = f"{base}/{step}"
        _prepare(uri, options)
        if _run_killed(uri, step, options):
            _check(uri, options, was_killed=True)
            kills += 1
        else:
            _check(uri, options, was_killed=False)
            return kills
    raise AssertionError("it never ended")


def _prepare(uri: str, options: dict[str, str]) -> None:
    assert open_storage(f"{uri}/master", options).put_if_absent("part-r-00000", text_of(OLD))
    for name, text in LINES.items():
        assert open_storage(f"{uri}/incr", options).put_if_absent(name, text.encode())


def _run_killed(uri: str, step: int, options: dict[str, str]) -> bool:
    child = os.fork()
    if child == 0:
        _kill_at(step, uri)
        try:
            _mutate(uri, options)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _kill_at(step: int, uri: str) -> None:
    left = [step]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_write = event == "open" and isinstance(arguments[1], str) and arguments[1][:1] in "wxa" and uri in str(arguments[0])
        if event in STEPS or is_write:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    _hook[:] = [hook]


def _mutate(uri: str, options: dict[str, str]) -> Any:
    paths = [f"{uri}/incr/{name}" for name in LINES]
    return run_mutation(open_place(f"{uri}/master", options), job(*paths), "token", PlainMerge(options), options)


def _check(uri: str, options: dict[str, str], *, was_killed: bool) -> None:
    place = open_place(f"{uri}/master", options)
    seen = content(place, options)
    assert seen in ((OLD, NEW) if was_killed else (NEW,)), seen
    result = _mutate(uri, options)
    assert content(place, options) == NEW
    assert result.counts["files"] == 3
    decided = [run for run in journal.runs(place.side) if (outcome := journal.read_outcome(place.side, run)) and outcome.is_decided]
    assert len(decided) == 1
    assert list(open_storage(f"{uri}/incr", options).list("")) == []
    assert not list(place.side.list("working/"))
    assert not list(place.side.list("staged/"))
    assert len(list(place.side.list("done/"))) == 3
    again = _mutate(uri, options)
    assert again.repeated
    assert again.counts == result.counts


if __name__ == "__main__":
    place_uri, every_step, first_step, endpoint = (*sys.argv[1:], "0", "")[:4]
    keys = {"aws_access_key_id": "test-key", "aws_secret_access_key": "test-secret", "region_name": "us-east-1"}
    print(main(place_uri, int(every_step), int(first_step), {"endpoint_url": endpoint, "path_style": "true", **keys} if endpoint else {}))
