"""`opal stream dashboard` and `opal stream alerts`: what Grafana and Prometheus take as it is."""

from importlib.resources import files

MONITORING = {"dashboard": "grafana_dashboard.json", "alerts": "prometheus_alerts.yaml"}


def print_monitoring(word: str) -> None:
    print(
        files("opal_stream.tracking")
        .joinpath("monitoring", MONITORING[word])
        .read_text(encoding="utf-8"),
        end="",
    )
