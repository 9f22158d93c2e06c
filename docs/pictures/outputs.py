"""What the examples print, as `python -m docs.pictures.record` recorded it."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
TIME = "  # seconds of processor time: "  # behind the command, in the first line of a record


class Output(NamedTuple):
    """A recorded output.

    Args:
        command: Command line.
        seconds: Processor time of all processes.
        lines: What it printed.
    """

    command: str
    seconds: int
    lines: list[str]


def recorded(name: str) -> Output:
    """Reads the record of an example."""
    first, *lines = path_of(name).read_text("utf-8").splitlines()
    command, _, seconds = first.partition(TIME)
    return Output(command, int(seconds), lines)


def path_of(name: str) -> Path:
    """The record of an example."""
    return Path(__file__).parent / "outputs" / f"{name}.txt"
