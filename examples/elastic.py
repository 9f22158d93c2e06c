"""Trains through failures: processes are killed, stopped and preempted, and the run resumes on another number of them.

    python examples/elastic.py                       # five failures, on 1 to 3 processes
    python examples/elastic.py --rounds 30 --seed 7  # more of them, others

The first half, up to `train`, is a run that may be preempted. It saves every few steps, and when a process gets
SIGTERM, all of them save the same step and exit with status 75. The second half plays the cluster: it starts the
processes, harms them at random, ends those that hang, and starts the run again on another number of processes. At the
end it compares the losses of all steps with those of a run that nothing interrupted.

It prints this, in about 40 seconds on two cores:

    start  processes  from step  to step  done again  what happened
        0          3          0        7           0  SIGSTOP to process 0 in a step: no step for 6 s, all were ended
        1          2          0        1           7  SIGTERM to process 0 while it restores: all saved the same step
        2          1          1       10           0  SIGTERM to process 0 in an evaluation: all saved the same step
        3          2         10       10           0  SIGTERM to process 1 in the first compile: all saved the same step
        4          3         10       12           0  SIGKILL to process 0 in a step: some died, the others were ended
        5          1         10      128           2  finished
    128 losses and 12 evaluations equal those of the uninterrupted run, to a relative 2.9e-07
"""

import os

# Before JAX is imported, which reads them once.
os.environ.update({"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"})

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from orbax.checkpoint import v1 as ocp

import loadax
from loadax.sharding import data_parallel

BATCH, WIDTH = 48, 48  # rows of the global batch, and rows of a weight: multiples of 2, 4, 6 and 8 devices
SAVE_EVERY, EVALUATE_EVERY = 8, 10  # steps
STEP_SECONDS = 0.03  # added to every step, for it to last as long as that of a larger model
PREEMPTED = 75  # exit status: saved, and to be started again (EX_TEMPFAIL)

State = dict[str, Any]
OPTIMIZER = optax.adam(1e-2)


def dataset() -> loadax.Dataset:
    """Inputs of 48 numbers, and what a fixed random layer makes of them."""
    rng = np.random.default_rng(0)
    inputs, layer = rng.normal(size=(960, WIDTH)).astype(np.float32), rng.normal(size=(WIDTH, 1)).astype(np.float32)
    return loadax.from_arrays({"x": inputs, "y": np.tanh(inputs @ layer)})


def predict(weights: State, x: jax.Array) -> jax.Array:
    """(B, 48) -> (B, 1)."""
    return jnp.tanh(x @ weights["in"]) @ weights["out"]


