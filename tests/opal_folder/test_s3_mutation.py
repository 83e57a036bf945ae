"""A master in S3: two runs at once, and what of its folder is whose."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opal_folder import mutation
from opal_folder.increments import Increment, list_increments
from opal_folder.master_folder import MasterFile
from opal_folder.mutation import Merged, Work, open_master, recover, run_mutation
from opal_folder.s3_master import S3Master
from opal_lake.errors import ConflictError, InvalidInputError
from opal_lake.storage.s3 import S3Storage
from tests.opal_folder.plain_merge import LINES, NEW, OLD, PlainMerge, job
from tests.opal_folder.shop import Shop
from tests.s3_requests import counted

pytestmark = pytest.mark.s3


@pytest.fixture
def shop(s3_options: dict[str, str], tmp_path: Path) -> Shop:
    return Shop(f"s3://lake/{tmp_path.name}", s3_options)


def all_is_merged_once(shop: Shop) -> None:
    assert shop.content() == NEW
    assert shop.names("incr") == []
    assert shop.names("master.mutate/working") == []
    assert sorted(name.rpartition("-")[2] for name in shop.names("master.mutate/done")) == sorted(
        LINES
    )


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_run_that_is_undone_while_it_takes_increments_loses_none(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    copy, made = S3Storage.copy_from, [0]

    def overtaken(self: S3Storage, source: S3Storage, source_path: str, path: str) -> None:
        copy(self, source, source_path, path)
        made[0] += 1
        if made[0] == copies:
            recover(shop.place)

    shop.arrive(LINES)
    monkeypatch.setattr(S3Storage, "copy_from", overtaken)
    with pytest.raises(ConflictError, match="took the increments of this one over: try again"):
        shop.run()
    assert shop.content() == OLD
    assert (shop.names("incr"), shop.names("master.mutate/working")) == (sorted(LINES), [])
    shop.run()
    all_is_merged_once(shop)


@pytest.mark.parametrize("copies", [0, 1, 2, 3])
def test_only_one_of_two_concurrent_runs_merges(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    copy, made = S3Storage.copy_from, [0]

    def beside_another(self: S3Storage, source: S3Storage, source_path: str, path: str) -> None:
        made[0] += 1
        if made[0] == copies + 1:
            shop.run()
        copy(self, source, source_path, path)

    def after_another(work: Work) -> Merged:
        if copies == len(LINES):
            shop.run()
        return PlainMerge(shop.options)(work)

    shop.arrive(LINES)
    if copies < len(LINES):
        monkeypatch.setattr(S3Storage, "copy_from", beside_another)
    with pytest.raises(ConflictError, match="took the increments of this one over: try again"):
        shop.run(after_another)
    all_is_merged_once(shop)
    assert shop.run().version is None


def test_a_run_that_listed_what_another_one_merges_does_not_begin(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = list_increments

    def beside_another(*arguments: Any) -> Any:
        increments = listed(*arguments)
        monkeypatch.setattr(mutation, "list_increments", listed)
        shop.run()
        return increments

    shop.arrive(LINES)
    monkeypatch.setattr(mutation, "list_increments", beside_another)
    with pytest.raises(ConflictError, match="has begun this moment: try again"):
        shop.run()
    all_is_merged_once(shop)


def test_a_run_whose_number_others_have_used_and_forgotten_does_not_begin(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them failed, and the next one deleted its documents."""
    listed = list_increments

    def beside_others(*arguments: Any) -> Any:
        increments = listed(*arguments)
        monkeypatch.setattr(mutation, "list_increments", listed)
        shop.put("incr", "bad.csv", "bad\n")
        with pytest.raises(InvalidInputError, match="has a bad row"):
            shop.run()
        shop.source("incr").delete(["bad.csv"])
        shop.run(increments=[f"{shop.uri}/other/1.csv"])
        return increments

    shop.arrive(LINES)
    shop.put("other", "1.csv", "a,8\n")
    monkeypatch.setattr(mutation, "list_increments", beside_others)
    with pytest.raises(ConflictError, match="has begun this moment: try again"):
        shop.run()
    assert not [name for name in shop.names("master.mutate/runs") if name.startswith("00000001/")]
    assert (shop.content()["a"], shop.names("incr")) == ("8", sorted(LINES))
    shop.run()
    assert (shop.content(), shop.names("incr")) == (NEW, [])


def test_a_late_copy_of_an_undone_run_is_deleted_by_the_next_run(shop: Shop) -> None:
    shop.arrive(LINES)
    shop.run()
    shop.put("master.mutate", "working/00000001/000000-one.csv", "a,9\n")
    shop.arrive({"2.csv": "a,11\n"})
    shop.run()
    assert shop.names("master.mutate/working") == []
    assert shop.content() == {**NEW, "a": "11"}


