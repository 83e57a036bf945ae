"""The verb `opal pack`. It needs no Spark and no table."""

import argparse
import json
import sys
from pathlib import Path

from opal_lake.cli.command import Verb, Verbs, add_everywhere, begin_verb
from opal_lake.cli.progress import ProgressLine, Step
from opal_lake.cli.render import Style, size_text
from opal_spark.cli.archive import PACKAGES, PYTHON, Packed, Packing, default_packages

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
        help="add an installed package and its requirements, such as opal-lake[kafka]; or your own "
        "folder or module, such as ./shop; repeat the flag for more",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing archive")
    add_everywhere(parser, "opal")


def pack(args: argparse.Namespace) -> None:
    """Run `opal pack`."""
    with ProgressLine("pack", lambda: Step(name="collecting packages")) as line:
        packing = Packing(args.extra, default_packages())
        line.where = packing.step
        packed = packing.write(Path(args.output), overwrite=args.overwrite)
    sys.stdout.write(_json(packed) if args.json else _page(packed))


def settings(packed: Packed) -> dict[str, object]:
    """Return the operator's arguments for an archive."""
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
    arguments = settings(packed)
    archives = arguments["archives"]
    to_operator = (
        "Put the archive where the Airflow worker or the cluster can read it "
        "(a local path, hdfs://, s3a://), and pass it to an operator:"
    )
    python = (
        f"Every node needs a Python {PYTHON} on its PATH, or OPAL_PYTHON set to its path for the "
        "driver and the executors."
    )
    lines = [
        f"{style.strong(str(packed.path))}  {size_text(packed.size)}, for Python {PYTHON}",
        f"  {names}",
        "",
        to_operator,
        f"  archives={json.dumps(archives)},",
        f"  conf={json.dumps(arguments['conf'])},",
        "",
        "Or pass it to spark-submit. In client mode the driver uses this machine's Python:",
        f"  --archives '{archives}' --conf spark.pyspark.python=./{FOLDER}/bin/python \\",
        f"  --conf spark.pyspark.driver.python={sys.executable}      (client mode only)",
        "",
        python,
        f"The archive contains the app: {FOLDER}/{PACKAGES}/opal_spark/submit/app.py",
        "",
    ]
    return "\n".join(lines)
