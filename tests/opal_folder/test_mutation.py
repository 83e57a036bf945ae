"""A run around its merge: files that move, files that stay, repeats and failures."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from opal_folder import local_master
from opal_folder.increments import list_increments
from opal_folder.journal import Claim, Outcome, decide, write_claim
from opal_folder.mutation import Merged, Work, bytes_of, open_master, recover, run_mutation
from opal_lake.errors import ConflictError, InvalidInputError, PreReleaseError, StorageError
from opal_lake.storage import open_storage
from tests.opal_folder.plain_merge import NEW, OLD, PlainMerge, content, fill, job, text_of
from tests.opal_folder.shop import Shop


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    if request.param == "local":
        return Shop(str(tmp_path), {})
    return Shop(f"s3://lake/{tmp_path.name}", request.getfixturevalue("s3_options"))


def test_the_bytes_of_a_run_are_those_of_master_and_increments(shop: Shop) -> None:
    shop.arrive({"1.csv": "a,9\n", "2.csv": "b,10\n"})
    assert bytes_of(shop.place.uri, job(f"{shop.uri}/incr"), shop.options) == len(text_of(OLD)) + 9


def test_the_size_of_a_run_raises_the_errors_of_the_run(shop: Shop) -> None:
    """The count leaves out what the run would not read.

    These are a known token's increments, and those that a stopped run took.
    """
    uri, asked = shop.place.uri, job(f"{shop.uri}/incr/1.csv")
    for asked_for, message in (
        (asked, "does not exist: it is neither a file"),
        (job(f"{shop.uri}/master"), "lies in the master"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            bytes_of(uri, asked_for, shop.options)
    shop.arrive({"1.csv": "a,9\n"})
    claim = Claim(
        run=1,
        token=None,
        increments=tuple(list_increments(asked.increments, shop.options, lambda _: False)),
        backups=1,
    )
    write_claim(shop.place.side, claim)
    shop.source("incr").delete(["1.csv"])
    assert bytes_of(uri, asked, shop.options) == len(text_of(OLD))
    shop.arrive({"1.csv": "a,9\n"})
    assert shop.run(token="t").version == 2
    missing = job(f"{shop.uri}/incr/2.csv", token="u")
    known = job(f"{shop.uri}/incr/2.csv", token="t")
    assert bytes_of(uri, known, shop.options) == 0
    with pytest.raises(InvalidInputError, match="does not exist: it is neither a file"):
        bytes_of(uri, missing, shop.options)
    shop.put("table/_delta_log", "0.json", "{}")
    with pytest.raises(InvalidInputError, match="is a Delta table"):
        bytes_of(f"{shop.uri}/table", missing, shop.options)


def test_a_run_that_a_pre_release_began_is_left_as_it_is(shop: Shop) -> None:
    """A file that moved into the working folder is perhaps nowhere else."""
    claim = {"run": 1, "token": None, "increments": [], "backups": 3, "copied": False}
    shop.put("master.mutate", "runs/00000001/claim.json", json.dumps(claim))
    shop.put("master.mutate", "working/00000001/000000-1.csv", "a,9\n")
    before = set(shop.names("master.mutate"))
    with pytest.raises(PreReleaseError, match=r"claim\.json has a part 'copied'"):
        shop.run()
    assert set(shop.names("master.mutate")) - {"lock"} == before


def test_increments_are_merged_and_done(shop: Shop) -> None:
    shop.arrive({"1.csv": "a,9\nd,4\n", "2.csv": "a,10\n", "del.csv": "b\n"})
    result = shop.run()
    assert shop.content() == NEW
    assert (result.version, result.counts["files"]) == (1, 3)
    assert shop.names("incr") == []
    assert shop.names("master.mutate/done") == [
        "00000001/000000-1.csv",
        "00000001/000001-2.csv",
        "00000001/000002-del.csv",
    ]
    report = json.loads(
        open_storage(f"{shop.uri}/master.mutate", shop.options).get("reports/00000001.json")
    )
    assert report["counts"] == result.counts


def test_a_run_without_increments_changes_nothing(shop: Shop) -> None:
    merge = PlainMerge(shop.options)
    assert shop.run(merge).version is None
    assert shop.content() == OLD
    assert merge.calls == 0


def test_a_repeated_token_merges_nothing_and_returns_the_first_counts(shop: Shop) -> None:
    shop.arrive({"1.csv": "a,10\n"})
    first = shop.run(token="t")
    shop.arrive({"2.csv": "a,11\n"})
    again = shop.run(token="t")
    assert (again.repeated, again.counts, again.version) == (True, first.counts, 1)
    assert shop.content()["a"] == "10"
    assert shop.run(token="u").version == 2
    assert shop.content()["a"] == "11"


def test_merged_files_may_be_named_again(shop: Shop) -> None:
    shop.arrive({"1.csv": "a,10\n"})
    path = f"{shop.uri}/incr/1.csv"
    assert shop.run(increments=[path]).version == 1
    assert shop.run(increments=[path]).version is None


def test_a_failed_run_gives_its_files_back_and_leaves_the_master(shop: Shop) -> None:
    shop.arrive({"1.csv": "a,10\n", "2.csv": "bad\n"})
    with pytest.raises(InvalidInputError, match=r"incr/2.csv has a bad row"):
        shop.run()
    assert shop.content() == OLD
    assert shop.names("incr") == ["1.csv", "2.csv"]
    assert not [
        name
        for name in shop.names("master.mutate")
        if not name.startswith("runs/") and name != "lock"
    ]
    open_storage(f"{shop.uri}/incr", shop.options).delete(["2.csv"])
    shop.put("incr", "2.csv", "b,20\n")
    assert shop.run().version == 2
    assert shop.content() == {"a": "10", "b": "20", "c": "3"}


def test_a_dry_run_touches_nothing(shop: Shop) -> None:
    shop.arrive({"1.csv": "a,10\n"})
    before = shop.names("")
    result = shop.run(dry_run=True)
    assert (result.version, result.counts["changed"]) == (None, 2)
    assert "dry run" in result.notes[0]
    assert shop.names("") == before


def test_the_given_number_of_old_masters_is_kept(shop: Shop) -> None:
    for number in range(5):
        shop.arrive({f"{number}.csv": f"a,{number + 10}\n"})
        shop.run(backups=2)
    assert shop.content()["a"] == "14"
    if shop.options:
        masters = {name.split("/")[0] for name in shop.names("master.mutate/masters")}
        assert masters == {"00000003", "00000004", "00000005"}
        assert shop.names("master") == []
    else:
        side = Path(shop.uri) / "master.mutate"
        assert sorted(entry.name for entry in side.glob("backup-*")) == ["backup-4", "backup-5"]
        assert (side / "backup-5" / "part-0.csv").read_text() == "a,13\nb,2\nc,3\n"


def test_a_run_that_changes_nothing_or_fails_keeps_all_backups(shop: Shop) -> None:
    def backups_left() -> list[str]:
        return [
            name
            for name in shop.names("master.mutate")
            if name.startswith(("backup-", "masters/", "runs/0000000"))
        ]

    for number in range(3):
        shop.arrive({f"{number}.csv": f"a,{number + 10}\n"})
        shop.run(backups=3)
    before = backups_left()
    shop.arrive({"same.csv": "a,12\n"})
    shop.run(backups=0)
    shop.arrive({"bad.csv": "bad\n"})
    with pytest.raises(InvalidInputError, match="has a bad row"):
        shop.run(backups=0)
    assert set(before) <= set(backups_left())
    shop.source("incr").delete(["bad.csv"])
    shop.arrive({"3.csv": "a,13\n"})
    shop.run(backups=0)
    assert not set(before) & set(backups_left())


def test_records_of_old_runs_are_deleted_and_merged_names_stay_known(tmp_path: Path) -> None:
    shop = Shop(str(tmp_path), {})
    for number in range(6):
        shop.arrive({f"{number}.csv": f"a,{10 + number // 2}\n"})
        shop.run(backups=1, token=str(number))
    records = [entry.name for entry in (tmp_path / "master.mutate" / "runs").iterdir()]
    assert sorted(records) == ["00000003", "00000005", "00000006"]
    assert shop.run(increments=[str(tmp_path / "incr" / "0.csv")]).version is None
    assert shop.run(token="0").repeated


def test_content_that_does_not_change_leaves_the_master_as_it_is(shop: Shop) -> None:
    before = shop.place.master_files()
    shop.arrive({"1.csv": "a,1\n"})
    assert shop.run().version == 1
    assert shop.place.master_files() == before
    assert shop.names("incr") == []


def test_increments_in_the_master_are_refused(shop: Shop) -> None:
    with pytest.raises(InvalidInputError, match="lies in the master"):
        shop.run(increments=[f"{shop.uri}/master"])


def test_increments_in_the_master_are_refused_however_their_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(str(tmp_path), {})
    monkeypatch.chdir(tmp_path)
    for increments in ("master/part-0", "./master", f"file://{tmp_path}/master"):
        with pytest.raises(InvalidInputError, match="lies in the master"):
            run_mutation(open_master("master"), job(increments), PlainMerge())
    assert shop.content() == OLD


@pytest.mark.parametrize(
    "log",
    ["_delta_log/0.json", "metadata/v1.metadata.json", ".hoodie/hoodie.properties", "_opal/log/0"],
)
def test_a_table_is_refused_as_a_master(shop: Shop, log: str) -> None:
    shop.put("master", log, "{}")
    shop.arrive({"1.csv": "a,10\n"})
    with pytest.raises(InvalidInputError, match="only its log says which files count"):
        shop.run()
    assert shop.names("incr") == ["1.csv"]


@pytest.mark.parametrize("folder", ["incr", "master"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_local_file_with_a_colon_is_refused_by_its_name(
    tmp_path: Path, folder: str, dry_run: bool
) -> None:
    shop = Shop(str(tmp_path), {})
    shop.arrive({"1.csv": "a,9\n"})
    shop.put(folder, "a:b.csv", "b,9\n")
    before = shop.names("")
    with pytest.raises(
        InvalidInputError,
        match=rf"/{folder}/a:b\.csv cannot be read, .* has a colon.* rename it to 'a_b\.csv'",
    ):
        shop.run(dry_run=dry_run)
    assert [name for name in shop.names("") if not name.endswith("/lock")] == before


def test_a_run_that_was_taken_over_decides_nothing(shop: Shop) -> None:
    """Another run that believes this one dead has written an outcome first."""
    shop.arrive({"1.csv": "a,10\n"})
    merge = PlainMerge(shop.options)

    def overtaken(work: Work) -> Merged:
        merged = merge(work)
        assert decide(shop.place.side, 1, Outcome(is_decided=False))
        return merged

    with pytest.raises(ConflictError, match="took the increments"):
        shop.run(overtaken)
    assert shop.content() == OLD
    assert shop.run().version == 2
    assert shop.content()["a"] == "10"


def test_s3_says_that_the_folder_itself_is_old(s3_options: dict[str, str], tmp_path: Path) -> None:
    shop = Shop(f"s3://lake/{tmp_path.name}", s3_options)
    shop.arrive({"1.csv": "a,10\n"})
    assert "read_master" in " ".join(shop.run().notes)
    assert shop.names("master") == ["part-0"]


def test_an_increment_that_grows_while_it_is_read_is_refused(tmp_path: Path) -> None:
    shop = Shop(str(tmp_path), {})
    shop.arrive({"1.csv": "a,10\n"})
    merge = PlainMerge()

    with open(tmp_path / "incr" / "1.csv", "a", encoding="utf-8") as writer:

        def beside_a_writer(work: Work) -> Merged:
            merged = merge(work)
            writer.write("b,20\n")
            writer.flush()
            return merged

        with pytest.raises(
            InvalidInputError, match=r"1\.csv was written to while it was read \(5 bytes"
        ):
            shop.run(beside_a_writer)
    assert shop.content() == OLD
    assert (tmp_path / "incr" / "1.csv").read_text() == "a,10\nb,20\n"


def test_a_copy_is_deleted_if_its_original_is_still_there(tmp_path: Path) -> None:
    """A file on another file system that can only be read."""
    shop = Shop(str(tmp_path), {})
    shop.arrive({"1.csv": "a,10\n"})

    def beside_the_original(_: Work) -> Merged:
        shop.arrive({"1.csv": "a,10\n"})
        raise InvalidInputError("so the files go back")

    with pytest.raises(InvalidInputError, match="so the files go back"):
        shop.run(beside_the_original)
    assert shop.names("incr") == ["1.csv"]
    shop.run()
    assert shop.content()["a"] == "10"


def test_an_increment_of_another_file_system_is_on_the_disk_before_its_original_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename does not reach another file system, as the system reports."""
    shop = Shop(str(tmp_path), {})
    shop.arrive({"1.csv": "a,10\n"})
    rename, fsync, source = os.rename, os.fsync, tmp_path / "incr" / "1.csv"
    synced: list[str] = []

    def by_copy(origin: object, target: object) -> None:
        if str(origin) == str(source):
            raise OSError(errno.EXDEV, "another file system")
        rename(origin, target)  # type: ignore[arg-type]  # as os.rename takes them

    def noted(file: int) -> None:
        fsync(file)
        if source.exists():
            synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)

    monkeypatch.setattr(os, "rename", by_copy)
    monkeypatch.setattr(os, "fsync", noted)
    shop.run()
    assert shop.content()["a"] == "10"
    assert not source.exists()
    assert synced[-2:] == [".000000-1.csv.part", "00000001"]


