"""Mutations that kill themselves before each step that others can see.

Such a step is a folder or file made, renamed, linked or removed, or a request sent.

    python -m tests.opal_folder.kills FOLDER-OR-S3-URI [--every 7 --first 8]
        [--random 152 --seed 7] [--endpoint URL]

It kills before the steps FIRST, FIRST + EVERY and so on. Then it kills before random steps, also of
the runs that complete what another one left, until RANDOM more were killed. After each kill a
reader must see the old master or the new one, never the old one again once the new one was there,
and the next run must complete it. It prints how many there were.
"""

import argparse
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from opal_folder import journal
from opal_folder.mutation import open_master, run_mutation
from opal_lake.storage import open_storage
from tests.opal_folder.plain_merge import LINES, NEW, OLD, PlainMerge, content, job, text_of

STEPS = {
    "os.rename",
    "os.link",
    "os.mkdir",
    "os.rmdir",
    "os.remove",
    "shutil.rmtree",
    "ctypes.dlopen",
    "http.client.send",
}
_STEPS_OF_A_RUN = 70
_hook: list[Callable[[str, tuple[Any, ...]], None]] = []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--endpoint")
    args = parser.parse_args()
    keys = {
        "aws_access_key_id": "test-key",
        "aws_secret_access_key": "test-secret",
        "region_name": "us-east-1",
    }
    options = {"endpoint_url": args.endpoint, "path_style": "true", **keys} if args.endpoint else {}
    sys.addaudithook(lambda event, arguments: _hook[0](event, arguments) if _hook else None)
    kills = before_each(args.base, args.every, args.first, options)
    if args.random:
        kills += before_random_ones(args.base, args.random, random.Random(args.seed), options)
    print(kills)


def before_each(base: str, every: int, first: int, options: dict[str, str]) -> int:
    for kills, step in enumerate(range(first, 100_000, every)):
        uri = f"{base}/{step}"
        _prepare(uri, options)
        if not _run_killed(uri, step, options):
            _check(uri, options, (NEW,))
            return kills
        _check(uri, options, (OLD, NEW))
    raise AssertionError("it never ended")


def before_random_ones(
    base: str, number: int, chance: random.Random, options: dict[str, str]
) -> int:
    kills = turn = 0
    while kills < number:
        turn += 1
        uri, possible = f"{base}/random-{turn}", (OLD, NEW)
        _prepare(uri, options)
        while kills < number and _run_killed(uri, chance.randrange(_STEPS_OF_A_RUN), options):
            kills += 1
            seen = content(open_master(f"{uri}/master", options), options)
            assert seen in possible, (turn, seen)
            possible = possible if seen == OLD else (NEW,)
        _check(uri, options, possible)
    return kills


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
        is_write = (
            event == "open"
            and isinstance(arguments[1], str)
            and arguments[1][:1] in "wxa"
            and uri in str(arguments[0])
        )
        if event in STEPS or is_write:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    _hook[:] = [hook]


def _mutate(uri: str, options: dict[str, str]) -> Any:
    paths = [f"{uri}/incr/{name}" for name in LINES]
    folder = open_master(f"{uri}/master", options)
    return run_mutation(folder, job(*paths, token="token"), PlainMerge(options), options)


def _check(uri: str, options: dict[str, str], possible: tuple[Mapping[str, str], ...]) -> None:
    folder = open_master(f"{uri}/master", options)
    seen = content(folder, options)
    assert seen in possible, seen
    result = _mutate(uri, options)
    assert content(folder, options) == NEW
    assert result.counts["files"] == 3
    decided = [
        run
        for run in journal.runs(folder.side)
        if (outcome := journal.read_outcome(folder.side, run)) and outcome.is_decided
    ]
    assert len(decided) == 1
    assert list(open_storage(f"{uri}/incr", options).list("")) == []
    assert not list(folder.side.list("working/"))
    assert not list(folder.side.list("staged/"))
    assert len(list(folder.side.list("done/"))) == 3
    again = _mutate(uri, options)
    assert again.repeated
    assert again.counts == result.counts


if __name__ == "__main__":
    main()
