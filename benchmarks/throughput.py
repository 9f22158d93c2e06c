"""loadax beside a loop written by hand and beside Grain: `python benchmarks/throughput.py`. See README.md in this folder.

Every contestant has a long-lived process of its own, with eight virtual CPU devices, and they take turns: a round is one turn each, in an order
that changes from round to round, so that what else the machine does meets them all alike. A ratio compares two turns of one round.
"""

import argparse
import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS
from report import summarise, table, waiting
from turns import child, machine, take_turns
from workloads import FULL, QUICK, Workload


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
        turn = {"seconds": options.seconds, "lead": options.lead}
        for name, taken in take_turns(children, options.rounds, dict.fromkeys(children, turn)):
            measured[name]["rounds"].append(taken)
        slept = None
        if options.sleep and "loadax" in children:
            slept = children["loadax"].ask("sleep", steps=options.sleep_steps, seconds=0.01)
    return measured, slept


def main() -> None:
    """Runs what the command line asks for."""
    options = _options()
    results: dict[str, Any] = {
        "machine": machine("jax", "numpy", "grain", "loadax"),
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
