"""What the real processes of `test_jax_runs.py` do."""

import re
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import loadax
from loadax import Dataloader, from_arrays
from loadax.core import version
from loadax.core.key_value import key_value_store
from loadax.errors import HostError
from tests.key_values import check_store
from tests.limits import until

ROWS, BATCH = 96, 16
KEY = jax.random.key(0)


def loader(rows: int = ROWS, seed: int = 4, batch_size: int = BATCH, last: int = 0, **options: Any) -> Dataloader:
    x = np.array([*range(rows - 1), last])
    return Dataloader(from_arrays({"x": x}).shuffle(seed=seed), batch_size, num_epochs=None, **options)


CASES: dict[str, tuple[Callable[[], Dataloader], str, str]] = {
    "number of rows": (lambda: loader(rows=ROWS + 8), "96", "104"),
    "dataset": (lambda: loader(seed=5), "shuffle(4)", "shuffle(5)"),
    "batch_size": (lambda: loader(batch_size=32), "16", "32"),
    f"contents of row {ROWS - 1}": (lambda: loader(last=1), "", ""),
    "quarantine": (lambda: loader(quarantine=[3, 5]), "0 rows", "2 rows"),
    "version of loadax": (loader, loadax.__version__, "0.0.1"),
}


def culprits() -> None:
    """Every host names the one that differs, in which field, with both values, before it has a batch."""
    culprit, count = (1, 2) if jax.process_count() == 2 else (2, jax.process_count())
    differs = jax.process_index() == culprit
    usual_hosts = [process for process in range(count) if process != culprit]
    for field, (other, usual, unusual) in CASES.items():
        with pytest.MonkeyPatch.context() as patch:
            if field.startswith("version") and differs:
                patch.setattr(version, "__version__", "0.0.1")
            message = refused(other() if differs else loader())
        message = message.replace(" (", "(")
        assert message.startswith(f"hosts differ in {field}: {unusual if count > 2 else usual}")
        assert re.search(rf"{re.escape(unusual)}\S* on process {culprit}\b", message)
        others = ", ".join(map(str, usual_hosts[:-1])) + f" and {usual_hosts[-1]}"
        others = f"processes {others}" if count > 2 else "process 0"
        assert re.search(rf"{re.escape(usual)}\S* on {others}\b", message)
    assert "in first step: " in refused(loader(), start=int(differs))
    if count == 2:  # what is compared; who differs from whom is above
        arguments_by_host(differs)
    follow_the_advice()


def arguments_by_host(differs: bool) -> None:
    """Costs, functions and programs that differ are named before the first batch; those that only look so are not."""
    costs = np.arange(ROWS, dtype=np.float64) ** 2
    own = costs[::-1] if differs else costs
    factor, path = (3, f"/data/{jax.process_index()}") if differs else (2, "/data")
    table = np.arange(4) * factor
    alike: dict[str, list[Any]] = {
        "balance": [costs, lambda rows: costs[rows] if path else own[rows]],
        "device_map": [
            lambda row: {"x": row["x"] * 2 + 0 * len(path[:2])},
            lambda row: {"x": jax.nn.relu(row["x"].astype(float))},
            loadax.DeviceMap(lambda row: {"x": jnp.asarray(costs)[row["x"]], "key": jax.random.key_data(KEY)}),
        ],
    }
    unlike: dict[str, list[Any]] = {
        "balance": [own, lambda rows: own[rows]],
        "device_map": [
            lambda row: {"x": row["x"] * factor},
            lambda row: {"x": row["x"] + jnp.asarray(table)[row["x"] % 4]},
            lambda row: {"x": jax.jit(lambda x: x + jnp.asarray(table)[x % 4])(row["x"])},
            lambda row: {"x": row["x"], "y": row["x"]} if differs else row,
        ],
    }
    for name, values in alike.items():
        for value in values:
            options: dict[str, Any] = {name: value}
            with loader(**options).iterate(3) as batches:
                next(batches)
    for name, values in unlike.items():
        for value in values:
            options = {name: value}
            for num_workers in (0, 2):
                message = refused(loader(num_workers=num_workers, **options), start=3)
                field = r"rows of step 3, which balance= arranges: \d+, " if name == "balance" else "device_map: "
                assert re.match(rf"hosts differ in {field}.* on process.*; .* on process.*; start all", message), (
                    message
                )


class Alone:
    """A source that two threads may not read from at the same time, in a way that nobody can see."""

    spec = np.int64(0)

    def __init__(self) -> None:
        self.busy = False

    def __len__(self) -> int:
        return ROWS

    def read(self, rows: Any) -> Any:
        assert not self.busy, "two threads read at the same time"
        self.busy = True
        time.sleep(0.02)
        self.busy = False
        return rows


def read_by_one_thread() -> None:
    """With num_workers=1, rows to compare are not read while the worker reads, at the beginning and after a jump."""
    with Dataloader(Alone(), BATCH, num_epochs=None, num_workers=1).iterate() as batches:
        for start in (2, 0):
            for _ in range(4):
                next(batches)
            batches.set_state(start)
        next(batches)


def refused(made: Dataloader, start: int = 0) -> str:
    with made.iterate(start) as batches:
        with pytest.raises(HostError) as caught:
            next(batches)
        with pytest.raises(HostError, match=re.escape(str(caught.value))):
            next(batches)
    return str(caught.value)


def follow_the_advice() -> None:
    """With the same arguments and states, and one process's looks at `loader[step]`, nothing is refused."""
    train, validate = loader(), loader(seed=5)
    if jax.process_index() == 0:
        train[3]
    with train.iterate(3) as batches, validate.iterate() as others:
        for _ in range(3):
            next(batches)
            next(others)
        batches.set_state(1)
        next(batches)
        assert batches.step == 2
        told = str(batches.report(hosts=True))
        assert f"of {jax.process_count()} hosts, process " in told


def store() -> None:
    """Each process sees what the others set."""
    keys = key_value_store()
    assert keys is not None
    if jax.process_index() == 0:
        check_store(keys)
    keys.set(f"hosts/{jax.process_index()}", f"process {jax.process_index()}")
    expected = {str(process): f"process {process}" for process in range(jax.process_count())}
    until(lambda: keys.list("hosts") == expected)


def both() -> None:
    """One launch costs seconds, so all of this is done in one."""
    store()
    read_by_one_thread()
    culprits()
