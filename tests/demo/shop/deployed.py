"""The demo's story in a running deployment, such as docker/compose.yaml, with the DAGs of that.

    python -m tests.demo.shop.deployed http://api-server:8080

The shop's files are written into its store. The environment has the other settings, as for
Airflow's own processes: the connections opal_default and lakechime_default, the Variables
shop_source and pageviews, and OPAL_DEMO_PASSWORD, the password of Airflow's user admin.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from opal_lake.cli.render import Style
from opal_lake.storage.open import open_storage
from tests.demo.shop.rest import DeployedAirflow
from tests.demo.shop.shop import write_shop
from tests.demo.shop.story import Demo, Places, wait_for_dags

PASSWORD = "OPAL_DEMO_PASSWORD"
_SOURCE, _FOREIGN = "AIRFLOW_VAR_SHOP_SOURCE", "AIRFLOW_VAR_PAGEVIEWS"


def put_shop(source: str, options: Mapping[str, str]) -> None:
    """Write the shop's files into the store."""
    # Existing files stay: they are the same each time
    store = open_storage(source, options)
    with tempfile.TemporaryDirectory() as folder:
        write_shop(Path(folder))
        for path in sorted(Path(folder).rglob("*.json")):
            store.put_if_absent(path.relative_to(folder).as_posix(), path.read_bytes())


def run(url: str) -> None:
    from airflow_provider_opal.hooks.lakechime import LakeChimeHook
    from airflow_provider_opal.hooks.opal import OpalHook

    lake, events = OpalHook().lake, LakeChimeHook().address
    places = Places(
        root=lake.root,
        options=lake.options,
        foreign=os.environ[_FOREIGN],
        events=events.url,
        token=events.token,
    )
    put_shop(os.environ[_SOURCE], lake.options)
    airflow = DeployedAirflow(address=url, secret=os.environ[PASSWORD])
    wait_for_dags(airflow)
    demo = Demo(airflow=airflow, places=places, style=Style.of(sys.stdout))
    demo.say(f"Airflow is up at {airflow.url}; the lake is in {lake.root}")
    demo.run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the story. Exit code 0 when everything was shown."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.demo.shop.deployed",
        description="The shop's story in a deployment.",
    )
    parser.add_argument("url", help="URL of Airflow's api-server")
    url = parser.parse_args(argv).url
    missing = [name for name in (PASSWORD, _SOURCE, _FOREIGN) if not os.environ.get(name)]
    if missing:
        parser.error(
            f"the environment has no {', '.join(missing)}: run this module in a container of the "
            "deployment, as `make up EXAMPLE=shop` does"
        )
    try:
        run(url)
    except (RuntimeError, TimeoutError) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
