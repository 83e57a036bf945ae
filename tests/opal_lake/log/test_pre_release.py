"""Tables that a pre-release wrote: refused by one message, and never overwritten."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from opal_lake.cli import main
from opal_lake.errors import FormatError, InvalidInputError, PreReleaseError
from opal_lake.exit_codes import INPUT
from opal_lake.key_store.run import decode_run
from opal_lake.log.commit import canonical_json, decode_commit, encode_commit, seal, unseal
from opal_lake.storage.memory import MemoryStorage
from opal_lake.table import Table
from tests.golden.make_golden import HERE
from tests.opal_lake.shop import create

FROZEN = HERE / "pre_release"  # of a create, an inline ingest and a checkpoint
REFUSAL = (
    "was written by a pre-release of this format and cannot be read; "
    "create the table again, at another path or after you have deleted this one"
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(FROZEN, tmp_path / "old")


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_table_of_a_pre_release_is_refused(old: Path, has_checkpoint: bool) -> None:
    if not has_checkpoint:
        shutil.rmtree(old / "_opal/checkpoints")
    first_read = "checkpoints/9" if has_checkpoint else "log/0"
    for read in (
        lambda: Table.open(str(old)).read(),
        lambda: Table.open(str(old)).read(version=0),
        lambda: Table.open(str(old)).ingest(pa.table({"id": [1], "at": [1]})),
    ):
        with pytest.raises(PreReleaseError, match=f"{old}/_opal/{first_read}[0-9]*.*{REFUSAL}"):
            read()


@pytest.mark.parametrize("command", ["describe", "read", "check", "retain"])
def test_commands_call_a_table_of_a_pre_release_wrong_input(
    command: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(old)]) == INPUT
    assert REFUSAL in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--if-absent"]])
def test_create_does_not_overwrite_a_table_of_a_pre_release(old: Path, more: list[str]) -> None:
    before = files(old)
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    with pytest.raises(InvalidInputError, match="is an Opal table already"):
        Table.create(str(old), schema, keys=["id"], delta="at")
    columns = ["--key", "id", "--delta", "at", "--schema", "id BIGINT, at BIGINT"]
    assert main(["create", str(old), *columns, *more]) == INPUT
    assert files(old) == before


def test_each_sealed_document_and_run_of_a_pre_release_is_refused() -> None:
    sealed = [*FROZEN.rglob("*.json")]
    assert {path.parent.name for path in sealed} == {"checkpoints", "claims", "log"}
    for path in sealed:
        with pytest.raises(PreReleaseError, match=f"{path.name} {REFUSAL}"):
            unseal(path.read_bytes(), path.name)
    (run,) = FROZEN.rglob("*.run")
    with pytest.raises(PreReleaseError, match=f"{run.name} {REFUSAL}"):
        decode_run(run.read_bytes(), run.name)


def test_a_commit_of_another_format_is_refused() -> None:
    body = unseal(encode_commit(create(MemoryStorage()).log.read_commit(0)), "it") | {"format": 2}
    with pytest.raises(FormatError, match=r"it has format 2, but .* reads only format 1; upgrade"):
        decode_commit(seal(canonical_json(body)), "it")
