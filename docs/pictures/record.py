"""Runs the examples and records what they print, and their processor time: `python -m docs.pictures.record [NAME ...]`.

`python -m docs.pictures` draws the records.
"""

import resource
import subprocess
import sys

from docs.pictures.outputs import EXAMPLES, ROOT, TIME, path_of


def record(name: str) -> int:
    """Runs an example and writes its record; returns the seconds of processor time that all of its processes took.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    before = processor_seconds()
    command = [sys.executable, f"examples/{name}.py"]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
    seconds = round(processor_seconds() - before)
    lines = [f"python examples/{name}.py{TIME}{seconds}", *(line.rstrip() for line in text.strip().splitlines())]
    path_of(name).write_text("\n".join(lines) + "\n", "utf-8")
    return seconds


def processor_seconds() -> float:
    """Processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    for example in sys.argv[1:] or EXAMPLES:
        print(f"{example}: {record(example)} s of processor time", flush=True)
