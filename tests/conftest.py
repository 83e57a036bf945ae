"""Fixtures that tests of several rooms share, and which tests a run takes."""

import gc
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tests.fixtures_kafka import kafka, registry
from tests.fixtures_postgres import postgres
from tests.fixtures_s3 import moto_server, s3_options

__all__ = ["kafka", "moto_server", "postgres", "registry", "s3_options"]

hypothesis.settings.register_profile(
    "opal", deadline=None
)  # how long an example takes says more of the machine than of the code
hypothesis.settings.load_profile("opal")
os.environ.pop("COLUMNS", None)  # of somebody's terminal: what a test looks for would be cut off

TESTS = Path(__file__).parent
LONG = frozenset((TESTS / "long_tests.txt").read_text(encoding="utf-8").splitlines())
STARTING_A_BROKER = {"kafka", "listeners"}
SLOW_SECONDS = "OPAL_SLOW_SECONDS"
BEGAN = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    begun = set()
    for item in items:
        kind = item.nodeid.partition("[")[0]
        if item.get_closest_marker("slow_but_one") and kind in begun:
            item.add_marker(pytest.mark.slow)
        begun.add(kind)
        if f"{item.path.relative_to(TESTS)}::{item.name.partition('[')[0]}" in LONG:
            item.add_marker(pytest.mark.long)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if not STARTING_A_BROKER.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.kafka)
    share, _, seed = os.environ.get("OPAL_SHARE", "1").partition(":")
    left_out = set(beside_share(items, int(share), seed)) | {
        item for item in items if not is_of_files(item.path.name)
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        spark_files = {item.path for item in items if item.get_closest_marker("spark")}
        # Workers begin at equal parts of the list and steal from its other end: one starts Spark
        items.sort(key=lambda item: item.path not in spark_files)
    if SLOW_SECONDS in os.environ:  # other files come last, and may be left out, at each seed
        files = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: (files.index(item.path) - number_of(seed)) % len(files))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep modules of tests and what they import out of garbage collection.

    A full one would look at all their objects each time, and finds none: they stay to the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a slow test that would not end within OPAL_SLOW_SECONDS of the run.

    A test says with `slow(seconds=600)` how long it takes.
    """
    slow = item.get_closest_marker("slow")
    if not slow:
        return
    limit_s = float(os.environ.get(SLOW_SECONDS, "inf"))
    end_s = time.monotonic() - BEGAN + slow.kwargs.get("seconds", 0)
    if end_s > limit_s:
        limit = os.environ[SLOW_SECONDS]
        pytest.skip(f"no time left: the slow tests of this run have {limit} s ({SLOW_SECONDS})")


def is_of_files(name: str) -> bool:
    """Return whether a run of a part of the files includes this one.

    The runs with OPAL_FILES="0/2:seed" and "1/2:seed" together include all files.
    """
    part, _, seed = os.environ.get("OPAL_FILES", "0/1").partition(":")
    number, _, parts = part.partition("/")
    return number_of(f"{seed} {name}") % int(parts) == int(number)


def number_of(seed: str) -> int:
    return int(hashlib.sha256(seed.encode()).hexdigest(), 16)


def beside_share(items: list[pytest.Item], share: int, seed: str) -> list[pytest.Item]:
    """Return the cases of slow tests that this run leaves out.

    It runs one case in `share`, other ones at each seed. So most kinds of test are in every run,
    those with a single case in every second one, and every case is in one of `share` runs. Tests
    that start an Airflow count as cases of one kind, by their file: each file starts its own.
    """
    families: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.get_closest_marker("slow"):
            family, case = item.nodeid.partition("[")[0], item.nodeid
            if item.nodeid.startswith("tests/airflow_provider_opal/"):
                family, case = "airflow", str(item.path)
            families[family][case].append(item)
    left_out = []
    for name, cases in families.items():
        turns = min(share, max(len(cases), 2))
        first = number_of(f"{seed} {name}") % turns
        for number, case_items in enumerate(cases.values()):
            if number % share != first:
                left_out += case_items
    return left_out
