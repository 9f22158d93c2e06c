"""What the measurements say: medians, ratios round by round, and a table."""

import statistics
from collections.abc import Sequence
from typing import Any

_MILLION = 1e6


def summarise(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The medians of one workload.

    Args:
        measured: per contestant "rounds" (dicts of rows, seconds and cpu_seconds), "first" and "check".

    Returns:
        per contestant its medians, and "ratios": how many times the rows/s of each other one loadax has, round by round.
    """
    speeds = {name: [one["rows"] / one["seconds"] for one in each["rounds"]] for name, each in measured.items()}
    contestants = {}
    for name, each in measured.items():
        cpu = [one["cpu_seconds"] / one["rows"] * _MILLION for one in each["rounds"]]
        contestants[name] = {
            "rows_per_second": statistics.median(speeds[name]) if cpu else None,
            "cpu_seconds_per_million_rows": statistics.median(cpu) if cpu else None,
            "first_batch_seconds": each["first"],
            "check": each["check"],
            "rounds": each["rounds"],
        }
    ratios = {}
    for name, theirs in speeds.items():
        if name != "loadax" and speeds.get("loadax"):
            rounds = [our / their for our, their in zip(speeds["loadax"], theirs, strict=True)]
            ratios[name] = {"median": statistics.median(rounds), "rounds": rounds}
    return {"contestants": contestants, "ratios": ratios}


def table(summary: dict[str, Any]) -> str:
    """The medians of one workload as text."""
    lines = [("contestant", "rows/s", "loadax has", "(rounds)", "CPU s/Mrow", "first batch", "(cold)")]
    for name, each in summary["contestants"].items():
        first = each["first_batch_seconds"]
        ratio = summary["ratios"].get(name)
        speed = each["rows_per_second"]
        lines.append(
            (
                name,
                "-" if speed is None else f"{speed:,.0f}",
                "" if ratio is None else f"{ratio['median']:.2f} x",
                "" if ratio is None else f"{min(ratio['rounds']):.2f}-{max(ratio['rounds']):.2f}",
                "-" if speed is None else f"{each['cpu_seconds_per_million_rows']:.2f}",
                f"{first['warm'] * 1000:.1f} ms",
                f"{first['cold'] * 1000:.0f} ms",
            )
        )
    return _aligned(lines)


def waiting(sleep: dict[str, Any]) -> str:
    """What training steps of 10 ms waited for their batches, by workload, as text."""
    lines = [("steps of 10 ms", "waiting", "median", "longest", "measuring alone")]
    for name, each in sleep.items():
        floor = each["floor"]["share"]
        lines.append(
            (name, f"{each['share']:.2%}", f"{each['median'] * 1e6:.0f} us", f"{each['most'] * 1e3:.2f} ms", f"{floor:.2%}")
        )
    return _aligned(lines)


def amplified(hosts: dict[str, list[float]]) -> str:
    """What each host reads for each byte it uses, by how many hosts there are, as text."""
    lines = [("hosts", "bytes read for each one used, by host")]
    lines += [(count, "  ".join(f"{each:.3f}" for each in found)) for count, found in hosts.items()]
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)
