"""Compares loadax with handwritten loops and peers: `python benchmarks/run.py [WORKLOAD ...]`. See README.md.

Every contestant has its own long-lived process with eight virtual CPU devices, and they take turns: a round is one turn
each, in an order that changes between rounds, so that other load of the machine affects all equally. A ratio compares
two turns of one round.

The results of each workload are written as soon as its run is over, and existing results are not measured again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

from contestants import CONTESTANTS, missing
from report import remarks, table
from turns import Race, child, environment, machine
from workloads import FULL, find
from workloads.base import steps_per_epoch
from workloads.stores import Stored

_HERE = Path(__file__).parent
_RESUMED = 1_000_000  # step
# batches of a store: a turn takes a multiple of them, since steps that are read at the same time come in bunches
_BUNCH = 16

# The least seconds of a turn, and of the lead-in before it, where a batch takes long.
_TURNS = {"jpegs": {"seconds": 1.5, "lead": 0.5, "whole": 2}}
_STORE_TURN = {"seconds": 1.5, "lead": 0.5}
_TURN = {"seconds": 0.8, "lead": 0.2}

# What is measured of loadax besides.
_EXTRAS: dict[str, dict[str, dict[str, Any]]] = {
    "tokens": {
        "sleep": {"steps": 300, "seconds": 0.01},
        "resume": {"step": _RESUMED, "times": 9},
        "hour": {"steps": 30_000, "seconds": 0.001},  # whose first minute is half a second or more
    },
    "images": {"sleep": {"steps": 300, "seconds": 0.01}},
    "transform": {"hour": {"steps": 3600, "seconds": 0.0}},  # of a second, and that they wait for
}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A run of one workload."""
    began, workload = monotonic(), find(name, options.quick)
    chosen = {
        contestant: form
        for contestant, form in CONTESTANTS[name].items()
        if contestant in (options.contestants or CONTESTANTS[name])
    }
    absent = missing(chosen)
    run: dict[str, Any] = {
        "machine": machine(),
        "options": _lasting(options),
        "missing": absent,
        "contestants": {},
        "extras": {},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadax-benchmark-")))
        workload.write(folder)
        race = Race(
            {
                contestant: stack.enter_context(child(contestant, name, folder, options.quick))
                for contestant in chosen
                if contestant not in absent
            }
        )
        for contestant in race.names:
            race.ask(contestant, "ready")  # nobody is timed while others still start
        turns = {contestant: _turn(name, contestant, workload, options.quick) for contestant in race.names}
        for contestant in race.names:
            asked = chosen[contestant].feeds and race.ask(contestant, "first", times=1 if options.quick else 5)
            checked = chosen[contestant].feeds and race.ask(contestant, "check", batches=8)
            run["contestants"][contestant] = {"first": asked or None, "check": checked or None, "rounds": []}
            # One turn to warm up.
            race.ask(
                contestant,
                "round",
                **{**turns[contestant], "lead": turns[contestant]["seconds"] if options.rounds else 0},
            )
        for contestant, turn in race.turns(options.rounds, turns, began + options.budget):
            run["contestants"][contestant]["rounds"].append(turn)
        if "loadax" in race.names:
            for extra, arguments in _EXTRAS.get(name, {}).items():
                run["extras"][extra] = race.ask("loadax", extra, **_shortened(arguments, options.quick))
        if isinstance(workload, Stored) and workload.lanes and "loadax" in race.names:
            run["extras"]["amplification"] = _amplification(name, folder, options.quick)
    run["failed"] = race.failed
    run["contestants"] = {
        contestant: measured for contestant, measured in run["contestants"].items() if contestant not in race.failed
    }
    return run


def main() -> None:
    """Runs the command line, and prints the results."""
    options = _options()
    options.json.mkdir(parents=True, exist_ok=True)
    for name in options.workloads or FULL:
        path = options.json / f"{name}.json"
        results: dict[str, Any] = {"workload": name, "text": str(find(name, options.quick)), "runs": []}
        if path.exists() and not options.fresh:
            existing = json.loads(path.read_text())
            # Of another commit, or made in another way: they are not to be mixed.
            results["runs"] = [previous for previous in existing["runs"] if _same(previous, options)]
        print(f"\n{results['text']}", flush=True)
        for index in range(options.runs):
            if index == len(results["runs"]):
                results["runs"].append(rounded(measure(name, options)))  # shown now as it is when it is read again
                path.write_text(json.dumps(results, indent=1) + "\n")
            run = results["runs"][index]
            print(f"\nrun {index + 1} of {options.runs}, commit {run['machine']['commit']}\n{table(run)}", flush=True)
            print("\n".join(remarks(run)), flush=True)


def rounded(value: Any) -> Any:
    """Rounds every float to six digits, beyond the accuracy of the measurements."""
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _turn(name: str, contestant: str, workload: Any, quick: bool) -> dict[str, Any]:
    """Length of a contestant's turn."""
    turn: dict[str, Any] = _TURNS.get(name, _TURN)
    if isinstance(workload, Stored):
        # Where chunks are kept open, some steps read many and others none: only whole epochs can be compared.
        epoch = steps_per_epoch(workload)
        turn = {**_STORE_TURN, "whole": epoch if workload.lanes and contestant == "loadax" else min(_BUNCH, epoch)}
    return {**turn, "seconds": 0.05, "lead": 0.02} if quick else turn


def _shortened(arguments: dict[str, Any], quick: bool) -> dict[str, Any]:
    return {
        name: min(value, {"steps": 60, "times": 1}.get(name, value)) if quick else value
        for name, value in arguments.items()
    }


def _amplification(name: str, folder: Path, quick: bool) -> dict[str, list[float]]:
    """Read amplification of each host, by number of hosts."""
    command = [sys.executable, str(_HERE / "amplification.py"), name, str(folder), "quick" if quick else "full"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment())
    found: dict[str, list[float]] = json.loads(result.stdout)
    return found


def _lasting(options: argparse.Namespace) -> dict[str, Any]:
    """Settings that must be equal to combine two runs."""
    return {
        "rounds": options.rounds,
        "quick": options.quick,
        "contestants": options.contestants,
        "budget": options.budget,
    }


def _same(run: dict[str, Any], options: argparse.Namespace) -> bool:
    return bool(run["options"] == _lasting(options) and run["machine"] == machine())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(FULL)} (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds (default 7; 0: only first batches and checks)")
    parser.add_argument(
        "--runs", type=int, default=1, help="whole runs of each workload, with new processes (default 1)"
    )
    parser.add_argument(
        "--budget", type=float, default=120, help="seconds after which a run starts no more rounds (default 120)"
    )
    parser.add_argument(
        "--contestants", nargs="+", metavar="NAME", help="contestants to run (default: all that are installed)"
    )
    parser.add_argument("--json", type=Path, default=_HERE / "results", metavar="FOLDER", help="folder for the results")
    parser.add_argument("--fresh", action="store_true", help="replace existing results")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="smoke test with little data and short turns; ignore its figures",
    )
    options = parser.parse_args()
    unknown = [name for name in options.workloads if name not in FULL]
    if unknown:
        parser.error(f"no workload is called {unknown[0]!r}; there are {', '.join(FULL)}")
    options.rounds = (2 if options.quick else 7) if options.rounds is None else options.rounds
    return options


if __name__ == "__main__":
    main()
