"""The demo: a shop's lake under a real Airflow, from a YAML file to backfills and time travel.

    python -m tests.demo.shop [--exit] [--port 8080]

All files are in a folder of its own, which is deleted when the demo ends. Airflow stays up until
Ctrl-C; with `--exit` it ends on its own.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lakechime.location import EMBEDDED
from opal_lake.cli.render import Style
from tests.demo.shop.local_airflow import ENDS, LocalAirflow, free_port, local_airflow
from tests.demo.shop.rest import USER
from tests.demo.shop.shop import write_shop
from tests.demo.shop.story import Demo, Places, wait_for_dags

DAGS = Path(__file__).parents[3] / "dags"
PORT = 8080


def prepare(airflow: LocalAirflow, folder: Path) -> None:
    """Create the connections and variables, and wait until the DAGs are parsed."""
    lake = {
        "connection_id": "opal_default",
        "conn_type": "opal",
        "host": str(folder / "lake"),
        "description": "The shop's lake",
    }
    spark = {
        "connection_id": "spark_default",
        "conn_type": "spark",
        "host": "local[2]",
        "description": "Spark on this machine",
    }
    for connection in (lake, spark):
        # The UI's test button sends port 0 for a missing one, and Airflow refuses another port
        airflow.api("POST", "/connections", {**connection, "port": 0})
    folders = {
        "shop_source": "in",
        "shop_reports": "reports",
        "pageviews": "foreign/pageviews",
        "visit_source": "visits",
    }
    for name, subfolder in folders.items():
        airflow.api("POST", "/variables", {"key": name, "value": str(folder / subfolder)})
    wait_for_dags(airflow)


def run(folder: Path, port: int, *, stays: bool) -> None:
    """Start, fill and show the lake; with `stays`, wait for Ctrl-C afterwards."""
    style = Style.of(sys.stdout)
    (folder / "lake").mkdir()
    write_shop(folder / "in")
    chosen = free_port(port)
    if chosen != port:
        print(f"Port {port} is taken; Airflow gets {chosen}.")
    print("Starting Airflow: scheduler, dag-processor, triggerer, api-server ...", flush=True)
    settings = {"AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "60"}
    with local_airflow(folder / "airflow", DAGS, settings, chosen) as airflow:
        prepare(airflow, folder)
        places = Places(
            root=str(folder / "lake"),
            foreign=str(folder / "foreign" / "pageviews"),
            events=f"sqlite:///{airflow.home / EMBEDDED}",
        )
        demo = Demo(airflow=airflow, places=places, style=style)
        demo.say(f"Airflow is up at {airflow.url}: user {USER}, password {airflow.password}")
        print(f"    the DAGs are those of dags/shop.opal.yaml; the lake is in {folder / 'lake'}")
        demo.run()
        if stays:
            demo.say(
                f"Airflow stays up at {airflow.url} (user {USER}, password {airflow.password}). "
                "Ctrl-C ends the demo and deletes its files."
            )
            while True:
                time.sleep(3600)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Exit code 0 when everything was shown; Ctrl-C is the usual end."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.demo.shop",
        description="A shop's lake under a real Airflow.",
    )
    parser.add_argument(
        "--exit", action="store_true", help="end after the demo, instead of keeping Airflow up"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        help="port of Airflow's UI; if it is taken, a free one is used (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    # SIGINT too: a shell may have started this process with it ignored
    for number in ENDS:
        signal.signal(number, _interrupted)
    folder = Path(tempfile.mkdtemp(prefix="opal-demo-"))
    try:
        run(folder, args.port, stays=not args.exit)
    except (RuntimeError, TimeoutError) as error:
        print(f"the demo failed: {error}\nits files are in {folder}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _interrupted(*_: object) -> None:
    # A second signal would interrupt the stopping of the processes
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    print("\nEnding Airflow ...", flush=True)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