def loss_of(weights: State, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean squared error of a batch."""
    return jnp.mean((predict(weights, batch["x"]) - batch["y"]) ** 2)


evaluation_loss = jax.jit(loss_of)


def train_step(state: State, batch: dict[str, jax.Array]) -> tuple[State, jax.Array]:
    """One step on one global batch; returns its loss too."""
    loss, gradients = jax.value_and_grad(loss_of)(state["weights"], batch)
    updates, optimizer = OPTIMIZER.update(gradients, state["optimizer"])
    return {"weights": optax.apply_updates(state["weights"], updates), "optimizer": optimizer}, loss


def initial_state(mesh: Mesh) -> State:
    """Weights and optimizer of step 0. Each device holds some rows of each matrix, however many devices there are."""

    def make() -> State:
        inputs = jax.random.normal(jax.random.key(0), (WIDTH, WIDTH)) / WIDTH**0.5
        weights = {"in": inputs, "out": jnp.zeros((WIDTH, 1))}
        return {"weights": weights, "optimizer": OPTIMIZER.init(weights)}

    def sharding(leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        return NamedSharding(mesh, P("data") if leaf.ndim == 2 else P())

    made: State = jax.jit(make, out_shardings=jax.tree.map(sharding, jax.eval_shape(make)))()
    return made


class PreemptedError(Exception):
    """A process of this run got SIGTERM, and all have agreed to save here."""


class PreemptionCheck:
    """Raises `PreemptedError` on all processes at the same call, soon after one of them got SIGTERM.

    JAX notes the signal and lets the processes agree on a number that each has yet to reach. So all of them have to ask
    with the same numbers, which only grow: one counter for steps and for batches of an evaluation, rather than the
    step.
    """

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if multihost_utils.reached_preemption_sync_point(self._calls):
            raise PreemptedError


def evaluate(weights: State, check: PreemptionCheck) -> float:
    """The mean loss over the held-out rows."""
    losses = []
    for batch in loadax.Dataloader(dataset()[-192:], BATCH, mesh=data_parallel()):
        losses.append(float(evaluation_loss(weights, batch)))
        check()  # a whole evaluation may take longer than the time that is left
    return float(np.mean(losses))


def train(folder: Path, steps: int) -> int:
    """Trains until the last step or a preemption; returns the exit status."""
    check, mesh = PreemptionCheck(), data_parallel()
    loader = loadax.Dataloader(dataset()[:-192].shuffle(seed=0), BATCH, mesh=mesh, num_epochs=None)
    state, losses, evaluations = initial_state(mesh), np.zeros(steps), np.zeros(steps // EVALUATE_EVERY)
    # The default policy of Orbax asks for preemptions as well, with other numbers than the check.
    policy = ocp.training.save_decision_policies.FixedIntervalPolicy(SAVE_EVERY)
    with ocp.training.Checkpointer(folder, save_decision_policy=policy) as checkpointer, loader.iterate() as batches:

        def checkpoint() -> dict[str, Any]:
            curves = {"losses": losses.copy(), "evaluations": evaluations.copy()}  # they change while Orbax writes
            return {"train": {**state, **curves}, "data": batches}

        if checkpointer.latest is not None:
            loaded = checkpointer.load_checkpointables(None, checkpoint())["train"]
            losses, evaluations = loaded.pop("losses"), loaded.pop("evaluations")
            state = loaded
        say("resumed at step", batches.step)
        say("compiling")
        step = jax.jit(train_step, donate_argnums=0).lower(state, loader.spec).compile()
        try:
            while True:
                # Before the next step, so that a run which was preempted in here does it again.
                if batches.step and batches.step % EVALUATE_EVERY == 0:
                    say("evaluating")
                    evaluations[batches.step // EVALUATE_EVERY - 1] = evaluate(state["weights"], check)
                if batches.step == steps:
                    break
                state, loss = step(state, next(batches))
                losses[batches.step - 1] = loss
                say("step", batches.step)
                time.sleep(STEP_SECONDS)
                checkpointer.save_checkpointables_async(batches.step, checkpoint())  # when the policy says so
                check()
        except PreemptedError:
            checkpointer.wait()
            if checkpointer.latest is None or checkpointer.latest.step < batches.step:
                checkpointer.save_checkpointables(batches.step, checkpoint(), force=True)
            say("preempted at step", batches.step)
            return PREEMPTED
    if jax.process_index() == 0:
        curves = {"losses": losses.tolist(), "evaluations": evaluations.tolist()}
        (folder / RESULT).write_text(json.dumps(curves))
    say("finished")
    return 0


def say(*words: object) -> None:
    """Writes a line to the log of this process, at once."""
    print(*words, flush=True)


# From here on: the cluster, and what happens in it.

RESULT = "curves.json"
START_LIMIT = 120.0  # seconds without a line in any log, before all have done a step
MOST_PROCESSES, STEPS_PER_ROUND = 3, 16
SPARE = 4  # starts that nothing harms; the last one finishes, and others may be ended on a busy machine
TOLERANCE = 1e-3  # relative: other processes sum the same rows in another order
FINISHED, SAVED, DIED = "finished", "all saved the same step", "some died, the others were ended"
MOMENTS = {  # and the line that tells of each
    "while it restores": "joined",
    "in the first compile": "compiling",
    "in an evaluation": "evaluating",
    "in a step": "step",
}


@dataclass(frozen=True)
class Harm:
    """A signal that some process gets at some moment."""

    kind: signal.Signals
    victims: range
    moment: str
    after: int = 1  # how many lines of the moment the first victim has written by then

    def __str__(self) -> str:
        who = "all" if len(self.victims) > 1 else f"process {self.victims[0]}"
        return f"{self.kind.name} to {who} {self.moment}"


@dataclass
class Attempt:
    """How one start of all processes ended, what they logged, and the steps from the first one to the last."""

    end: str
    logs: list[str]
    first: int = 0
    last: int = 0


def start(folder: Path, processes: int, steps: int, logs: list[Path]) -> "list[subprocess.Popen[bytes]]":
    """Starts this script as so many processes of one JAX run on this machine."""
    with socket.socket() as probe:  # a port that is free now
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    children = []
    for number, log in enumerate(logs):
        join = ["--join", address, str(processes), str(number), str(folder), str(steps)]
        with log.open("wb") as output:
            # In sessions of their own, so that Ctrl-C reaches this process alone, and it ends the others.
            child = subprocess.Popen(
                [sys.executable, __file__, *join], stdout=output, stderr=output, start_new_session=True
            )
        children.append(child)
    return children


def attempt(folder: Path, processes: int, steps: int, patience: float, harm: Harm | None = None) -> Attempt:
    """Starts the processes, harms them, waits until they end, and ends those that would hang."""
    with tempfile.TemporaryDirectory() as place:
        logs = [Path(place, f"{number}.log") for number in range(processes)]
        children = start(folder, processes, steps, logs)
        try:
            end = watch(children, logs, patience, harm)
        finally:
            for child in children:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        texts = [log.read_text(errors="replace") for log in logs]
    result = Attempt(end, texts)
    for line in texts[0].splitlines():
        match line.split():
            case ["resumed", "at", "step", step]:
                result.first = result.last = int(step)
            case ["step", step]:
                result.last = int(step)
    return result


def watch(children: "list[subprocess.Popen[bytes]]", logs: list[Path], patience: float, harm: Harm | None) -> str:
    """Harms processes when the moment has come; returns how all ended."""
    changed, sizes = time.monotonic(), 0
    while None in (codes := [child.poll() for child in children]):
        if any(code not in (None, 0, PREEMPTED) for code in codes):
            return DIED
        texts = [log.read_text(errors="replace") for log in logs]
        if harm is not None and f"\n{texts[harm.victims[0]]}".count(f"\n{MOMENTS[harm.moment]}") >= harm.after:
            for victim in harm.victims:
                children[victim].send_signal(harm.kind)
            harm = None
        if sizes != (sizes := sum(map(len, texts))):
            changed = time.monotonic()
        limit = patience if all("\nstep" in text for text in texts) else START_LIMIT
        if time.monotonic() - changed > limit:
            return f"no step for {limit:g} s, all were ended"
        time.sleep(0.01)
    if not any(codes):
        return FINISHED
    return SAVED if set(codes) == {PREEMPTED} else DIED


def plan(rounds: int, seed: int) -> Iterator[tuple[int, Harm | None]]:
    """How many processes to start, and what to do to them: each kind of harm once, in random order, and again."""
    kinds = [
        *((signal.SIGTERM, False, moment) for moment in MOMENTS),
        (signal.SIGKILL, False, "in a step"),
        (signal.SIGKILL, True, "in a step"),
        (signal.SIGSTOP, False, "in a step"),
    ]
    rng, processes, order = np.random.default_rng(seed), 0, np.arange(0)
    for number in range(rounds + SPARE):
        processes = int(rng.choice([count for count in range(1, MOST_PROCESSES + 1) if count != processes]))
        if number >= rounds:
            yield processes, None
            continue
        if number % len(kinds) == 0:
            order = rng.permutation(len(kinds))
        kind, everyone, moment = kinds[order[number % len(kinds)]]
        victim = int(rng.integers(processes))
        victims = range(processes) if everyone else range(victim, victim + 1)
        after = int(rng.integers(1, STEPS_PER_ROUND)) if moment == "in a step" else 1
        yield processes, Harm(kind, victims, moment, after)


def harass(folder: Path, steps: int, options: argparse.Namespace) -> list[Attempt]:
    """Trains in `folder` through all failures, then to the end; prints a line for each start."""
    attempts: list[Attempt] = []
    print("start  processes  from step  to step  done again  what happened")
    for number, (processes, harm) in enumerate(plan(options.rounds, options.seed)):
        result = attempt(folder, processes, steps, options.patience, harm)
        again = attempts[-1].last - result.first if attempts else 0
        attempts.append(result)
        finished = result.end == FINISHED
        what = result.end if harm is None or finished else f"{harm}: {result.end}"
        print(f"{number:5} {processes:10} {result.first:10} {result.last:8} {again:11}  {what}", flush=True)
        if finished:
            break
    return attempts


def largest_difference(one: Path, other: Path) -> float:
    """The largest relative difference between the losses of two runs."""
    (losses, evaluations), (others, other_evaluations) = (
        json.loads((folder / RESULT).read_text()).values() for folder in (one, other)
    )
    pairs = (losses, others), (evaluations, other_evaluations)
    return max(float(np.max(np.abs(np.subtract(a, b)) / np.maximum(np.abs(b), 1e-9))) for a, b in pairs)


def parse() -> argparse.Namespace:
    """The command line."""
    summary, _, story = (__doc__ or "").partition("\n\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=story, formatter_class=form)
    parser.add_argument("--rounds", type=int, default=5, help="number of failures (default 5)")
    parser.add_argument("--seed", type=int, default=3, help="of what happens when (default 3)")
    patience = "seconds without a step after which all processes are ended (default 6)"
    parser.add_argument("--patience", type=float, default=6.0, metavar="SECONDS", help=patience)
    join = (
        "be process NUMBER of COUNT that meet at ADDRESS and train STEPS steps in FOLDER; the script does this itself"
    )
    parser.add_argument("--join", nargs=5, metavar=("ADDRESS", "COUNT", "NUMBER", "FOLDER", "STEPS"), help=join)
    options = parser.parse_args()
    if options.rounds < 0:
        parser.error(f"--rounds {options.rounds}: pass 0 or more")
    return options


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    options = parse()
    if options.join is not None:
        address, count, number, folder, steps = options.join
        jax.distributed.initialize(address, int(count), int(number), coordinator_bind_address=address)
        say("joined")
        return train(Path(folder), int(steps))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    steps = STEPS_PER_ROUND * (options.rounds + 3)  # so that it does not finish before a failure that comes late
    with tempfile.TemporaryDirectory() as place:
        quiet, harassed = Path(place, "quiet"), Path(place, "harassed")
        attempts = [attempt(quiet, 1, steps, options.patience)]
        if attempts[0].end == FINISHED:
            attempts = harass(harassed, steps, options)
        if attempts[-1].end != FINISHED:
            print(f"the run did not end: {attempts[-1].end}", *attempts[-1].logs, sep="\n--- log\n", file=sys.stderr)
            return 1
        difference = largest_difference(harassed, quiet)
    equal = difference <= TOLERANCE
    print(
        f"{steps} losses and {steps // EVALUATE_EVERY} evaluations "
        f"{'equal' if equal else 'DIFFER FROM'} those of the uninterrupted run, to a relative {difference:.1e}"
    )
    for before, after in pairwise(attempts):
        if before.end == SAVED and after.first != before.last:
            print(f"preempted at step {before.last}, but it resumed at {after.first}", file=sys.stderr)
            return 1
    return 0 if equal else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