def test_two_runs_at_once_exclude_each_other(tmp_path: Path) -> None:
    shop = Shop(str(tmp_path), {})
    shop.arrive({"1.csv": "a,10\n"})
    code = f"""
from opal_folder.mutation import open_master
with open_master({shop.uri + "/master"!r}).lock():
    print("locked", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(ConflictError, match="another run"):
            shop.run()
        other.communicate("\n")
    assert shop.run().version == 1


def test_a_reader_never_finds_a_mixture_or_nothing(tmp_path: Path) -> None:
    shop = Shop(str(tmp_path), {})
    master, seen, stop = tmp_path / "master", set[str](), threading.Event()

    def read() -> None:
        while not stop.is_set():
            folder = os.open(master, os.O_RDONLY)  # at no moment is the master missing
            opened = [
                os.open(name, os.O_RDONLY, dir_fd=folder)
                for name in os.listdir(folder)
                if not name.startswith(("_", "."))
            ]
            seen.add("".join(os.pread(file, 1000, 0).decode() for file in opened))
            for file in (folder, *opened):
                os.close(file)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(8):
        shop.arrive({f"{number}.csv": f"a,{number + 10}\nx{number},0\n"})
        shop.run()
    stop.set()
    reader.join()
    known = {"a,1\nb,2\nc,3\n"} | {
        f"a,{last + 10}\nb,2\nc,3\n"
        + "".join(f"x{number},0\n" for number in sorted(range(last + 1), key=str))
        for last in range(8)
    }
    assert seen <= known
    assert len(seen) > 1


def test_an_open_folder_keeps_the_old_master_after_a_swap(
    tmp_path: Path,
) -> None:
    shop = Shop(str(tmp_path), {})
    listed, folder = (
        list((tmp_path / "master").iterdir()),
        os.open(tmp_path / "master", os.O_RDONLY),
    )
    shop.arrive({"1.csv": "a,10\n"})
    shop.run()
    with pytest.raises(FileNotFoundError):
        listed[0].read_bytes()
    with os.fdopen(os.open("part-0", os.O_RDONLY, dir_fd=folder), "rb") as file:
        assert file.read() == text_of(OLD)
    os.close(folder)


@pytest.mark.parametrize("broken_after", [0, 1, 2])
def test_without_a_call_that_exchanges_folders_two_renames_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken_after: int
) -> None:
    """The next run repairs a crash between the renames."""
    shop = Shop(str(tmp_path), {})
    shop.arrive({"1.csv": "a,10\n"})
    renamed, rename = [0], os.rename
    monkeypatch.setattr(local_master, "exchange", lambda first, second: False)

    def failing(source: object, target: object) -> None:
        if str(tmp_path / "master") in (str(source), str(target)):
            renamed[0] += 1
            if renamed[0] > broken_after:
                raise KeyboardInterrupt
        rename(source, target)  # type: ignore[arg-type]  # as os.rename takes them

    monkeypatch.setattr(os, "rename", failing)
    if broken_after < 2:
        with pytest.raises(KeyboardInterrupt):
            shop.run()
    monkeypatch.setattr(os, "rename", rename)
    recover(shop.place)
    shop.run()
    assert shop.content()["a"] == "10"
    assert [entry.name for entry in (tmp_path / "master.mutate").glob("backup-*")] == ["backup-1"]


def test_the_new_master_has_the_permissions_of_the_old_one(tmp_path: Path) -> None:
    shop = Shop(str(tmp_path), {})
    (tmp_path / "master").chmod(0o750)
    shop.arrive({"1.csv": "a,10\n"})
    assert shop.run().version == 1
    assert (tmp_path / "master").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("in_the_way", ["", "working"])
def test_a_step_that_the_file_system_refuses_is_an_error_and_changes_nothing(
    tmp_path: Path, in_the_way: str
) -> None:
    shop = Shop(str(tmp_path), {})
    shop.arrive({"1.csv": "a,10\n"})
    stone = tmp_path / "master.mutate" / in_the_way
    stone.parent.mkdir(exist_ok=True)
    stone.write_text("a file where a folder has to be")
    with pytest.raises(
        StorageError, match=r"the file system refused a step .* remove the cause, then run it again"
    ):
        shop.run()
    assert (shop.names("incr"), (tmp_path / "master" / "part-0").read_bytes()) == (
        ["1.csv"],
        text_of(OLD),
    )
    stone.unlink()
    shop.run()
    assert shop.content()["a"] == "10"


def test_a_new_master_needs_no_folder(tmp_path: Path) -> None:
    fill(tmp_path / "incr", {"1.csv": "a,10\n"})
    folder = open_master(str(tmp_path / "lake" / "master"))
    (tmp_path / "lake").mkdir()
    assert run_mutation(folder, job(str(tmp_path / "incr")), PlainMerge()).version == 1
    assert content(folder) == {"a": "10"}
