"""A consumer that was paused for longer than versions are kept gets all keys."""

import json
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_opal import OpalHook
from airflow_provider_opal.backlog import keep_seen_version, savepoint_of, unconsumed_keys
from airflow_provider_opal.watermark import Watermark
from opal_lake import layout
from opal_lake.clock import ManualClock
from opal_lake.errors import NotFoundError
from opal_lake.operations.ingest import Ingest
from opal_lake.storage.memory import MemoryStorage
from opal_lake.storage.open import open_storage
from opal_lake.table import Table, create_on, table_on
from opal_lake.write.ingest_job import IngestRun, commit_ingest, start_ingest
from opal_lake.write.ingest_task import IngestTask, ingest_rows
from tests.airflow_provider_opal.build import Lake, consume, done, event_of, reconcile
from tests.kit.clocks import SilentStore, past_store
from tests.kit.ids import CountingIds
from tests.opal_lake.shop import content, create, rows

DAY_US = 86_400_000_000


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """One that was made forty days ago."""
    monkeypatch.setenv(
        "AIRFLOW_CONN_OPAL_DEFAULT", json.dumps({"conn_type": "opal", "host": str(tmp_path)})
    )
    uri, spec = str(tmp_path / "shop" / "users"), create(MemoryStorage()).snapshot_at().spec
    then = ManualClock(at_us=int(time.time() * 1e6 - 40 * DAY_US))
    create_on(past_store(uri, then), spec, then)
    return table_on(open_storage(uri))


def put(table: Table, key: str, *, days_ago: float) -> int:
    """Ingest a key and make it visible, by a clock of `days_ago`; return the version."""
    then = ManualClock(at_us=int(time.time() * 1e6 - days_ago * DAY_US), step_us=1)
    writer = table_on(past_store(table.uri, then), then, CountingIds(prefix=f"{key}-{days_ago}"))
    writer.ingest(*rows([(key, 1, 1)]), partition_key=key)
    version = writer.metagen(partition_key=key).version
    assert version is not None
    return version


def expire(table: Table, window: str = "2d", grace: str = "1h") -> int:
    """Expire old versions; return the oldest that is left."""
    table.retain(window=window, grace=grace)
    return table.snapshot_at().root.oldest_version


def take(lake: Lake, table: Table, run_id: str, **event: Any) -> dict[str, Any]:
    """Run the consumer by partition; its Spark job has been done before."""
    task = consume("partition")
    key = str(event["partition_key"])
    version = OpalHook().ingests_as_of(
        "shop.users", key, next(iter(notified_versions(event)), None)
    )[0]
    done(table, task, run_id, version)
    context = lake.run(task, run_id, **event)
    task.execute(context)
    return context


def notified_versions(event: dict[str, Any]) -> list[int]:
    extras = [
        asset_event.extra
        for events in event.get("triggering_asset_events", {}).values()
        for asset_event in events
    ]
    return [
        extra["versions"][event["partition_key"]] for extra in extras if "versions" in extra
    ] or [extras[0]["version"]]


def test_keys_of_expired_versions_are_emitted_and_consumed_as_of_the_oldest_one(
    table: Table,
) -> None:
    """Pause the consumer for three weeks.

    The result does not depend on how far the first reconcile looks back.
    """
    lake, look = Lake(), reconcile(look_back=timedelta(days=100))
    take(lake, table, "one", **event_of(put(table, "mon", days_ago=30), key="mon"))
    with pytest.raises(AirflowSkipException):
        look.execute(lake.run(look))
    last = [
        put(table, key, days_ago=days_ago)
        for key, days_ago in (("tue", 20), ("wed", 10), ("thu", 0.1))
    ][-1]
    oldest = expire(table)
    missed = reconcile().execute(lake.run(look))
    assert missed == {"tue": oldest, "wed": oldest, "thu": last}
    for key, version in missed.items():
        assert content(table, partition_key=key, net=True, version=version) == [(key, 1, 1)]
    take(lake, table, "two", **event_of(oldest, again=True, key="tue"))
    assert reconcile(again=timedelta(0)).execute(lake.run(look)) == {
        "wed": oldest,
        "thu": missed["thu"],
    }
    for key in ("wed", "thu"):
        take(lake, table, key, **event_of(missed[key], again=True, key=key))
    with pytest.raises(AirflowSkipException):
        reconcile(again=timedelta(0)).execute(lake.run(look))


