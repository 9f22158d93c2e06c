"""Keras 3 on JAX: `fit` from a loader, interrupted and restored, trains as without an interruption."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadax import Dataloader, from_arrays
from tests.limits import HANG

# of Keras 3.15 with NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

_STEPS = 4  # of an epoch


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(32, 3)).astype(np.float32), np.arange(32, dtype=np.float32)


@pytest.fixture
def keras() -> Any:
    import keras

    return keras


def model(keras: Any) -> Any:
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    made.compile("adam", "mse")
    return made


def loader(rows: Any, num_epochs: int | None = None) -> Dataloader:
    return Dataloader(from_arrays(rows).shuffle(0), 8, num_epochs=num_epochs)


class _KilledError(Exception):
    pass


@pytest.mark.parametrize(("save_freq", "steps"), [("epoch", 12), (3, 14)])
def test_epochs_are_those_of_the_loader_and_go_on_after_a_restore(
    keras: Any, rows: Any, tmp_path: Path, save_freq: str | int, steps: int
) -> None:
    """From a backup within an epoch, Keras runs all steps of that epoch, and loadax goes on with new batches."""
    from loadax.interop.keras import Batches

    straight = model(keras)

    def generated() -> Any:
        with loader(rows).iterate() as batches:
            yield from batches

    straight.fit(generated(), steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)

    class Kills(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations) == 6:
                raise _KilledError

    killed = model(keras)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=save_freq)
    with Batches(loader(rows), killed) as batches, pytest.raises(_KilledError):
        killed.fit(batches, epochs=3, verbose=0, callbacks=[backup, Kills()])
    resumed = model(keras)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=save_freq)
    with Batches(loader(rows), resumed) as batches:
        resumed.fit(batches, epochs=3, verbose=0, callbacks=[backup])
        assert len(batches) == _STEPS
    assert int(resumed.optimizer.iterations) == steps
    for weight, expected in zip(resumed.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, expected)
    with Batches(loader(rows, 1)) as batches:
        assert resumed.evaluate(batches, verbose=0) == resumed.evaluate(batches, verbose=0)


def test_error_for_a_backend_that_is_not_installed(tmp_path: Path) -> None:
    """Without a choice, Keras takes TensorFlow, which users of JAX seldom have. Then the message's advice is taken."""
    program = "from loadax.interop.keras import Batches"
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["KERAS_HOME"] = str(tmp_path)  # where it keeps the choice of its last run

    def run() -> str:
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=HANG)
        return ended.stderr

    hint = "set the environment variable KERAS_BACKEND to jax before Keras is imported"
    found = run()
    assert "loadax.interop.keras needs keras, whose import has failed (No module named 'tensorflow')" in found
    assert hint in found
    environment["KERAS_BACKEND"] = "jax"
    assert "Error" not in run()