def test_an_increment_that_is_replaced_while_it_is_taken_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = S3Storage.copy_from

    def replaced(self: S3Storage, source: S3Storage, source_path: str, path: str) -> None:
        source.delete([source_path])
        assert source.put_if_absent(source_path, b"a,10000\n")
        copy(self, source, source_path, path)

    shop.arrive({"1.csv": "a,10\n"})
    monkeypatch.setattr(S3Storage, "copy_from", replaced)
    with pytest.raises(
        InvalidInputError,
        match=r"1\.csv was replaced while it was listed \(5 bytes, then 8 bytes\)",
    ):
        shop.run()
    monkeypatch.undo()
    assert (shop.content(), shop.names("incr")) == (OLD, ["1.csv"])
    assert shop.run().version == 2


def test_copies_of_a_killed_run_are_deleted_and_not_given_back(shop: Shop) -> None:
    """A file may be a copy of what another run has merged."""
    shop.arrive(LINES)
    increments = [
        increment.to_dict()
        for increment in list_increments([f"{shop.uri}/incr"], shop.options, lambda _: False)
    ]
    claim = {"run": 1, "token": None, "increments": increments, "backups": 3}
    shop.put("master.mutate", "runs/00000001/claim.json", json.dumps(claim))
    for number, name in enumerate(sorted(LINES)[:2]):
        shop.put("master.mutate", f"working/00000001/{number:06d}-{name}", LINES[name])
    shop.source("incr").delete(sorted(LINES)[:1])
    recover(shop.place)
    assert shop.names("master.mutate/working") == []
    assert shop.names("incr") == sorted(LINES)[1:]


def test_a_file_that_replaces_an_increment_during_a_merge_is_merged_next(shop: Shop) -> None:
    def replaced(work: Work) -> Merged:
        work_done = PlainMerge(shop.options)(work)
        shop.source("incr").delete(["1.csv"])
        shop.put("incr", "1.csv", "a,100\n")
        return work_done

    shop.arrive({"1.csv": "a,10\n"})
    shop.run(replaced)
    assert (shop.content()["a"], shop.names("incr")) == ("10", ["1.csv"])
    shop.run()
    assert (shop.content()["a"], shop.names("incr")) == ("100", [])


def test_retention_keeps_files_that_others_put_into_the_master_s_folder(shop: Shop) -> None:
    shop.put("master", "part-1", "e,5\n")
    for number in range(3):
        shop.arrive({f"{number}.csv": f"a,{number + 10}\n"})
        if number == 0:
            shop.run(lambda work: _while_others_write(shop, work), backups=1)
        else:
            shop.run(backups=1)
        shop.put("master", f"mine-{number}.csv", "x,1\n")
    assert shop.names("master") == [
        "during.csv",
        "mine-0.csv",
        "mine-1.csv",
        "mine-2.csv",
        "part-1",
    ]
    assert shop.names("master.mutate/originals") == []
    assert shop.content() == {**OLD, "a": "12", "e": "5"}


def _while_others_write(shop: Shop, work: Work) -> Merged:
    """Somebody puts a file next to the master's, and replaces one of them."""
    merged = PlainMerge(shop.options)(work)
    shop.put("master", "during.csv", "y,1\n")
    shop.source("master").delete(["part-1"])
    shop.put("master", "part-1", "e,50\n")
    return merged


def test_files_that_a_newer_master_still_has_are_kept(shop: Shop) -> None:
    shop.put("master", "part-1", "e,5\n")

    def half(work: Work) -> Merged:
        touched = [file for file in work.master if file.path != "part-1"]
        return replace(
            PlainMerge(shop.options)(replace(work, master=touched)),
            untouched=[file for file in work.master if file not in touched],
        )

    for number in range(3):
        shop.arrive({f"{number}.csv": f"a,{number + 10}\n"})
        shop.run(half, backups=1)
    assert shop.names("master") == ["part-1"]
    assert shop.content() == {**OLD, "a": "12", "e": "5"}
    shop.arrive({"3.csv": "a,13\n"})
    shop.run(backups=0)
    assert shop.names("master") == []
    assert shop.names("master.mutate/originals") == []


def test_a_master_may_be_called_by_either_scheme(shop: Shop) -> None:
    """The same holds for files that an older run made, and for those of no run."""
    shop.put("master", "part-1", "e,5\n")

    def only_a(work: Work) -> Merged:
        own = [file for file in work.master if file.path.startswith("part-0")]
        untouched = [file for file in work.master if file not in own]
        return replace(PlainMerge(shop.options)(replace(work, master=own)), untouched=untouched)

    def only_new(work: Work) -> Merged:
        return replace(PlainMerge(shop.options)(replace(work, master=[])), untouched=work.master)

    for number, (scheme, merge) in enumerate(
        [("s3", only_a), ("s3a", only_new), ("s3", only_new), ("s3a", only_new)]
    ):
        shop.arrive({f"{number}.csv": f"a{number},{number}\n"})
        folder = open_master(shop.place.uri.replace("s3://", f"{scheme}://"), shop.options)
        run_mutation(folder, job(f"{shop.uri}/incr/*.csv", backups=0), merge, shop.options)
        assert shop.content() == {
            **OLD,
            "e": "5",
            **{f"a{before}": str(before) for before in range(number + 1)},
        }
    assert shop.names("master") == ["part-1"]
    with pytest.raises(InvalidInputError, match="lies in the master"):
        shop.run(increments=[f"{shop.place.uri}/part-1".replace("s3://", "s3a://")])


