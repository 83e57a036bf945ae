"""Processes that run next to a stream whose freshness is measured.

A producer and maintenance, each a process of its own; and CPU by process.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import psutil
from confluent_kafka import Producer

from opal_lake.table import Table
from tests.opal_stream.orders import order

STEP_S = 0.02
# Of each step the moment at which it was produced, its partition, and how many messages it has
Stamps = list[tuple[float, int, int]]


class Beside:
    """Work in a process of its own until it has to end; its result comes back."""

    def __init__(self, work: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._over, (self._results, its_end) = context.Event(), context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(its_end, work, self._over, args), daemon=True
        )
        self._process.start()
        its_end.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def end(self) -> Any:
        self._over.set()
        result = self._results.recv()
        self._process.join()
        return result


def _run(results: Any, work: Callable[..., Any], over: Event, args: tuple[Any, ...]) -> None:
    results.send(work(over, *args))


def produce(over: Event, servers: str, topic: str, partitions: int, rate: int, keys: int) -> Stamps:
    """Produce updates of all keys in random order, prepared but for their time.

    A step has what became due, for one partition.
    """
    settings = {
        "linger.ms": 5,
        "batch.size": 1 << 20,
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 1 << 21,
    }
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, **settings})
    turns = np.random.default_rng(1).permutation(keys).tolist()
    beginnings = [json.dumps(order(key)).rpartition(" ")[0].encode() for key in turns]
    stamps: Stamps = []
    began, number = time.monotonic(), 0
    for turn in itertools.count():
        count = int((time.monotonic() - began) * rate) - number
        if over.is_set():
            break
        if count:
            stamps.append((time.time(), turn % partitions, count))
            ending = b" %d}" % order(0, number)["at"]
            messages = [
                {"value": beginnings[at % keys] + ending} for at in range(number, number + count)
            ]
            assert producer.produce_batch(topic, messages, partition=turn % partitions) == count
            number += count
        producer.poll(0)
        time.sleep(STEP_S)
    assert producer.flush(60) == 0
    return stamps


def maintain(over: Event, uri: str, every_s: float) -> list[float]:
    """Maintain the table without Spark, at this interval, until the event is set.

    Returns the seconds of each maintenance that found something due. The first comes after half an
    interval, so that a run of whole intervals ends in the midst of one.
    """
    took_s, due_s = list[float](), time.monotonic() + every_s / 2
    while not over.wait(max(0.0, due_s - time.monotonic())):
        began_s, due_s = time.monotonic(), max(time.monotonic(), due_s + every_s)
        result = Table.open(uri).maintain()
        took_s += [time.monotonic() - began_s] if result.counts["due"] else []
    return took_s


def produced_at(stamps: Stamps, partition: int) -> np.ndarray:
    """Return the moment of each message of a partition, in the order of offsets."""
    own = [(moment, count) for moment, number, count in stamps if number == partition]
    return np.repeat([moment for moment, _ in own], [count for _, count in own])


def cpu_seconds(pids: Mapping[str, list[int]]) -> dict[str, float]:
    """Return the CPU seconds of each name, with all processes that its own started.

    Ended processes count; `reader` is this process without those that it started.
    """
    used = {name: sum(map(_of_tree, members)) for name, members in pids.items()}
    return used | {"reader": time.process_time()}


def _of_tree(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.Error):
        leader = psutil.Process(pid)
        for process in (leader, *leader.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def cpu_text(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> str:
    shares = {name: (after[name] - before[name]) / seconds for name in after}
    each = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    total = sum(shares.values())
    return f"CPU seconds a second: {each}; together {total:.2f} of {os.cpu_count()} cores"
