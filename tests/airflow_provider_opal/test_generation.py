"""Attempts of a run that are retries, and those that are clears.

`retries` may change between them. Airflow's part is done as its `clear_task_instances` does it;
cluster/test_reruns.py has the real one.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_opal.generation import (
    MAX_EARLIER,
    earlier_generations,
    end_generation,
    generation_of,
)
from tests.airflow_provider_opal.stand_ins import Store


class Task:
    """A task of one run, as Airflow counts its tries."""

    def __init__(self, retries: int) -> None:
        self.retries = self.max_tries = retries
        self.clears = self.tries = self.ids = 0
        self.store = Store()

    def next_try(self) -> str:
        self.tries += 1
        self.ids += 1  # Airflow gives every try an id of its own
        ti = SimpleNamespace(id=self.ids, try_number=self.tries, max_tries=self.max_tries)
        run, task = SimpleNamespace(clear_number=self.clears), SimpleNamespace(retries=self.retries)
        self.context: Any = {"ti": ti, "dag_run": run, "task": task, "task_state_store": self.store}
        return generation_of(self.context)

    def succeed(self) -> None:
        end_generation(self.context)

    def clear(self, *, resets_run: bool = True) -> None:
        self.max_tries = self.tries + self.retries
        self.clears += resets_run


@pytest.mark.parametrize("retries", [0, 1, 2, 3, 4, 9])
def test_retries_share_a_generation_whatever_an_edit_makes_of_their_number(retries: int) -> None:
    task = Task(retries=3)
    first = task.next_try()
    task.retries = retries
    assert [task.next_try() for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("resets_run", [True, False])
@pytest.mark.parametrize("retries", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("tries", [1, 2, 3])
def test_a_clear_of_what_succeeded_is_another_whatever_an_edit_makes_of_their_number(
    retries: int, tries: int, resets_run: bool
) -> None:
    task = Task(retries=3)
    first = [task.next_try() for _ in range(tries)][-1]
    task.succeed()
    task.retries = retries
    task.clear(resets_run=resets_run)
    second = task.next_try()
    assert second != first
    assert task.next_try() == second, "its retries are its own"


@pytest.mark.parametrize("retries", [0, 1, 2, 3, 9])
def test_a_clear_of_what_waits_for_a_retry_or_has_failed_is_another(retries: int) -> None:
    task = Task(retries=3)
    generations = []
    for _ in range(4):
        generations.append(task.next_try())
        task.retries = retries
        task.clear()
    assert len(set(generations)) == 4


def test_a_clear_of_what_runs_is_another_where_airflow_takes_its_end_for_a_failure() -> None:
    """Leave max_tries as they were."""
    task = Task(retries=3)
    first = task.next_try()
    task.clears += 1
    assert task.next_try() != first


def test_a_worker_that_dies_when_all_is_done_is_followed_by_a_retry() -> None:
    task = Task(retries=3)
    first = task.next_try()
    task.succeed()
    assert task.next_try() == first


def test_a_run_created_again_under_the_same_name_has_another_generation() -> None:
    first, second = Task(retries=0), Task(retries=0)
    second.ids = 7
    assert first.next_try() != second.next_try()


def test_a_clear_knows_the_generations_before_it_and_a_retry_adds_none() -> None:
    task = Task(retries=3)
    first = task.next_try()
    assert task.next_try() == first
    assert earlier_generations(task.context) == []
    task.clear()
    second = task.next_try()
    assert task.next_try() == second
    assert earlier_generations(task.context) == [first]
    task.succeed()
    task.clear()
    task.next_try()
    assert earlier_generations(task.context) == [first, second]


def test_the_generations_that_are_kept_are_bounded_and_the_last_ones() -> None:
    task = Task(retries=0)
    generations = []
    for _ in range(MAX_EARLIER + 5):
        generations.append(task.next_try())
        task.clear()
    assert earlier_generations(task.context) == generations[:-1][-MAX_EARLIER:]