def requests_after(
    shop: Shop, s3_options: dict[str, str], former: Sequence[int]
) -> dict[int, Counter[str]]:
    """Return the requests of a run, and of the same command again, after so many runs."""
    verbs: dict[int, Counter[str]] = {}
    for number in range(max(former) + 1):
        shop.arrive({f"{number}.csv": f"a,{number + 10}\n"})
        named = [f"{shop.uri}/incr/{number}.csv"]
        with counted(s3_options) as requests:
            assert shop.run(increments=named).version == number + 1
            assert shop.run(increments=named).version is None
        if number in former:
            verbs[number] = requests.verbs
    return verbs


def test_a_run_costs_as_much_after_a_few_runs_as_after_more(
    shop: Shop, s3_options: dict[str, str]
) -> None:
    few, many = requests_after(shop, s3_options, [5, 9]).values()
    assert few == many
    assert few.total() == 43 + 8
    assert {name.partition("/")[0] for name in shop.names("master.mutate/runs")} == {
        f"{run:08d}" for run in range(7, 11)
    }
    assert shop.run(increments=[f"{shop.uri}/incr/0.csv"]).version is None
    with pytest.raises(InvalidInputError, match="does not exist: it is neither a file"):
        shop.run(increments=[f"{shop.uri}/incr/csv"])


def test_a_reader_beside_a_run_that_forgets_those_before_finds_the_newest_master(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs that it has listed are forgotten before it reads the first of them."""
    get = S3Storage.get

    def late(self: S3Storage, path: str, *span: Any) -> bytes:
        if path == "runs/00000001/outcome.json":
            monkeypatch.setattr(S3Storage, "get", get)
            shop.arrive({"2.csv": "a,11\n"})
            shop.run(backups=0)
        return get(self, path, *span)

    shop.arrive({"1.csv": "a,10\n"})
    shop.run(backups=3)
    monkeypatch.setattr(S3Storage, "get", late)
    assert shop.content() == {**OLD, "a": "11"}


@pytest.mark.slow
def test_a_run_costs_as_much_after_100_runs_as_after_10(
    shop: Shop, s3_options: dict[str, str]
) -> None:
    few, many = requests_after(shop, s3_options, [10, 100]).values()
    assert few == many


@pytest.mark.parametrize(
    "names, gone, lists",
    [
        (["a.csv"], [], 1),
        (["a.csv", "z.csv"], [], 2),
        (["a.csv", "z.csv"], ["b.csv", "m1.csv.gz", "zz.csv"], 3),
        (["m0.csv", "m1.csv", "m2.csv"], [], 1),
        (["m9", "mz"], [], 3),
    ],
)
def test_files_between_increments_are_not_listed(
    shop: Shop,
    s3_options: dict[str, str],
    names: list[str],
    gone: list[str],
    lists: int,
) -> None:
    """Pages have three objects instead of a thousand."""
    shop.arrive(dict.fromkeys([*(f"m{number}.csv" for number in range(9)), *names], "a,1\n"))
    increments = [
        Increment(root=f"{shop.uri}/incr", path=name, size=4, modified_us=0)
        for name in [*names, *gone]
    ]
    master = replace(S3Master.open(shop.place.uri, s3_options), page_objects=3)
    with counted(s3_options) as requests:
        with_stamps = list(master._with_stamps(increments))
    sizes = [(increment.path, stamp and stamp[0]) for increment, stamp in with_stamps]
    assert sizes == [(name, 4) for name in names] + [(name, None) for name in gone]
    assert requests.verbs["LIST"] == lists


def test_runs_that_fail_cost_no_more_each_time(shop: Shop, s3_options: dict[str, str]) -> None:
    shop.arrive({"1.csv": "bad\n"})
    costs = []
    for _ in range(5):
        with (
            counted(s3_options) as requests,
            pytest.raises(InvalidInputError, match="has a bad row"),
        ):
            shop.run()
        costs.append(requests.total)
    assert costs[2] == costs[4]


def test_a_run_that_was_given_up_on_and_forgotten_decides_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others took its increments over and deleted its documents before it decides."""
    remember = S3Master.remember

    def overtaken(self: S3Master, run: int, master: Sequence[MasterFile]) -> None:
        monkeypatch.setattr(S3Master, "remember", remember)
        for number in range(3):
            shop.run(backups=0)
            shop.arrive({f"{number}.csv": f"x,{number}\n"})

    shop.arrive({"1.csv": "a,10\n"})
    monkeypatch.setattr(S3Master, "remember", overtaken)
    with pytest.raises(ConflictError, match="have finished the increments of this one: try again"):
        shop.run()
    assert shop.content() == {**OLD, "a": "10", "x": "1"}
    shop.run()
    assert shop.content() == {**OLD, "a": "10", "x": "2"}
    assert shop.names("incr") == []
