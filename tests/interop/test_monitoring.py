"""The Grafana dashboard and the alert rules: their tools read them, and they ask only for what loadax exports.

`promtool` is of Debian's package `prometheus`; `.ci/run` unpacks it.
"""

import json
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.interop.test_prometheus import COUNTERS, GAUGES
from tests.limits import HANG

HERE = Path(__file__).parent
FILES = HERE.parents[1] / "docs/assets/monitoring"
DASHBOARD = json.loads((FILES / "dashboard.json").read_text("utf-8"))
RULES = yaml.safe_load((FILES / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
EXPORTED = {name.partition("{")[0] for name in COUNTERS | GAUGES}


def expressions() -> dict[str, str]:
    """Expressions by the title of their panel, or the name of their rule."""
    found = {rule["alert"]: rule["expr"] for rule in RULES}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            # Grafana sets these variables.
            found[f"{panel['title']} {target['refId']}"] = target["expr"].replace("$__rate_interval", "5m")
    return found


def metrics_of(expression: Any) -> set[str]:
    """Names of the metrics in a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        return {str(expression.name)}
    parts = [getattr(expression, name, None) for name in ("lhs", "rhs", "expr", "param", "vector_selector")]
    found = [metrics_of(part) for part in (*parts, *getattr(expression, "args", ())) if part is not None]
    return set().union(*found)


@pytest.mark.parametrize("name", expressions())
def test_expressions_ask_for_exported_metrics(name: str) -> None:
    found = metrics_of(promql_parser.parse(expressions()[name]))
    assert found
    assert found - {"up"} <= EXPORTED


def test_each_metric_is_on_the_dashboard() -> None:
    shown = set().union(*(metrics_of(promql_parser.parse(text)) for text in expressions().values()))
    assert EXPORTED - shown == {"loadax_train_seconds_total"}  # the rest of the time is shown as waiting


def test_counters_are_shown_as_rates() -> None:
    for name, text in expressions().items():
        for counter in metrics_of(promql_parser.parse(text)):
            if counter.endswith("_total") and name not in {"Masked rows A", "LoadaxBatchDoesNotCome"}:
                assert f"rate({counter}" in text or f"increase({counter}" in text, name


def test_grafana_reads_all_of_the_dashboard() -> None:
    """Decoded into Grafana's own types and encoded again, nothing is lost."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins.register_default_plugins()
    written = json.loads(encoder.JSONEncoder(sort_keys=True).encode(models.Dashboard.from_json(DASHBOARD)))
    assert lost(DASHBOARD, written) == []


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Paths of what is not the same in `after`, which may have defaults beside it."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [text for key in before for text in lost(before[key], after.get(key), f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [text for at, pair in enumerate(zip(before, after, strict=True)) for text in lost(*pair, f"{path}/{at}")]
    return [] if before == after else [f"{path}: {before!r}, {after!r}"]


def test_panels_explain_themselves_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels) == 12
    assert all(panel["description"].endswith(".") for panel in panels)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "job", "instance"}
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert other["x"] + other["w"] <= 24


def test_six_alerts_say_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) == 6
    for rule in RULES:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert "{{ $labels.instance }}" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")


@pytest.mark.parametrize("arguments", [["check", "rules", FILES / "alerts.yml"], ["test", "rules", "alerts.test.yml"]])
def test_prometheus_accepts_the_rules_and_fires_them(arguments: list[str | Path]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("install promtool, of Debian's package prometheus")
    run = subprocess.run([promtool, *arguments], cwd=HERE, capture_output=True, text=True, check=False, timeout=HANG)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "SUCCESS" in run.stdout + run.stderr
