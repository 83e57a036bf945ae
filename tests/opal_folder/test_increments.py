"""Files that are increments, and the values of their names."""

import os
from pathlib import Path

import pytest

from opal_folder.increments import Increment, in_order, list_increments
from opal_folder.merged_names import keep_names, was_merged
from opal_lake.errors import InvalidInputError
from opal_lake.storage import open_storage
from tests.opal_folder.plain_merge import fill


def names(increments: list[Increment]) -> list[str]:
    return [increment.name for increment in increments]


def listed(*paths: object) -> list[Increment]:
    return list_increments([str(path) for path in paths], {}, lambda _: False)


@pytest.fixture
def incr(tmp_path: Path) -> Path:
    folder = tmp_path / "incr"
    fill(folder, {"a_20.csv": "x", "b_3.csv": "x", "_SUCCESS": "", ".hidden": "x"})
    fill(folder / "country=de%2Fx", {"c_100.csv.gz": "x"})
    return folder


def test_a_folder_a_pattern_and_a_file_name_increments(incr: Path) -> None:
    assert names(listed(incr)) == ["a_20.csv", "b_3.csv", "c_100.csv.gz"]
    assert names(listed(incr / "*.csv")) == ["a_20.csv", "b_3.csv"]
    assert names(listed(incr / "[b-c]_*")) == ["b_3.csv"]
    assert names(listed(incr / "{b,a}_*")) == ["a_20.csv", "b_3.csv"]
    assert names(listed(f"file://{incr}/b_3.csv", f"file:{incr}/a*")) == ["b_3.csv", "a_20.csv"]
    assert names(listed(incr / "b_3.csv", incr)) == ["b_3.csv", "a_20.csv", "c_100.csv.gz"]


def test_a_pattern_may_find_nothing_and_a_path_that_is_not_there_is_a_mistake(incr: Path) -> None:
    assert listed(incr / "*.json") == []
    with pytest.raises(InvalidInputError, match="does not exist"):
        listed(incr / "z.csv")
    for path in ("file:///no such file", "file:/no such file", "/no such file"):
        with pytest.raises(InvalidInputError, match="does not exist: it is neither a file"):
            listed(path)
    with pytest.raises(InvalidInputError, match="credentials"):
        listed("s3://key:secret@bucket/incr")


@pytest.mark.parametrize("given", ["incr", "incr/*", "incr/d_1.csv"])
def test_a_symbolic_link_is_refused(incr: Path, given: str) -> None:
    (incr / "d_1.csv").symlink_to(incr / "b_3.csv")
    with pytest.raises(
        InvalidInputError,
        match=r"d_1\.csv is a symbolic link, which is not followed: give the path behind it",
    ):
        listed(incr.parent / given)
    assert names(listed(incr / "[a-c]*.csv")) == ["a_20.csv", "b_3.csv"]


def test_a_folder_may_be_reached_through_a_link_but_not_be_one(incr: Path) -> None:
    (incr.parent / "link").symlink_to(incr)
    assert names(listed(incr.parent / "link" / "*.csv")) == ["a_20.csv", "b_3.csv"]
    for given in ("link", "link/"):
        with pytest.raises(InvalidInputError, match="link is a symbolic link"):
            listed(f"{incr.parent}/{given}")


def test_folders_that_a_pattern_cannot_mean_are_not_looked_through(
    incr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (incr.parent / "other" / "deep").mkdir(parents=True)
    scandir, seen = os.scandir, list[str]()
    monkeypatch.setattr(
        os, "scandir", lambda folder: (seen.append(Path(folder).name), scandir(folder))[1]
    )
    assert names(listed(incr.parent / "inc*")) == ["a_20.csv", "b_3.csv", "c_100.csv.gz"]
    assert "incr" in seen
    assert not {"other", "deep"} & {*seen}


def test_a_name_with_a_line_break_is_refused(incr: Path) -> None:
    (incr / "e\n5.csv").write_text("x")
    with pytest.raises(InvalidInputError, match="has a control character in its name: rename it"):
        listed(incr)
    (incr / "_e\n5.csv").write_text("x")
    (incr / "e\n5.csv").unlink()
    assert len(listed(incr)) == 3


def test_a_missing_path_that_was_merged_before_is_accepted(incr: Path) -> None:
    assert (
        list_increments([str(incr / "z.csv")], {}, lambda path: path == str(incr / "z.csv")) == []
    )


@pytest.mark.parametrize("root", ["/data/incr", "file:///data/incr", "s3a://lake/data/incr", "/"])
def test_names_that_were_merged_are_known_whole_however_they_are_written(
    tmp_path: Path, root: str
) -> None:
    side = open_storage(str(tmp_path))
    keep_names(
        side,
        [
            Increment(root=root, path=path, size=1, modified_us=0)
            for path in ("1.csv", "day=1/2.csv")
        ],
    )
    other = {
        "/data/incr": "file:///data/incr",
        "file:///data/incr": "/data/x/../incr/",
        "s3a://lake/data/incr": "s3://lake/data/incr/",
        "/": "file:///",
    }[root]
    for known in (root, other):
        plain = known.removesuffix("/")
        assert all(
            was_merged(side, name)
            for name in (known, f"{plain}/1.csv", f"{plain}/day=1", f"{plain}/day=1/2.csv")
        )
        others = ("2.csv", "day=1/1.csv", "1.cs", "day", "data/incr", "incr/1.csv")
        assert not any(was_merged(side, f"{plain}/{name}") for name in others)
    assert root == "/" or not was_merged(side, root.rpartition("/")[0])


def test_suffixes_order_files_as_numbers(incr: Path) -> None:
    assert names(in_order(listed(incr), "file_suffix")) == ["b_3.csv", "a_20.csv", "c_100.csv.gz"]
    assert names(in_order(listed(incr), "at")) == ["a_20.csv", "b_3.csv", "c_100.csv.gz"]


def test_a_file_without_a_suffix_cannot_be_ordered_by_it(tmp_path: Path) -> None:
    fill(tmp_path, {"products.csv": "x"})
    with pytest.raises(InvalidInputError, match="has no suffix"):
        in_order(listed(tmp_path), "file_suffix")


def test_a_folder_s_name_gives_its_decoded_value(incr: Path) -> None:
    assert listed(incr / "country=de%2Fx")[0].folders == {"country": "de/x"}


@pytest.mark.parametrize(
    "name, suffix",
    [
        ("a_5", 5),
        ("a_5.csv.gz", 5),
        ("part-0_1427764070.csv", 1427764070),
        ("a5.csv", None),
        ("a_b.csv", None),
    ],
)
def test_a_suffix_is_the_number_after_the_last_underscore(name: str, suffix: int | None) -> None:
    assert Increment(root="/in", path=name, size=1, modified_us=0).suffix == suffix


def test_an_increment_goes_through_json(incr: Path) -> None:
    for increment in listed(incr):
        assert Increment.from_dict(increment.to_dict()) == increment


@pytest.mark.parametrize("log", ["_opal/log", "_delta_log", ".hoodie"])
def test_files_of_a_table_are_not_increments(incr: Path, log: str) -> None:
    fill(incr / "stock", {"part_1.parquet": "x"})
    fill(incr / "stock" / log, {"0.json": "{}"})
    for path in (incr / "stock", incr, incr / "*"):
        with pytest.raises(InvalidInputError, match=r"incr/stock is a table, .* Nothing was"):
            listed(path)
    assert names(listed(incr / "*.csv")) == ["a_20.csv", "b_3.csv"]
