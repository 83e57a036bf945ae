"""A merge of `id,value` lines without Spark.

So the steps around a merge can be tried hundreds of times.
"""

from pathlib import Path

from opal_folder.master_folder import MasterFolder, MasterForm
from opal_folder.mutation import Merged, Work
from opal_lake.errors import InvalidInputError
from opal_lake.operations.mutate import Mutate
from opal_lake.s3a import is_s3
from opal_lake.storage import open_storage

OLD = {"a": "1", "b": "2", "c": "3"}
NEW = {"a": "10", "c": "3", "d": "4"}
FORM = MasterForm(format="csv", schema={}, options={"header": "false"})
LINES = {"one.csv": "a,9\nd,4\n", "two.csv": "a,10\n", "del.csv": "b\n"}


def job(*increments: str, **more: object) -> Mutate:
    return Mutate(increments=list(increments), ids=["0"], delete_prefix="del", header=False, **more)


class PlainMerge:
    """The function that `run_mutation` calls."""

    def __init__(self, options: dict[str, str] | None = None) -> None:
        self.options = options or {}
        self.calls = 0

    def __call__(self, work: Work) -> Merged:
        self.calls += 1
        rows = {
            line.split(",")[0]: line.split(",")[1]
            for file in work.master
            for line in self._lines(file.root, file.path)
        }
        before = dict(rows)
        for increment, (storage, path) in zip(work.increments, work.readable, strict=True):
            for line in storage.get(path).decode().split():
                if line == "bad":
                    raise InvalidInputError(f"{increment.source} has a bad row")
                name, _, value = line.partition(",")
                if increment.is_deletes("del"):
                    rows.pop(name, None)
                else:
                    rows[name] = value
        counts = {
            "files": len(work.increments),
            "changed": len(set(before.items()) ^ set(rows.items())),
        }
        if work.target is not None:
            text = "".join(f"{name},{value}\n" for name, value in sorted(rows.items()))
            assert work.side.put_if_absent(f"{work.target}/part-0.csv", text.encode())
            assert work.side.put_if_absent(f"{work.target}/_SUCCESS", b"")
        files = [{"file": increment.source} for increment in work.increments]
        is_changed = rows != before
        form = FORM if is_changed else None
        return Merged(counts=counts, is_changed=is_changed, form=form, files=files)

    def _lines(self, root: str, path: str) -> list[str]:
        return open_storage(root, self.options if is_s3(root) else {}).get(path).decode().split()


def content(folder: MasterFolder, options: dict[str, str] | None = None) -> dict[str, str]:
    """Return the content that readers see."""
    merge = PlainMerge(options)
    lines = [line for file in folder.master_files() for line in merge._lines(file.root, file.path)]
    assert len(lines) == len({line.split(",")[0] for line in lines})
    return dict(line.split(",") for line in lines)


def text_of(rows: dict[str, str]) -> bytes:
    return "".join(f"{name},{value}\n" for name, value in rows.items()).encode()


def fill(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
