"""Stores as they lie, beside the loops that one writes by hand: `python benchmarks/storage.py`. See README.md in this folder."""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from readers import READERS
from report import amplified, summarise, table
from stores import FULL, QUICK, Stored
from turns import child, environment, machine, take_turns

_HERE = Path(__file__).parent
_TARGETS = {"fields": 0.95, "chunks": 15.0, "raw-fields": 0.5, "raw-tokens": 0.5, "raw-tokens-small": 0.5, "tokens": 1.0}
_FEW = 16  # batches: a turn takes a multiple of them, since steps that are read at the same time come in bunches


def measure(workload: Stored, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one workload: per contestant what it measured."""
    with ExitStack() as stack:
        children = {name: stack.enter_context(child(name, workload, folder)) for name in READERS[workload.name]}
        measured: dict[str, Any] = {}
        for each in children.values():
            each.ask("ready")
        turns = {}
        for name, each in children.items():
            measured[name] = {
                "first": each.ask("first", times=options.firsts),
                "check": each.ask("check", batches=8),
                "rounds": [],
            }
            # Where chunks are kept open, some steps read many and others none: only whole epochs can be compared.
            whole = workload.steps_per_epoch if workload.lanes and name == "loadax" else min(_FEW, workload.steps_per_epoch)
            turns[name] = {"seconds": options.seconds, "lead": options.lead, "whole": whole}
            each.ask("round", **turns[name])
        for name, turn in take_turns(children, options.rounds, turns):
            measured[name]["rounds"].append(turn)
    return measured


def amplification(workload: Stored, folder: Path) -> dict[str, list[float]]:
    """Bytes read for each one used, of each host, by how many hosts there are."""
    command = [sys.executable, str(_HERE / "amplification.py"), json.dumps(asdict(workload)), str(folder)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment())
    found: dict[str, list[float]] = json.loads(result.stdout)
    return found


def main() -> None:
    """Runs what the command line asks for."""
    options = _options()
    results: dict[str, Any] = {
        "machine": machine("jax", "numpy", "tensorstore", "loadax"),
        "options": {**vars(options), "json": str(options.json)},
        "workloads": {},
    }
    print(" | ".join(f"{name} {value}" for name, value in results["machine"].items()))
    for name in options.workloads:
        workload = (QUICK if options.quick else FULL)[name]
        with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as folder:
            workload.write(Path(folder))
            summary = {**asdict(workload), "target": _TARGETS[name], **summarise(measure(workload, Path(folder), options))}
            print(f"\n{workload}; target: {_TARGETS[name]:g} x\n{table(summary)}", flush=True)
            if workload.lanes:
                summary["amplification"] = amplification(workload, Path(folder))
                print(amplified(summary["amplification"]), flush=True)
        results["workloads"][name] = summary
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="turns of each contestant (default 7)")
    parser.add_argument("--seconds", type=float, help="the least that a turn lasts (default 1.5)")
    parser.add_argument("--workloads", nargs="+", choices=FULL, default=list(FULL), metavar="NAME", help=f"of {', '.join(FULL)}")
    parser.add_argument(
        "--quick", action="store_true", help="little data and short turns, to see that it runs; its numbers mean nothing"
    )
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    options = parser.parse_args()
    quick = options.quick
    options.rounds = (2 if quick else 7) if options.rounds is None else options.rounds
    options.seconds = (0.05 if quick else 1.5) if options.seconds is None else options.seconds
    options.lead, options.firsts = (0.02, 1) if quick else (0.5, 3)
    return options


if __name__ == "__main__":
    main()
