"""Charts of a run as Vega-Lite specifications.

Vega-Lite: Satyanarayan et al., "Vega-Lite: A Grammar of Interactive Graphics", 2017.
"""

from collections.abc import Mapping
from typing import Any

from loadax.loader.reports.run_record import RunRecord

# Colours of Okabe and Ito, which people with colour blindness can tell apart, on white and on black.
_COLOURS = {
    "waiting": "#d55e00",
    "training": "#8a8a8a",
    "read": "#0072b2",
    "transform": "#cc79a7",
    "assemble": "#009e73",
    "place": "#e69f00",
}
_MIB = 1024 * 1024
_SECONDS = {"title": "seconds since the start", "type": "quantitative"}


def charts(records: Mapping[str, RunRecord]) -> list[tuple[str, str, dict[str, Any]]]:
    """Title, explanation and specification of each chart.

    Args:
        records: Records of the hosts of a run, or of several runs, by name.
    """
    values = [
        value for name, record in records.items() for value in _bin_rows(name, record)
    ]
    several = len(records) > 1
    found = [
        (
            "Waiting for data",
            "Share of the time that training waited for data.",
            _over_time(values, "waited", "waited", several, {"format": "%"}),
        ),
        (
            "Throughput",
            "Rows of the global batches that training took in a second.",
            _over_time(values, "rate", "rows per second", several),
        ),
        (
            "Batches ready",
            "Placed batches that were ready when training took one: at 0, it waits.",
            _over_time(values, "ready", "batches", several),
        ),
    ]
    if any(one[5] for record in records.values() for one in record.bins):
        memory = _over_time(values, "memory", "MiB", several)
        text = "Resident memory of the process, with all that it has loaded."
        found.append(("Memory", text, memory))
    found.append(_timeline(records))
    return found


def _bin_rows(name: str, record: RunRecord) -> list[dict[str, Any]]:
    rows = []
    for index, values in enumerate(record.bins):
        steps, waited, trained, ready, taken, memory = values
        row = {
            "host": name,
            "from": round(index * record.bin_seconds, 3),
            "to": round((index + 1) * record.bin_seconds, 3),
            "rate": round(taken / record.bin_seconds, 1),
            "memory": round(memory / _MIB, 1),
        }
        # no batch was handed out: training is in a step, or still waits
        if steps:
            row["waited"] = round(waited / (waited + trained or 1.0), 4)
            row["ready"] = round(ready / steps, 2)
        rows.append(row)
    return rows


def _over_time(
    values: list[dict[str, Any]],
    field: str,
    title: str,
    several: bool,
    axis: dict[str, Any] | None = None,
) -> dict[str, Any]:
    y: dict[str, Any] = {
        "field": field,
        "type": "quantitative",
        "title": title,
        "axis": {"tickCount": 4, **(axis or {})},
        "scale": {"zero": field != "memory"},
    }
    if field == "ready":
        y["scale"]["domainMax"] = max([1.0, *(row.get(field, 0.0) for row in values)])
    encoding: dict[str, Any] = {
        "x": {"field": "from", "scale": {"nice": False}, **_SECONDS},
        "y": y,
        "tooltip": [
            {"field": "from", "title": "from second"},
            {"field": "to", "title": "to second"},
            {"field": field, "title": title, **(axis or {}), "type": "quantitative"},
        ],
    }
    mark: dict[str, Any] = {"type": "line", "interpolate": "step-after"}
    if several:
        encoding["color"] = {"field": "host", "title": None, "type": "nominal"}
        encoding["tooltip"].append({"field": "host"})
    else:
        mark["color"] = _COLOURS["waiting" if field == "waited" else "read"]
    if not several and field != "memory":
        mark.update(type="area", opacity=0.8)
    return {
        "data": {"values": [value for value in values if field in value]},
        "mark": mark,
        "encoding": encoding,
        "width": "container",
        "height": 110,
    }


def _timeline(records: Mapping[str, RunRecord]) -> tuple[str, str, dict[str, Any]]:
    bars = []
    lanes = []
    for name, record in records.items():
        names = record.lanes
        if len(records) > 1:
            names = [f"{name}: {lane}" for lane in names]
        lanes += names
        bars += [
            {
                "worker": names[lane],
                "from": began,
                "to": round(began + seconds, 6),
                "ms": round(seconds * 1000, 3),
                "stage": stage,
                "step": step,
                "rows": rows,
            }
            for lane, began, seconds, stage, step, rows in record.bars
        ]
    stages = {"domain": list(_COLOURS), "range": list(_COLOURS.values())}
    texts = ("worker", "stage", "step", "rows", "ms")
    forgotten = sum(record.forgotten for record in records.values())
    text = "What each thread and worker did. Zoom with the wheel, drag to move, double-click for all."
    if forgotten:
        text += f" The last {len(bars):,} events; {forgotten:,} came before."
    spec = {
        "data": {"values": bars},
        "params": [
            {
                "name": "zoom",
                "select": {"type": "interval", "encodings": ["x"]},
                "bind": "scales",
            }
        ],
        "mark": {"type": "bar", "clip": True, "height": {"band": 0.8}},
        "encoding": {
            "x": {
                "field": "from",
                "scale": {"zero": False, "nice": False},
                **_SECONDS,
            },
            "x2": {"field": "to"},
            "y": {"field": "worker", "type": "nominal", "sort": lanes, "title": None},
            "color": {
                "field": "stage",
                "type": "nominal",
                "title": None,
                "scale": stages,
                "legend": {"orient": "top", "columns": 3},
            },
            "tooltip": [{"field": name} for name in texts],
        },
        "width": "container",
        "height": 26 * len(lanes),
    }
    return "Timeline", text, spec
