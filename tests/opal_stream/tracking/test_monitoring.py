"""The dashboard and the alert rules: every name in them is of a metric that a stream exports."""

import json
import re
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml

from opal_lake.cli import main
from opal_lake.exit_codes import OK
from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.supervise.metrics import FleetMetrics
from opal_stream.tracking.events import FlushEvents, Tracker
from opal_stream.tracking.metrics import HELP, Metrics
from tests.fixtures_cli import metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

FOLDER = Path(str(files("opal_stream.tracking"))) / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana_dashboard.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((FOLDER / "prometheus_alerts.yaml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = {
    panel["title"]: [target["expr"] for target in panel["targets"]] for panel in DASHBOARD["panels"]
}
EXPRESSIONS = [
    *(expr for exprs in PANELS.values() for expr in exprs),
    *(rule["expr"] for rule in RULES),
]
SELECTOR = re.compile(r"((?:opal_stream|process)_\w+)(\{[^}]*\})?(\[[^\]]+\])?")
OF_SUPERVISOR = [
    f"opal_stream_{name}"
    for name in ("predicted_load", "restarts_total", "process_up", "commit_stalled_seconds")
]
OF_OTHERS = {"instance", "job", "process"}  # labels that a scrape or a supervisor adds


def exported() -> dict[str, tuple[str, set[str]]]:
    """Return kind and labels of each metric of a stream and its supervisor."""
    fleet = FleetMetrics()
    fleet.gather(dict.fromkeys(OF_SUPERVISOR, MappingProxyType({0: 1.0})), {0})
    metrics = Metrics()
    tracker, partition = Tracker(metrics=metrics), Partition(topic="orders", number=0)
    consumed = Consumed(low=0, high=3, records=3, bytes=30, oldest_ms=1, newest_ms=1)
    tracker.flushed(FlushEvents(consumed={partition: consumed}, version=1, took_s=0.1, bad=0))
    tracker.gap(partition, 3, 5)
    tracker.gathered(7, 1.5)
    tracker.seen({partition: (5, 9)})
    tracker.stuck(1)
    tracker.topic_changed(partition.topic)
    page = metrics.text() + fleet.text()
    kinds = dict(re.findall(r"# TYPE (\w+) (\w+)", page))
    labels = {
        name: set(re.findall(r'(\w+)="', shown))
        for name, shown in re.findall(r"^(\w+)(\{.*\})? ", page, re.MULTILINE)
    }
    return {name: (kind, labels[name]) for name, kind in kinds.items()}


def test_everything_declared_is_exported_and_shown() -> None:
    assert set(exported()) == set(HELP)
    shown = {name for expression in EXPRESSIONS for name, _, _ in SELECTOR.findall(expression)}
    assert shown == set(HELP)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_fits_the_metrics(expression: str) -> None:
    metrics, actual = exported(), SELECTOR.findall(expression)
    assert actual
    for name, selector, span in actual:
        kind, labels = metrics[name]
        assert set(re.findall(r"(\w+)=~", selector)) <= labels | OF_OTHERS
        assert span or kind == "gauge", "a counter is read by rate or increase over a span"
        if span:
            functions = "rate|increase" if kind == "counter" else "avg_over_time"
            assert re.search(rf"({functions})\({name}", expression)
        for remaining in re.findall(r"by \(([^)]*)\)", expression):
            assert set(remaining.split(", ")) <= labels | OF_OTHERS
    assert all(
        expression.count(entry) == expression.count(other) for entry, other in ("()", "{}", "[]")
    )


def test_the_dashboard_is_what_provisioning_takes() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    assert "id" not in DASHBOARD  # Grafana gives it out
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
    assert used == names
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        own = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_sums_in_panels_leave_out_the_committer() -> None:
    sums = [
        expression
        for title, expressions in PANELS.items()
        for expression in expressions
        if re.search(
            r"_(records|bytes|bad_messages|skipped_offsets|repeated_messages)_total\{", expression
        )
        and title != "Load by process"
    ]
    assert len(sums) == 5
    assert all('process!="committer"' in expression for expression in sums)


def test_each_trouble_of_a_stream_has_an_alert() -> None:
    assert {rule["alert"].removeprefix("OpalStream") for rule in RULES} >= {
        "Lag",
        "Stalled",
        "Loss",
        "Duplicates",
        "ProcessDown",
        "CommitStalled",
        "TopicChanged",
        "Stuck",
    }


def test_alert_rules_have_only_known_fields_and_labels() -> None:
    known_labels = {"topic", "partition", "instance", "process"}
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        labels = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert labels <= known_labels


@pytest.mark.usefixtures("opal_commands")
@pytest.mark.parametrize(
    "word, name", [("dashboard", "grafana_dashboard.json"), ("alerts", "prometheus_alerts.yaml")]
)
def test_the_command_prints_the_files(
    word: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", word]) == OK
    assert capsys.readouterr().out == (FOLDER / name).read_text(encoding="utf-8")
