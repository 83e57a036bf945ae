"""A stream as a service: systemd's unit in the docs, and docker/kubernetes/stream.yaml."""

import argparse
import os
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from opal_lake.cli import build_parser
from opal_lake.exit_codes import FINAL
from opal_stream.operations.verbs import METRICS_HOST
from opal_stream.timeouts import drain_s, supervisor_drain_s
from tests.docs.build import ROOT, example_with, page_text
from tests.fixtures_cli import metadata, opal_commands

__all__ = ["metadata", "opal_commands"]

PAGE = "docs/how-to/streams.md"
UNIT = example_with(PAGE, "[Service]").text
POD = yaml.safe_load((ROOT / "docker/kubernetes/stream.yaml").read_text())["spec"]["template"]
CONTAINER: dict[str, Any] = POD["spec"]["containers"][0]
COMMANDS = {
    "unit": shlex.split(UNIT.split("ExecStart=")[1].splitlines()[0]),
    "pod": CONTAINER["args"],
}


def service() -> dict[str, str]:
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    unit.read_string(UNIT)
    return dict(unit["Service"])


def parsed(command: list[str]) -> argparse.Namespace:
    return build_parser().parse(command[1:])


@pytest.mark.usefixtures("opal_commands")
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_reads_topics_and_serves_metrics(name: str) -> None:
    program = Path(COMMANDS[name][0]).name
    args = parsed(COMMANDS[name])
    assert (program, args.command, args.verb) == ("opal", "stream", "run")
    assert args.topics == ["orders"]
    assert args.metrics_port == 9464


def test_the_unit_is_started_again_unless_the_same_would_fail_again() -> None:
    unit = service()
    assert unit["Restart"] == "always"
    assert unit["RestartPreventExitStatus"].split() == [str(code) for code in FINAL]


def test_both_give_a_stream_the_time_that_it_may_need_to_end() -> None:
    unit = service()
    assert (unit["KillSignal"], unit["TimeoutStopSec"]) == ("SIGTERM", f"{drain_s():g}s")
    assert POD["spec"]["terminationGracePeriodSeconds"] == drain_s()
    assert f"{supervisor_drain_s():g} seconds" in page_text(PAGE)


def test_probes_ask_the_metrics_port_at_an_address_that_others_reach() -> None:
    [port] = CONTAINER["ports"]
    assert f"--metrics-port={port['containerPort']}" in CONTAINER["args"]
    assert METRICS_HOST != "0.0.0.0"
    assert "--metrics-host=0.0.0.0" in CONTAINER["args"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"]["port"] == port["name"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    # systemd looks for the program and the user, which this machine lacks
    path = tmp_path / "opal-orders.service"
    path.write_text(
        UNIT.replace("/opt/opal/bin/opal", "/bin/true").replace("User=opal", "User=root")
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert (verified.returncode, verified.stderr) == (0, "")
