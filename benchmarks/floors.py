"""Compares loadax with what the hardware allows: `python benchmarks/floors.py [CASE ...] --runs 3`. See README.md.

A floor is the bare work of a workload, written by hand: a gather into memory and placing, a decoder, a user's function.
loadax, the floor and a peer, where there is one, are asked in turns, each in a process of its own, and a share is taken
round by round: CPU time that the floor takes for a row, divided by loadax's; and rows per second the other way round.
`--package PATH` measures the loadax of another checkout beside this one in the same rounds.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from contestant import Measured, quieted, serve
from contestants import LOADAX, Contestant, missing, torch
from report import aligned
from turns import Child, environment, machine, started
from workloads.arrays import Images, Tokens
from workloads.base import Workload, steps_per_epoch
from workloads.jpegs import Jpegs
from workloads.rows import OneByOne
from workloads.speech import Speech
from workloads.stores import Stored
from workloads.tables import Table, Tiny

_HERE = Path(__file__).parent
_TURN = {"seconds": 0.25, "lead": 0.1}
_QUICK = {"seconds": 0.02, "lead": 0.0}
_ROUNDS = 5


@final
@dataclass(frozen=True)
class Case:
    """loadax beside one floor or peer.

    Args:
        text: What is compared, for the page.
        workload: What both feed.
        quick: A small one, for tests.
        floor: Code of the floor or peer.
        goal: The share that is asked of loadax; of `kind="times"` the most times the floor's CPU time; of
            `kind="step"` the most microseconds of CPU time a step.
        ours: Code of loadax.
        kind: "share", "times" or "step".
        devices: Number of devices.
        turn: Arguments of a turn; with `epoch`, it is a multiple of an epoch.
        epoch: Whether a turn is whole epochs.
    """

    text: str
    workload: Workload
    quick: Workload
    floor: Contestant
    goal: float | None
    ours: Contestant = LOADAX
    kind: str = "share"
    devices: int = 8
    turn: dict[str, float] = field(default_factory=lambda: dict(_TURN))
    epoch: bool = False

    def prepared(self, side: str, folder: Path, quick: bool) -> Measured:
        """The contestant of a side, in this process."""
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()[: self.devices]), ("data",))
        contestant = self.floor if side in ("floor", self.floor.needs) and side != "loadax" else self.ours
        workload = self.quick if quick else self.workload
        return Measured(
            workload, folder, contestant.prepare(workload, folder, NamedSharding(mesh, PartitionSpec("data")))
        )


def _by_hand(form: str, **options: Any) -> Contestant:
    return Contestant("floor_forms", form, options=options)


def _of_size(workload: Any, batch_size: int) -> Any:
    return replace(workload, batch_size=batch_size)


_GATHER = _by_hand("gather")
_TOKENS, _FEW_TOKENS = Tokens("tokens", 200_000, 256), Tokens("tokens", 2048, 256)
_TABLE, _SMALL_TABLE = Table("table", 1_000_000, 1024), Table("table", 20_000, 1024)
_TINY = Tiny("tiny", 1_000_000, 64)
_STEP, _SLOW = {"seconds": 0.3, "lead": 0.15}, {"seconds": 0.5, "lead": 0.3}
_LOOP = Contestant("ours", "numpy_loop")


def _row_map(floor: Contestant, goal: float | None, text: str) -> Case:
    return Case(
        text, OneByOne("row-map", 200_000, 64, mapped=True), OneByOne("row-map", 512, 64, mapped=True), floor, goal
    )


def _raw(name: str, text: str, goal: float, rows: int, batch_size: int, **chunks: int) -> Case:
    quick = Stored(name, batch_size * 8, batch_size, **{**chunks, **({"chunk_rows": 64} if chunks else {})})
    return Case(text, Stored(name, rows, batch_size, **chunks), quick, _GATHER, goal)


CASES: dict[str, Case] = {
    **{
        f"tokens-{size}": Case(
            f"tokens, batch {size:,}: gather and placing",
            _of_size(_TOKENS, size),
            _of_size(_FEW_TOKENS, size),
            _GATHER,
            goal,
        )
        for size, goal in ((1024, 0.85), (256, 0.75), (64, 0.7))
    },
    "images": Case(
        "images in memory, batch 1,024: gather and placing",
        Images("images", 50_000, 1024),
        Images("images", 2048, 1024),
        _GATHER,
        0.85,
    ),
    "raw-tokens": _raw(
        "raw-tokens", "raw zarr, tokens: gather and placing from one mapped file", 0.9, 100_000, 256, chunk_rows=4096
    ),
    "raw-fields": _raw(
        "raw-fields",
        "raw zarr, fields of 128 KiB: gather and placing from one mapped file",
        0.9,
        2048,
        32,
        chunk_rows=64,
    ),
    "raw-tokens-small": _raw(
        "raw-tokens-small",
        "raw zarr, tokens in 1,563 small files: gather and placing from one mapped file",
        0.8,
        100_000,
        256,
        chunk_rows=64,
    ),
    "windows": _raw("windows", "windows of a flat file of tokens: gather and placing", 0.9, 100_000, 256),
    **{
        f"parquet-{size}": Case(
            f"Parquet in chunks, batch {size:,}: decode, permute, copy and placing on one device",
            _of_size(_TABLE, size),
            _of_size(_SMALL_TABLE, min(size, 4096)),
            _by_hand("table"),
            0.7,
            ours=_by_hand("ours_of_table"),
            devices=1,
            epoch=True,
        )
        for size in (1024, 8192, 65_536)
    },
    "jpegs": Case(
        "JPEG files: decode and resize alone, on all cores",
        Jpegs("jpegs", 512, 64),
        Jpegs("jpegs", 64, 32),
        _by_hand("decoded"),
        0.95,
        turn=_SLOW,
    ),
    "function": _row_map(_by_hand("function"), None, "objects through a short function: the function alone"),
    "torch": _row_map(torch("rows", 0), 1.0, "objects through a short function: torch's loader with default arguments"),
    "torch-numpy": _row_map(
        torch("rows", 0, collate="numpy"), 1.0, "objects through a short function: torch's loader, stacking by NumPy"
    ),
    "speech": Case(
        "chunks of audio to spectrograms, two workers: torch's loader",
        Speech("speech", 60, 16),
        Speech("speech", 6, 16),
        Contestant("floor_forms", "speech", "torch", {"name": "torch"}),
        1.0,
        ours=_by_hand("speech"),
        turn=_SLOW,
    ),
    **{
        f"loop-{size}": Case(
            f"`num_workers=0`, batch {size}, one device: times the CPU of a loop by hand",
            _of_size(_TINY, size),
            _of_size(_TINY, size),
            _LOOP,
            1.6,
            ours=_by_hand("ours_of_array", num_workers=0),
            kind="times",
            devices=1,
        )
        for size in (8, 16, 64)
    },
    "step": Case(
        "a step of one small leaf on eight devices, with workers: µs of CPU time (bare work: placing alone)",
        _TINY,
        _TINY,
        _by_hand("place"),
        60,
        ours=_by_hand("ours_of_array"),
        kind="step",
        turn=_STEP,
    ),
}


def measure(names: list[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run: of each case what every side took."""
    sides = {"after": environment()}
    if options.package:
        sides["before"] = {**environment(), "PYTHONPATH": str(options.package.resolve())}
    references = {_side(CASES[name]) for name in names}
    found: dict[str, Any] = {}
    order = random.Random(0)
    with ExitStack() as stack:
        children: dict[str, Child] = {}
        for side in (*sides, *sorted(references)):
            command = [sys.executable, __file__, "--serve", side, *(["--quick"] if options.quick else [])]
            children[side] = stack.enter_context(started(side, command, sides.get(side, environment())))
        for child in children.values():
            child.ask("ready")
        for name in names:
            case = CASES[name]
            workload = case.quick if options.quick else case.workload
            data = folder / workload.name
            if not data.exists():
                data.mkdir()
                workload.write(data)
            asked = [*sides, _side(case)]
            for side in asked:
                children[side].ask("open", case=name, folder=str(data))
            turn: dict[str, Any] = {**(_QUICK if options.quick else case.turn)}
            if case.epoch:
                turn["whole"] = steps_per_epoch(workload)
            rounds: dict[str, list[Any]] = {side: [] for side in asked}
            for index in range(-1, 1 if options.quick else options.rounds):  # the first warms up
                for side in order.sample(asked, len(asked)):
                    taken = children[side].ask("round", **turn)
                    if index >= 0:
                        rounds[side].append(taken)
            for side in asked:
                children[side].ask("close")
            found[name] = {
                "floor": _costs(rounds[_side(case)], workload.batch_size),
                **{
                    side: {**_costs(rounds[side], workload.batch_size), **_shares(rounds[side], rounds[_side(case)])}
                    for side in sides
                },
            }
            print(_line(name, found[name]), flush=True)
    return found


