"""Statistics of a run: medians, ratios per round, and a table."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

_MILLION = 1e6
_HEADINGS = ("contestant", "rows/s", "loadax has", "(rounds)", "CPU s/Mrow", "memory", "first batch", "(cold)")

Run = dict[str, Any]


def speeds(run: Run, name: str) -> list[float]:
    """Rows per second of a contestant, round by round."""
    return [one["rows"] / one["seconds"] for one in run["contestants"][name]["rounds"]]


def ratios(run: Run, name: str, other: str) -> list[float]:
    """Ratios of a contestant's rows per second to the other's, round by round."""
    return [one / another for one, another in zip(speeds(run, name), speeds(run, other), strict=True)]


def ratio(run: Run, name: str, other: str) -> float:
    """Median of `ratios`."""
    return statistics.median(ratios(run, name, other))


def cpu_seconds(run: Run, name: str) -> float:
    """Median CPU seconds per million rows."""
    return statistics.median(one["cpu_seconds"] / one["rows"] * _MILLION for one in run["contestants"][name]["rounds"])


def trainer_seconds(run: Run, name: str) -> float:
    """Median CPU seconds per row of the training process, without its children."""
    return statistics.median(one["trainer_seconds"] / one["rows"] for one in run["contestants"][name]["rounds"])


def memory(run: Run, name: str) -> int:
    """Maximum memory in bytes at the end of a turn."""
    return max(one["memory"] for one in run["contestants"][name]["rounds"])


def others(run: Run) -> float:
    """Median share of the machine's CPU time that other processes used during the turns."""
    shares = [one["others"] for contestant in run["contestants"].values() for one in contestant["rounds"]]
    return statistics.median(shares) if shares else 0.0


def peers(
    run: Run, starting: str | Sequence[str] = ("grain", "torch", "jax-dataloader", "tf.data", "spdl")
) -> list[str]:
    """Contestants that are other libraries, filtered by prefix."""
    return [
        name
        for name in run["contestants"]
        if name.startswith(tuple([starting] if isinstance(starting, str) else starting))
    ]


def best(run: Run, among: Iterable[str]) -> str | None:
    """The contestant with the highest median speed; None: none took part."""
    timed = [name for name in among if name in run["contestants"] and speeds(run, name)]
    return max(timed, key=lambda name: statistics.median(speeds(run, name)), default=None)


def table(run: Run) -> str:
    """Table of the medians of one workload."""
    return aligned([_HEADINGS, *(line(run, name) for name in run["contestants"])])


def line(run: Run, name: str) -> tuple[str, ...]:
    """A contestant's row of the table."""
    measured = run["contestants"][name]
    timed = bool(measured["rounds"])
    against = ratios(run, "loadax", name) if timed and name != "loadax" and "loadax" in run["contestants"] else []
    first = measured["first"]
    return (
        name,
        f"{statistics.median(speeds(run, name)):,.0f}" if timed else "-",
        f"{statistics.median(against):.2f} x" if against else "",
        f"{min(against):.2f}-{max(against):.2f}" if against else "",
        f"{cpu_seconds(run, name):.2f}" if timed else "-",
        f"{memory(run, name) / _MILLION:,.0f} MB" if timed else "-",
        f"{first['warm'] * 1000:.1f} ms" if first else "",
        f"{first['cold'] * 1000:.0f} ms" if first else "",
    )


def remarks(run: Run) -> list[str]:
    """Further results, one per line."""
    lines = [f"{name}: not installed: {package}" for name, package in run["missing"].items()]
    lines += [f"{name}: failed: {why}" for name, why in run["failed"].items()]
    for name, measured in run["contestants"].items():
        if "psnr" in (measured["check"] or {}):
            lines.append(f"{name}: at least {measured['check']['psnr']:.1f} dB from Pillow's pictures")
    lines.append(f"others used {others(run):.0%} of the machine")
    extras = run["extras"]
    if "sleep" in extras:
        slept = extras["sleep"]
        lines.append(
            f"steps of 10 ms wait {slept['share']:.2%} of the time, {slept['median'] * 1e6:.0f} us each "
            f"and {slept['most'] * 1e3:.2f} ms at most; an iterator that does nothing, {slept['floor']['share']:.2%}"
        )
    if "resume" in extras:
        lines.append(
            f"first batch from step 10^6 {extras['resume']['far'] * 1e3:.1f} ms, "
            f"from the start {extras['resume']['near'] * 1e3:.1f} ms, {extras['resume']['more'] * 1e3:+.1f} ms"
        )
    if extras.get("hour"):
        hour = extras["hour"]
        lines.append(
            f"{hour['steps']:,} steps: {hour['minute'] / _MILLION:.1f} MB in the first sixtieth, "
            f"{hour['hour'] / _MILLION:.1f} MB at most, {hour['hour'] / hour['minute'] - 1:+.1%}"
        )
    if "amplification" in extras:
        lines += [
            f"{hosts} hosts read for each byte used: "
            + "  ".join(f"{ratio_of_host:.3f}" for ratio_of_host in amplification)
            for hosts, amplification in extras["amplification"].items()
        ]
    return lines


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Table whose first column is left-aligned, and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) for cells in lines)
