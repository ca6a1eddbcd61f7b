"""The dashboard for Grafana shows figures that the servers have, and the compose file mounts what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

REPO = Path(__file__).resolve().parents[2]
SOURCES = ("src/stillweb/replay/server/metrics.py", "src/stillweb/server/monitor/status.py")


def metric_names() -> set[str]:
    replay, serve = ((REPO / path).read_text("utf-8") for path in SOURCES)
    names = set(re.findall(r'"(stillweb_\w+)"', replay))
    names |= {f"stillweb_worker_{name}" for name in re.findall(r'^        "(\w+)": \(', replay, re.MULTILINE)}
    names |= {
        f"stillweb_serve_{name}" for name in re.findall(r'_(?:gauge|counters?|histogram)\("(\w+)"', serve)
    }
    return names | {f"stillweb_serve_queue_{name}" for name in ("under_way", "waiting")}


def test_every_figure_of_the_dashboard_exists() -> None:
    dashboard = json.loads((REPO / "docker/observability/dashboard.json").read_text("utf-8"))
    shown = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    used = {re.sub(r"_(?:total|bucket)$", "", name) for name in re.findall(r"stillweb_\w+", shown)}
    assert len(used) >= 12
    assert used <= metric_names()


def test_the_services_mount_files_that_exist() -> None:
    services = yaml.safe_load((REPO / "docker-compose.yml").read_text("utf-8"))["services"]
    mounted = [
        volume.split(":")[0] for name in ("prometheus", "grafana") for volume in services[name]["volumes"]
    ]
    files = [path for path in mounted if path.startswith("./")]
    assert len(files) == 4
    assert all((REPO / path).is_file() for path in files)
    scraped = yaml.safe_load((REPO / "docker/observability/prometheus.yml").read_text("utf-8"))[
        "scrape_configs"
    ]
    targets = {target for job in scraped for config in job["static_configs"] for target in config["targets"]}
    assert {target.partition(":")[0] for target in targets} <= set(services)
