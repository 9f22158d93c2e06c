"""The comparison of counts with those of a table, for `gate.py`."""

GROWTH = 0.05
"""How much more than in the table is a failure."""

SLACK = {"system": 0.5}
"""How much more at least, of a step: files are looked at again once a second."""


def compare(table: dict[str, dict[str, float]], found: dict[str, dict[str, float]]) -> list[str]:
    """What has grown by more than `GROWTH`, or is not in the table, as lines of text."""
    lines = []
    for name, counts in found.items():
        for what, count in counts.items():
            before = table.get(name, {}).get(what)
            if before is None:
                lines.append(f"{name}: {what} is {count:g}, and not in the table")
            elif count > before * (1 + GROWTH) + SLACK.get(what, 0):
                lines.append(f"{name}: {what} has grown from {before:g} to {count:g}")
    return lines