def test_a_key_that_was_emitted_again_is_consumed_even_if_its_version_expired_before_the_run(
    table: Table,
) -> None:
    first = put(table, "mon", days_ago=30)
    put(table, "tue", days_ago=5)
    lake, oldest = Lake(), expire(table)
    assert first < oldest
    context = take(lake, table, "one", **event_of(first, key="mon"))
    assert context["task_state_store"]["opal_given"] == {"version": oldest}
    put(table, "wed", days_ago=0)
    while (later := expire(table, "1s", "1s")) == oldest:
        time.sleep(0.1)
    cleared = consume("partition", spark_conn_id="nowhere")
    with pytest.raises(AirflowFailException, match=r"the Spark connection .+ does not exist"):
        cleared.execute(
            {
                **context,
                "ti": context["ti"].__class__(
                    **{**vars(context["ti"]), "max_tries": 9, "run_id": "cleared"}
                ),
            }
        )
    assert cleared.arguments["version"] == later, (
        "what a cleared run was given has expired: the same rows, as of a later version"
    )


@pytest.mark.parametrize("is_oldest_before_it", [True, False])
def test_the_key_of_an_empty_day_is_emitted_as_of_a_version_that_has_it(
    table: Table, is_oldest_before_it: bool
) -> None:
    lake, look = Lake(), reconcile(look_back=timedelta(days=100))
    before = put(table, "mon", days_ago=3)
    then = ManualClock(at_us=int(time.time() * 1e6 - 2 * DAY_US), step_us=1)
    nothing = rows([("a", 1, 1)])[0].slice(0, 0)
    empty = (
        table_on(past_store(table.uri, then), then)
        .ingest(nothing, [], partition_key="sun", token="sun")
        .version
    )
    last = put(table, "tue", days_ago=1)
    oldest = expire(table, "60h" if is_oldest_before_it else "1d", "1h")
    assert (oldest == before) == is_oldest_before_it
    missed = look.execute(lake.run(look))
    assert missed == {
        "mon": oldest,
        "sun": empty if is_oldest_before_it else oldest,
        "tue": max(last, oldest),
    }
    assert content(table, partition_key="sun", net=True, version=missed["sun"]) == []
    for key, version in missed.items():
        take(lake, table, key, **event_of(version, again=True, key=key))
    with pytest.raises(AirflowSkipException):
        reconcile(again=timedelta(0)).execute(lake.run(look))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedStore(SilentStore):
    """Notes the commits that the thread itself reads, one after the other."""

    thread: int
    read: list[str] = field(default_factory=list)

    def get(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if threading.get_ident() == self.thread and layout.commit_version(path) is not None:
            self.read.append(path)
        return self.inner.get(path, start, length)


def test_the_commits_of_a_window_are_read_at_once(table: Table) -> None:
    versions = {
        f"k{number:02d}": put(table, f"k{number:02d}", days_ago=3 - number / 10)
        for number in range(20)
    }
    watermark = Watermark.of(
        Lake().run(look := reconcile()), "shop.users", "opal_default", look.consumer
    )
    store, now = NotedStore(inner=table.storage, thread=threading.get_ident()), datetime.now(UTC)
    assert unconsumed_keys(table_on(store), watermark, now - timedelta(days=9), now) == versions
    assert len({*store.read}) < len(versions), (
        "one after the other only where it searches for a moment"
    )


def test_a_retention_within_the_grace_of_a_reconcile_does_not_stop_it(table: Table) -> None:
    put(table, "mon", days_ago=30)
    last = put(table, "tue", days_ago=1)
    oldest = expire(table, "12h")
    assert oldest >= last > 0
    look = reconcile(grace=timedelta(minutes=30))
    assert look.execute(Lake().run(look)) == {"mon": oldest, "tue": oldest}


def test_a_key_of_an_expired_version_that_came_again_is_read_with_all_that_came_by_the_oldest_one(
    table: Table,
) -> None:
    first = put(table, "mon", days_ago=30)
    then = ManualClock(at_us=int(time.time() * 1e6 - 20 * DAY_US), step_us=1)
    writer = table_on(past_store(table.uri, then), then)
    writer.ingest(*rows([("mon", 2, 5), ("more", 1, 1)]), partition_key="mon")
    writer.metagen(partition_key="mon")
    assert content(table, partition_key="mon", net=True, version=first) == [("mon", 1, 1)]
    assert expire(table) > first
    version = OpalHook().ingests_as_of("shop.users", "mon", first)[0]
    assert content(table, partition_key="mon", net=True, version=version) == [
        ("mon", 2, 5),
        ("more", 1, 1),
    ]


def test_the_first_look_leaves_alone_what_is_older_unless_the_log_does_not_reach_so_far(
    table: Table,
) -> None:
    put(table, "mon", days_ago=30)
    second = put(table, "tue", days_ago=3)
    assert reconcile().execute(Lake().run(reconcile())) == {"tue": second}
    oldest = expire(table, "1d")
    assert reconcile().execute(Lake().run(reconcile())) == {"mon": oldest, "tue": oldest}


def test_late_rows_of_a_key_are_emitted_whatever_the_number_of_their_ingest(table: Table) -> None:
    lake, look = Lake(), reconcile()
    slow = start_ingest(table, Ingest([], partition_key="mon"))
    assert isinstance(slow, IngestRun)
    first = put(table, "mon", days_ago=0)
    take(lake, table, "one", **event_of(first, key="mon"))
    with pytest.raises(AirflowSkipException):
        look.execute(lake.run(look))
    values, deleted = rows([("late", 1, 1)])
    task = IngestTask(
        storage=table.storage,
        spec=slow.base.spec,
        number=slow.number,
        task=0,
        attempt="0",
        quarantine=False,
    )
    batches = values.append_column("_opal_deleted", [deleted]).to_batches()
    commit_ingest(table.log, slow, [ingest_rows(batches, task)])
    late = table.metagen(partition_key="mon").version
    assert look.execute(lake.run(look)) == {"mon": late}


def test_a_key_whose_rows_are_pending_or_discarded_is_emitted_only_once_rows_are_published(
    table: Table,
) -> None:
    """Report a published key, and no key whose check has not passed."""
    lake, look = Lake(), reconcile()
    table.ingest(*rows([("BAD-1", 1, 1)]), partition_key="mon")
    published = put(table, "tue", days_ago=0)
    assert look.execute(lake.run(look)) == {"tue": published}
    table.discard(partition_key="mon")
    with pytest.raises(AirflowSkipException):
        look.execute(lake.run(look))
    table.ingest(*rows([("good", 1, 1)]), partition_key="mon")
    version = table.metagen(partition_key="mon").version
    assert look.execute(lake.run(look)) == {"mon": version}


def test_a_key_that_is_published_and_pending_again_waits_for_its_check(table: Table) -> None:
    lake, look = Lake(), reconcile()
    put(table, "mon", days_ago=0)
    table.ingest(*rows([("BAD-1", 1, 1)]), partition_key="mon", token="bad")
    with pytest.raises(AirflowSkipException):
        look.execute(lake.run(look))
    table.discard(token="bad")
    assert list(look.execute(lake.run(look))) == ["mon"]


def test_no_more_keys_are_emitted_than_the_state_store_can_keep(table: Table) -> None:
    lake, look = Lake(), reconcile(most=1, again=timedelta(0))
    versions = [put(table, f"k{number:02d}", days_ago=0) for number in range(12)]
    assert look.execute(lake.run(look)) == {"k00": versions[0]}
    assert len(look._oldest({f"k{number}": number for number in range(99)})) == 10


def test_versions_that_expired_unseen_fail_the_reconcile_and_are_named(table: Table) -> None:
    lake, task = Lake(), consume("version")
    seen = put(table, "mon", days_ago=30)
    done(table, task, "one", seen)
    task.execute(lake.run(task, "one"))
    put(table, "tue", days_ago=20)
    lost = put(table, "wed", days_ago=10)
    look = reconcile(by="version")
    put(table, "thu", days_ago=0)
    expire(table)
    named = (
        f"version {seen} of .*. Version {lost}, which .* has expired.*another name.*longer window"
    )
    for _ in range(2):
        with pytest.raises(AirflowFailException, match=named):
            look.execute(lake.run(look))
    with pytest.raises(AirflowFailException, match=named):
        consume("version").execute(lake.run(task, "two"))


def test_the_version_that_a_paused_consumer_has_seen_is_kept_until_it_is_back(table: Table) -> None:
    lake, task, look = Lake(), consume("version"), reconcile(by="version")
    seen = put(table, "mon", days_ago=30)
    done(table, task, "one", seen)
    task.execute(lake.run(task, "one"))
    with pytest.raises(AirflowSkipException):
        look.execute(lake.run(look))
    put(table, "tue", days_ago=20)
    put(table, "wed", days_ago=10)
    look.execute(lake.run(look))
    assert table.snapshot_at().root.savepoints == {savepoint_of("d.c"): seen}
    assert expire(table) > seen
    last = put(table, "thu", days_ago=0)
    look.execute(lake.run(look))
    done(table, task, "two", last)
    context = lake.run(task, "two")
    consume("version").execute(context)
    assert context["task_state_store"]["opal_given"] == {"from": seen, "to": last}
    assert content(table, after=seen, version=last) == [
        (key, 1, 1) for key in ("thu", "tue", "wed")
    ]
    with pytest.raises(AirflowSkipException):
        look.execute(lake.run(look))
    assert table.snapshot_at().root.savepoints == {}


def test_the_error_about_expired_changes_names_the_oldest_version_to_start_from(
    table: Table,
) -> None:
    """A savepoint keeps none."""
    lake, task = Lake(), consume("version", rows="changes")
    seen = put(table, "mon", days_ago=30)
    done(table, task, "one", seen)
    task.execute(lake.run(task, "one"))
    put(table, "tue", days_ago=20)
    lost = put(table, "wed", days_ago=10)
    keep_seen_version(table, "d.c", seen)
    oldest = expire(table)
    put(table, "thu", days_ago=0)
    words = (
        rf"version {seen} of .*. Version {lost}, .* has expired"
        rf".*another name \(consumer=\) and start={oldest}: it begins with"
    )
    with pytest.raises(AirflowFailException, match=words):
        consume("version", rows="changes").execute(lake.run(task, "two"))
    assert table.changes(oldest + 1).num_rows == 1


LONG = (
    "analytics_platform_team_daily_revenue_by_region_and_channel_v2_production"
    ".consume_orders_for_dashboard_"
)


@pytest.mark.parametrize(
    "name, other_name",
    [
        (f"{LONG}a", f"{LONG}b"),
        ("d.a=b", "d.a_b"),
        ("my consumer", "my/consumer"),
        ("größe", "gr__e"),
    ],
)
def test_no_two_consumers_share_a_savepoint_whatever_their_names(
    table: Table, name: str, other_name: str
) -> None:
    seen, later = put(table, "mon", days_ago=30), put(table, "tue", days_ago=20)
    put(table, "wed", days_ago=10)
    keep_seen_version(table, name, seen)
    keep_seen_version(table, other_name, later)
    assert table.snapshot_at().root.savepoints == {
        savepoint_of(name): seen,
        savepoint_of(other_name): later,
    }
    keep_seen_version(table, other_name, None)
    assert table.snapshot_at().root.savepoints == {savepoint_of(name): seen}


def test_a_savepoint_of_a_consumer_moves_in_one_commit(table: Table) -> None:
    """A retention between two would take the version that is to be kept."""
    seen, later = put(table, "mon", days_ago=30), put(table, "tue", days_ago=20)
    put(table, "wed", days_ago=10)
    keep_seen_version(table, "d.c", seen)
    before = table.snapshot_at().version
    keep_seen_version(table, "d.c", later)
    assert table.snapshot_at().version == before + 1
    keep_seen_version(table, "d.c", later)
    assert table.snapshot_at().version == before + 1
    expire(table)
    assert content(table, version=later) == [(key, 1, 1) for key in ("mon", "tue")]
    with pytest.raises(NotFoundError):
        content(table, version=seen)


def test_a_consumer_that_is_a_little_behind_costs_no_commits(table: Table) -> None:
    keep_seen_version(table, "d.c", put(table, "mon", days_ago=30))
    seen = put(table, "tue", days_ago=0.5)
    for hours in (5, 4, 3):
        put(table, str(hours), days_ago=hours / 24)
    keep_seen_version(table, "d.c", seen)
    before = table.snapshot_at()
    assert before.root.savepoints == {}, (
        "the next version is 5 hours old, and any retention leaves it a day"
    )
    keep_seen_version(table, "d.c", seen + 2)
    assert table.snapshot_at().version == before.version
    table.set_properties({"window": "12h"})
    keep_seen_version(table, "d.c", seen)
    assert table.snapshot_at().root.savepoints == {savepoint_of("d.c"): seen}


def test_a_new_consumer_by_version_begins_with_all_rows_though_the_first_versions_have_expired(
    table: Table,
) -> None:
    put(table, "mon", days_ago=30)
    put(table, "tue", days_ago=20)
    oldest = expire(table)
    assert oldest > 0
    assert OpalHook().versions_after("shop.users", 0) == (0, oldest)
    assert OpalHook().versions_after("shop.users", 0, 1) == (0, oldest)
    last = put(table, "wed", days_ago=0)
    assert OpalHook().versions_after("shop.users", 0) == (0, last)
    assert OpalHook().versions_after("shop.users", 0, 1) == (0, oldest)
    assert content(table, after=0) == content(table)
    assert content(table, after=0, version=oldest) == content(table, version=oldest)
