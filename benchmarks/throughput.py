"""loadax beside a loop written by hand and beside Grain: `python benchmarks/throughput.py`. See README.md in this folder.

Every contestant has a long-lived process of its own, with eight virtual CPU devices, and they take turns: a round is one turn each, in an order
that changes from round to round, so that what else the machine does meets them all alike. A ratio compares two turns of one round.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

from contestants import CONTESTANTS
from report import summarise, table, waiting
from workloads import FULL, QUICK, Workload

_HERE = Path(__file__).parent
_DEVICES = 8
_LIMIT = 120.0  # seconds that an answer may take; the bugs of loaders are hangs


@final
class Child:
    """A contestant's process, to which commands are sent."""

    def __init__(self, name: str, process: "subprocess.Popen[str]"):
        self._name, self._process = name, process

    def ask(self, do: str, **arguments: Any) -> Any:
        """The answer to one command.

        Raises:
            RuntimeError: when the process ended, or took so long that it was ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        timer = threading.Timer(_LIMIT, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(
                f"{self._name} ended in {do!r}, with code {self._process.wait()}, or took more than {_LIMIT:.0f} s"
            )
        return json.loads(line)


@contextmanager
def child(name: str, workload: Workload, folder: Path) -> Iterator[Child]:
    """A process for a contestant, ended afterwards."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(_DEVICES)}
    command = [sys.executable, str(_HERE / "contestant.py"), name, json.dumps(asdict(workload)), str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield Child(name, process)
    finally:
        process.kill()
        process.communicate()


def measure(workload: Workload, folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """All rounds of one workload: per contestant what it measured; and the share of waiting, if it was asked for."""
    with ExitStack() as stack:
        children = {name: stack.enter_context(child(name, workload, folder)) for name in options.contestants}
        measured: dict[str, Any] = {}
        for each in children.values():
            each.ask("ready")  # nobody is timed while others still start
        for name, each in children.items():
            first = each.ask("first", times=options.firsts)
            measured[name] = {"first": first, "check": each.ask("check", batches=8), "rounds": []}
            if options.rounds:
                each.ask("round", seconds=options.warm_up, lead=0)
        order = random.Random(0)
        for number in range(options.rounds):
            for name in order.sample(list(children), len(children)):
                measured[name]["rounds"].append(children[name].ask("round", seconds=options.seconds, lead=options.lead))
            if sys.stderr.isatty():
                print(f"\r{workload.name}: round {number + 1} of {options.rounds}", end="\r", file=sys.stderr, flush=True)
        slept = None
        if options.sleep and "loadax" in children:
            slept = children["loadax"].ask("sleep", steps=options.sleep_steps, seconds=0.01)
    return measured, slept


def main() -> None:
    """Runs what the command line asks for."""
    options = _options()
    results: dict[str, Any] = {
        "machine": machine(),
        "options": {**vars(options), "json": str(options.json)},
        "workloads": {},
        "sleep": {},
    }
    print(" | ".join(f"{name} {value}" for name, value in results["machine"].items()))
    for name in options.workloads:
        workload = (QUICK if options.quick else FULL)[name]
        with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as folder:
            workload.write(Path(folder))
            measured, slept = measure(workload, Path(folder), options)
        summary = {**asdict(workload), **summarise(measured)}
        results["workloads"][name] = summary
        print(f"\n{workload}\n{table(summary)}", flush=True)
        if slept is not None:
            results["sleep"][name] = slept
    if results["sleep"]:
        print(f"\n{waiting(results['sleep'])}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=_HERE, capture_output=True, text=True, check=False)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "numpy", "grain", "loadax")},
        "commit": commit.stdout.strip() or "unknown",
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of each contestant (default 9; 0: only first batches and checks)")
    parser.add_argument("--seconds", type=float, help="the least that a turn lasts (default 0.8)")
    parser.add_argument("--workloads", nargs="+", choices=FULL, default=list(FULL), metavar="NAME", help=f"of {', '.join(FULL)}")
    parser.add_argument(
        "--contestants",
        nargs="+",
        choices=CONTESTANTS,
        default=list(CONTESTANTS),
        metavar="NAME",
        help=f"of {', '.join(CONTESTANTS)}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="little data and short turns, to see that it runs; its numbers mean nothing"
    )
    parser.add_argument("--sleep", action="store_true", help="also the share of waiting in training steps that sleep 10 ms")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    options = parser.parse_args()
    quick = options.quick
    options.rounds = (2 if quick else 9) if options.rounds is None else options.rounds
    options.seconds = (0.05 if quick else 0.8) if options.seconds is None else options.seconds
    options.lead, options.warm_up = (0.02, 0.05) if quick else (0.2, 1.5)
    options.firsts, options.sleep_steps = (1, 20) if quick else (7, 300)
    return options


if __name__ == "__main__":
    main()
