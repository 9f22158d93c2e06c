"""The tables of a soak, by ten minutes or by hours, and what has grown."""

from collections.abc import Sequence
from typing import Any

from tests.soak.trend import BLOCKS, WARM, Trend, trend

MEASURED = {
    "anonymous": ("private MiB", 20),
    "malloc_used": ("malloc used", 20),
    "malloc_free": ("malloc free", 20),
    "malloc_mapped": ("malloc mapped", 20),
    "jax": ("JAX MiB", 20),
    "arrow": ("Arrow MiB", 20),
    "python_blocks": ("Python blocks", 0),
    "descriptors": ("descriptors", 0),
    "threads": ("threads", 0),
    "children": ("children", 0),
}
"""Heading of each measurement, and the bits that its unit leaves off."""

JUDGED = ("anonymous", "python_blocks", "descriptors", "threads", "children")
"""What may not grow."""

LONG = 6 * 3600
"""Seconds of a run from which on its table goes by hours."""


def table(samples: Sequence[dict[str, Any]]) -> list[str]:
    """A line of Markdown for each ten minutes, or hour of a long run: means, with the most of private memory."""
    width = 3600 if samples[-1]["seconds"] > LONG else 600
    lines = ["| minutes | steps | most private MiB | " + " | ".join(told for told, _ in MEASURED.values()) + " |"]
    lines.append("|---" * (len(MEASURED) + 3) + "|")
    steps = 0
    for begin in range(0, int(samples[-1]["seconds"]) + 1, width):
        inside = [entry for entry in samples if begin <= entry["seconds"] < begin + width]
        if not inside:
            continue
        now = sum(inside[-1]["steps"].values())
        most = max(entry["anonymous"] for entry in inside) / 2**20
        cells = [f"{begin // 60} to {(begin + width) // 60}", f"{now - steps:,}", f"{most:,.0f}"]
        steps = now
        for name, (_, bits) in MEASURED.items():
            mean = sum(entry.get(name, 0) for entry in inside) / len(inside) / 2**bits
            cells.append(f"{mean:,.1f}" if mean < 1000 else f"{mean:,.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    if trends := trends_of(samples):
        lines.append("| exponent | | | " + " | ".join(f"{trends[name].exponent:.3f}" for name in MEASURED) + " |")
        cells = [_hourly(trends[name], bits) for name, (_, bits) in MEASURED.items()]
        lines.append("| an hour | | | " + " | ".join(cells) + " |")
    return lines


def _hourly(found: Trend, bits: int) -> str:
    return f"{found.hourly / 2**bits:+.1f} ± {found.error / 2**bits:.1f}"


def trends_of(samples: Sequence[dict[str, Any]]) -> dict[str, Trend]:
    """The trend of each measurement; none where there are too few samples."""
    seconds = [entry["seconds"] for entry in samples]
    if sum(time >= WARM * seconds[-1] for time in seconds) < 2 * BLOCKS:
        return {}
    return {name: trend(seconds, [entry.get(name, 0) for entry in samples]) for name in MEASURED}


def findings(samples: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence for each measurement that has grown beyond chance."""
    trends = trends_of(samples)
    return [
        f"{MEASURED[name][0]} grows: {_hourly(trends[name], MEASURED[name][1])} an hour, "
        f"exponent {trends[name].exponent:.3f}"
        for name in JUDGED
        if name in trends and trends[name].grows
    ]