def value(case: dict[str, Any], run: dict[str, Any], side: str) -> float | None:
    """The figure of a side that its goal is about; None where it was not measured."""
    if side not in run:
        return None
    figures = run[side]
    return float({"share": figures["cpu"], "times": 1 / figures["cpu"], "step": figures["step_us"]}[case["kind"]])


def met(case: dict[str, Any], figure: float) -> bool:
    """Whether a figure reaches the goal."""
    goal = case["goal"]
    return goal is None or (figure >= goal if case["kind"] == "share" else figure <= goal)


def _side(case: Case) -> str:
    """The process of a case's floor."""
    return "floor" if case.floor.needs == "loadax" else case.floor.needs


def _costs(rounds: list[dict[str, float]], batch_size: int) -> dict[str, float]:
    cpu = statistics.median(each["cpu_seconds"] / each["rows"] for each in rounds)
    rate = statistics.median(each["rows"] / each["seconds"] for each in rounds)
    return {"cpu_us": _rounded(cpu * 1e6), "rows_s": _rounded(rate), "step_us": _rounded(cpu * batch_size * 1e6)}


def _shares(ours: list[dict[str, float]], floor: list[dict[str, float]]) -> dict[str, float]:
    pairs = list(zip(ours, floor, strict=True))
    cpu = statistics.median(
        other["cpu_seconds"] / other["rows"] / (one["cpu_seconds"] / one["rows"]) for one, other in pairs
    )
    rate = statistics.median(one["rows"] / one["seconds"] / (other["rows"] / other["seconds"]) for one, other in pairs)
    return {"cpu": _rounded(cpu), "rate": _rounded(rate)}


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")


