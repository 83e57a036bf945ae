"""Compare: `python -m tests.bench.peers --help`, or `make bench NAME=peers`."""

import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from tests.bench.peers.catalog import DELTA, HUDI, HUDI_PYSPARK, ICEBERG, SYSTEMS
from tests.bench.peers.charts import draw_charts
from tests.bench.peers.child import ChildError
from tests.bench.peers.figures import Results, load_results
from tests.bench.peers.fleet import Fleet
from tests.bench.peers.limits import check_limits
from tests.bench.peers.measures import MEASURE, warm_up
from tests.bench.peers.options import Options, parse
from tests.bench.peers.ratios import all_ratios, as_rows, ratio_table
from tests.bench.peers.tables import LeftOutError, Run


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.redraw is not None:
        return _report(options, load_results(options.redraw))
    signal.signal(signal.SIGTERM, _as_interrupt)
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="opal-bench-peers-", dir=options.folder)).resolve()
    fleet = Fleet(
        folder=folder, memory=options.memory, cores=options.cores, timeout_s=options.timeout_s
    )
    results = Results(path=options.out / f"{options.name}.json", about=_about(options))
    try:
        _measure(Run(options=options, fleet=fleet, results=results))
        fleet.stop()
    except KeyboardInterrupt:
        print(f"\nended before its time; what was measured is in {results.path}", flush=True)
        return 130
    except ChildError as error:
        print(f"the run ends: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        fleet.kill()
        if options.keep:
            print(f"tables and logs are in {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return _report(options, results)


def _measure(run: Run) -> None:
    about = run.results.about
    began = time.monotonic()
    run.fleet.start(list(run.options.systems))
    about["spark"], about["unavailable"], about["failed"] = (
        run.fleet.spark,
        run.fleet.unavailable,
        run.fleet.failed,
    )
    warm_up(run)
    for measure in run.options.only:
        print(f"\n{measure}, {time.monotonic() - began:.0f} s since the start", flush=True)
        measure_began = time.monotonic()
        try:
            MEASURE[measure](run)
        except LeftOutError as error:
            print(f"left out: {error}", flush=True)
            about["left_out"].append(str(error))
        about["seconds"][measure] = round(time.monotonic() - measure_began)
        run.results.save()


def _report(options: Options, results: Results) -> int:
    ratios = all_ratios(results.figures)
    results.ratios = as_rows(ratios)
    results.save()
    print(ratio_table(ratios))
    charts = draw_charts(results, results.path)
    print(f"\nwritten: {', '.join(str(path) for path in (results.path, *charts))}")
    verdicts = check_limits({ratio.name: ratio.value for ratio in ratios}) if options.check else []
    for verdict in verdicts:
        print(verdict)
    differ = [check for check in results.checks if not check["agree"]]
    failed = results.about["failed"]
    for name in failed:
        print(f"{name} failed on the way")
    if differ:
        print(
            f"systems differ in {len(differ)} of {len(results.checks)} checks: their figures mean "
            "nothing"
        )
    return int(bool(differ or failed or any(verdict.failed for verdict in verdicts)))


def _about(options: Options) -> dict[str, Any]:
    settings = {
        name: getattr(options, name)
        for name in Options.__slots__
        if name not in ("out", "folder", "keep", "redraw")
    }
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
    }
    peers = {"delta": DELTA, "iceberg": ICEBERG, "hudi": f"{HUDI} with PySpark {HUDI_PYSPARK}"}
    kinds = {name: spec.kind for name, spec in SYSTEMS.items()}
    return {
        "machine": machine,
        "settings": settings,
        "peers": peers,
        "kinds": kinds,
        "seconds": {},
        "left_out": [],
        "failed": {},
    }


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
