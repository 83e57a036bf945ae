"""The verb `opal pack`. It needs no Spark and no table."""

import argparse
import json
import sys
from pathlib import Path

from opal_lake.cli.command import Verb, Verbs, add_everywhere, begin_verb
from opal_lake.cli.progress import ProgressLine, Step
from opal_lake.cli.render import Style, size_text
from opal_spark.cli.archive import PACKAGES, PYTHON, Packed, Packing, usual

GROUP = "Bring it to a cluster"
EXAMPLE = "opal pack -o environment.tar.gz --with ./shop"
FOLDER = "environment"


def commands(verbs: Verbs) -> None:
    """Register the verb (an `opal.commands` entry point)."""
    summary = "build the archive of packages that a cluster needs"
    verb = Verb(name="pack", group=GROUP, summary=summary, example=EXAMPLE, run=pack)
    parser = begin_verb(verbs, verb)
    parser.add_argument(
        "-o",
        "--output",
        default=f"{FOLDER}.tar.gz",
        metavar="FILE",
        help="the archive (default: %(default)s)",
    )
    parser.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="add an installed package with all that it requires, also by an extra as "
        "opal-lake[kafka]; or a folder or module of your own as ./shop; repeat for more",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the archive if it is there"
    )
    add_everywhere(parser, "opal")


def pack(args: argparse.Namespace) -> None:
    """Run `opal pack`."""
    with ProgressLine("pack", lambda: Step(name="collecting packages")) as line:
        packing = Packing(args.extra, usual())
        line.where = packing.step
        packed = packing.write(Path(args.output), overwrite=args.overwrite)
    sys.stdout.write(_json(packed) if args.json else _page(packed))


def settings(packed: Packed) -> dict[str, object]:
    """Return the arguments to pass to an operator."""
    return {
        "archives": f"{packed.path}#{FOLDER}",
        "conf": {"spark.pyspark.python": f"./{FOLDER}/bin/python"},
    }


def _json(packed: Packed) -> str:
    description = {
        "path": str(packed.path),
        "size": packed.size,
        "python": PYTHON,
        "packages": dict(packed.packages),
        **settings(packed),
    }
    return json.dumps(description, indent=2) + "\n"


def _page(packed: Packed) -> str:
    style = Style.of(sys.stdout)
    names = ", ".join(f"{name} {version}" for name, version in packed.packages.items())
    given = settings(packed)
    archives = given["archives"]
    readable = (
        "Give it to an operator, from a place that the Airflow worker or the cluster can read "
        "(a local path, hdfs://, s3a://):"
    )
    nodes = (
        f"Every node needs a Python {PYTHON} on its PATH, or OPAL_PYTHON in the environment of "
        "driver and executors."
    )
    lines = [
        f"{style.strong(str(packed.path))}  {size_text(packed.size)}, for Python {PYTHON}",
        f"  {names}",
        "",
        readable,
        f"  archives={json.dumps(archives)},",
        f"  conf={json.dumps(given['conf'])},",
        "",
        "or to spark-submit, where a driver on this machine keeps its own Python:",
        f"  --archives '{archives}' --conf spark.pyspark.python=./{FOLDER}/bin/python \\",
        f"  --conf spark.pyspark.driver.python={sys.executable}      (client mode only)",
        "",
        nodes,
        f"The app is in it, too: {FOLDER}/{PACKAGES}/opal_spark/submit/app.py",
        "",
    ]
    return "\n".join(lines)