_HEADINGS = ("case", "goal", "before", "after", "rows/s", "CPU us a row", "floor's")


def _cells(name: str, run: dict[str, Any]) -> tuple[str, ...]:
    case = _told(CASES[name])
    figures = [value(case, run, side) for side in ("before", "after")]
    after, floor = run["after"], run["floor"]
    return (
        name,
        "" if case["goal"] is None else f"{case['goal']:g}",
        *("" if figure is None else f"{figure:.2f}{'' if met(case, figure) else ' !'}" for figure in figures),
        f"{after['rate']:.2f}",
        f"{after['cpu_us']:g}",
        f"{floor['cpu_us']:g}",
    )


def _line(name: str, run: dict[str, Any]) -> str:
    return "  ".join(
        f"{heading} {cell}" for heading, cell in zip(_HEADINGS[1:], _cells(name, run)[1:], strict=True)
    ).join((f"{name}: ", ""))


def _told(case: Case) -> dict[str, Any]:
    return {"text": case.text, "goal": case.goal, "kind": case.kind}


def _serve(side: str, quick: bool) -> None:
    """Answers commands until stdin ends; one case is open at a time."""
    answers, opened = quieted(), list[Measured]()

    def answer(do: str, **arguments: Any) -> Any:
        if do == "ready":
            import loadax

            return loadax.__file__
        if do == "round":
            return opened[0].round(**arguments)
        for measured in opened:
            measured.end()
        opened.clear()
        if do == "open":
            opened.append(CASES[arguments["case"]].prepared(side, Path(arguments["folder"]), quick))
        return do

    serve(answers, answer)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--runs", type=int, default=1, help="whole runs, with new processes (default 1)")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"rounds of each case (default {_ROUNDS})")
    parser.add_argument("--package", type=Path, help="checkout of another loadax, which is measured as 'before'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to")
    parser.add_argument("--quick", action="store_true", help="smoke test with little data; ignore its figures")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options.serve, options.quick)
        return
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no case is called {unknown[0]!r}; there are {', '.join(CASES)}")
    names = options.cases or list(CASES)
    absent = missing({name: CASES[name].floor for name in names})
    names = [name for name in names if name not in absent]
    results: dict[str, Any] = {
        "machine": machine(),
        "before": machine(options.package)["commit"] if options.package else None,
        "missing": absent,
        "floors": {name: {**_told(CASES[name]), "runs": []} for name in names},
    }
    with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as folder:
        for _ in range(options.runs):
            for name, run in measure(names, options, Path(folder)).items():
                results["floors"][name]["runs"].append(run)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")
    last = {name: case["runs"][-1] for name, case in results["floors"].items() if case["runs"]}
    print(aligned([_HEADINGS, *(_cells(name, run) for name, run in last.items())]))
    print("\n".join(f"{name}: not installed: {package}" for name, package in absent.items()))


if __name__ == "__main__":
    main()
