"""The verbs `opal stream dashboard` and `alerts`: files for Grafana and Prometheus."""

import argparse
from importlib.resources import files
from typing import Any

from opal_lake.cli.command import exit_code_lines, sentence

MONITORING = {
    "dashboard": ("grafana_dashboard.json", "print a dashboard for Grafana"),
    "alerts": ("prometheus_alerts.yaml", "print alerts for Prometheus"),
}  # by verb: its file and its summary


def add_monitoring(verbs: Any) -> None:
    """Register both verbs, which take no table."""
    for name, (_, summary) in MONITORING.items():
        example = f"opal stream {name}"
        parser: argparse.ArgumentParser = verbs.add_parser(
            name,
            help=summary,
            description=sentence(summary),
            epilog=f"example:\n  {example}\n\n{exit_code_lines()}",
        )
        parser.set_defaults(run=print_monitoring, example=example, traceback=False)


def print_monitoring(args: argparse.Namespace) -> None:
    """Print the file of the verb."""
    name, _ = MONITORING[args.verb]
    file = files("opal_stream.tracking").joinpath("monitoring", name)
    print(file.read_text(encoding="utf-8"), end="")
