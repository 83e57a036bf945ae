"""A master with increments to merge without Spark."""

from collections.abc import Callable

from opal_folder.mutation import Merged, Work, open_master, run_mutation
from opal_lake.result import JobResult
from opal_lake.storage import Storage, open_storage
from tests.opal_folder.plain_merge import OLD, PlainMerge, content, job, text_of


class Shop:
    """A master with increments, on local files or in S3."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        self.uri, self.options = uri, options
        self.place = open_master(f"{uri}/master", options)
        self.put("master", "part-0", text_of(OLD).decode())

    def source(self, folder: str) -> Storage:
        return open_storage(f"{self.uri}/{folder}", self.options)

    def put(self, folder: str, name: str, text: str) -> None:
        assert self.source(folder).put_if_absent(name, text.encode())

    def arrive(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            self.put("incr", name, text)

    def names(self, folder: str) -> list[str]:
        return [file.path for file in self.source(folder).list("")]

    def run(
        self,
        merge: Callable[[Work], Merged] | None = None,
        token: str | None = None,
        **more: object,
    ) -> JobResult:
        given = {"increments": [f"{self.uri}/incr/*.csv"], **more}
        increments = given.pop("increments")
        return run_mutation(
            self.place,
            job(*increments, token=token, **given),
            merge or PlainMerge(self.options),
            self.options,
        )

    def content(self) -> dict[str, str]:
        return content(self.place, self.options)
