"""The soak's own model agrees with the model table, and its witnesses detect wrong reads."""

import random
from pathlib import Path

import numpy as np

from tests.kit import model
from tests.soak.audit import Auditor, acknowledged, wasted
from tests.soak.model import Model, difference
from tests.soak.rows import (
    DELETED,
    SCHEMA,
    TICK,
    Batch,
    arrow_of,
    batch_of,
    columns_from,
    columns_of,
)
from tests.soak.site import Site


def small(turn: int) -> dict[str, np.ndarray]:
    rows = columns_of(Batch(writer=turn % 3, turn=turn, tick=turn * 40))
    return {name: values % 40 if name == "sku" else values for name, values in rows.items()}


def test_soak_model_agrees_with_the_model_table() -> None:
    mine, theirs = Model(), []
    for turn in range(6):
        rows = small(turn)
        mine.add(rows, turn * 2)
        for position, (sku, at, price) in enumerate(
            zip(*(rows[name].tolist() for name in ("sku", "at", "price")), strict=True)
        ):
            deleted = price == DELETED
            theirs.append(
                model.ModelRow(
                    key=(sku,),
                    delta=at,
                    ties=(),
                    row_id=(turn, position),
                    deleted=deleted,
                    processed=turn * 2,
                    values={"p": price},
                )
            )
    for version in range(12):
        for event_time in (None, *range(0, 300 * TICK, 37 * TICK)):
            actual = mine.visible(version, event_time)
            expected = sorted(
                (row.key[0], row.delta, row.values["p"])
                for row in model.visible(theirs, version, event_time)
            )
            assert (
                sorted(
                    zip(*(actual[name].tolist() for name in ("sku", "at", "price")), strict=True)
                )
                == expected
            )


def test_a_batch_follows_from_its_token_and_survives_arrow() -> None:
    batch = Batch(writer=2, turn=9, tick=77)
    assert batch_of(batch.token) == batch
    rows = columns_of(batch)
    order = np.argsort(rows["sku"])
    assert (
        difference(
            columns_from(arrow_of(rows)[0]), {name: rows[name][order] for name in SCHEMA.names}
        )
        == ""
    )
    assert len(set(rows["sku"].tolist())) == len(rows["sku"])


def test_deltas_of_different_batches_never_meet() -> None:
    seen: set[int] = set()
    for turn in range(50):
        for writer in range(4):
            mine = set(
                columns_of(
                    Batch(writer=writer, turn=turn, tick=random.Random(turn).randrange(5000))
                )["at"].tolist()
            )
            assert seen.isdisjoint(mine)
            seen |= mine


def test_the_difference_reports_a_wrong_row() -> None:
    right = columns_from(arrow_of(columns_of(Batch(writer=1, turn=1, tick=1)))[0])
    wrong = {name: values.copy() for name, values in right.items()}
    wrong["price"][0] += 1
    assert "1 rows missing" in difference(wrong, right)


def test_the_audit_reports_work_that_no_commit_names(tmp_path: Path) -> None:
    site = Site(folder=str(tmp_path), uri=str(tmp_path / "table"), options={}, began=0, keep_s=60)
    site.create()
    table, auditor = site.table("inline"), Auditor(table=site.table("audit"))
    batch = Batch(writer=1, turn=1, tick=1)
    result = table.ingest(*arrow_of(columns_of(batch)), token=batch.token, metadata="inline")
    table.storage.put_if_absent("data/0000000009-00000000-0.parquet", b"lost")
    auditor.follow()
    job = {
        "role": "inline",
        "operation": "inline",
        "base": 0,
        "began": 0,
        "ended": 1e12,
        "version": result.version,
        "token": batch.token,
    }
    assert [(waste.files, waste.size) for waste in wasted(site, auditor, [job])] == [(1, 4)]
    assert acknowledged([job], auditor.ledger) == []
    assert acknowledged([job | {"version": 7}], auditor.ledger) == [batch.token]
    assert auditor.reread(table) == {0: "", 1: ""}
