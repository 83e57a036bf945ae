"""One page of metrics from the files of several processes."""

import re
import urllib.request
from pathlib import Path

from opal_stream.kafka.consumed import Consumed
from opal_stream.kafka.topics import Partition
from opal_stream.supervise.metrics import FleetMetrics
from opal_stream.tracking.events import FlushEvents, Tracker
from opal_stream.tracking.metrics import Metrics


def test_samples_of_all_processes_are_on_one_page_each_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    fleet = FleetMetrics(path=str(path), port=0)
    try:
        for number in range(2):
            [word] = fleet.flags(number)
            tracker = Tracker(metrics=Metrics(path=word.removeprefix("--metrics-file=")))
            consumed = {
                Partition(topic="orders", number=number): Consumed(
                    low=0, high=3, records=3, bytes=30, oldest_ms=1, newest_ms=1
                )
            }
            tracker.flushed(FlushEvents(consumed=consumed, version=1, took_s=0.1, bad=0))
        own = {
            "opal_stream_predicted_load": {0: 12.5, 1: 3.0},
            "opal_stream_restarts_total": {0: 2, "committer": 1},
        }
        fleet.gather(own, {0, 1})
        page = path.read_text()
        assert 'opal_stream_records_total{process="1",topic="orders",partition="1"} 3\n' in page
        assert (
            'opal_stream_flushes_total{process="0"} 1\nopal_stream_flushes_total{process="1"} 1\n'
            in page
        )
        assert 'opal_stream_predicted_load{process="0"} 12.5\n' in page
        assert 'opal_stream_restarts_total{process="0"} 2\n' in page
        assert 'opal_stream_restarts_total{process="committer"} 1\n' in page
        assert page.count("# TYPE opal_stream_records_total counter\n") == 1
        assert page.index("# TYPE opal_stream_records_total") < page.index(
            "opal_stream_records_total{"
        )
        for number in range(2):
            memory = re.search(
                rf'process_resident_memory_bytes{{process="{number}"}} (\d+)\n', page
            )
            assert memory is not None
            assert int(memory[1]) > 1 << 20
            assert f'process_cpu_seconds_total{{process="{number}"}} ' in page
        with urllib.request.urlopen(f"http://127.0.0.1:{fleet.port}/metrics") as answer:
            assert answer.read().decode() == page
        [word] = fleet.flags(1)  # its successor begins with nothing
        fleet.gather({"opal_stream_predicted_load": {0: 1.0, 1: 1.0}}, {0, 1})
        assert 'records_total{process="1"' not in path.read_text()
        assert "restarts_total" not in path.read_text()
        fleet.gather({}, {1})  # the plan has no process 0 any more
        with urllib.request.urlopen(f"http://127.0.0.1:{fleet.port}/metrics") as answer:
            assert answer.read().decode() == path.read_text() == ""
    finally:
        fleet.close()
    assert not Path(word.removeprefix("--metrics-file=")).parent.exists()


def test_without_a_path_or_port_processes_write_no_metrics() -> None:
    fleet = FleetMetrics()
    assert (fleet.flags(0), fleet.port) == ([], None)
    fleet.gather({"opal_stream_predicted_load": {0: 1.0}}, {0})
    fleet.close()
