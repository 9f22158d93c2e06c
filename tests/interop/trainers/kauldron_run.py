"""Trains a tiny model in Kauldron with loadax and with its own pipeline: equal weights, also after resuming.

In one process, and in two that share a mesh.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from kauldron import kd, kontext

import loadax
from loadax.interop.kauldron import Pipeline
from tests.interop.trainers.processes import join, run_processes

ROWS, BATCH, STEPS = 64, 16, 8
SAVED = 3  # inside an epoch, whose batches are not those of its beginning


class Model(nn.Module):
    """One dense layer."""

    x: kontext.Key = "batch.x"

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(1)(x)


def rows() -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 4)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


def own() -> Any:
    return kd.data.InMemoryPipeline(loader=rows, batch_size=BATCH)


def loadax_pipeline() -> Any:
    return Pipeline(dataset=loadax.from_arrays(rows()), batch_size=BATCH)


def train(pipeline: Any, folder: str, stop_after: int | None = None) -> Any:
    evaluation = kd.evals.Evaluator(
        run=kd.evals.EveryNSteps(4),
        ds=Pipeline(dataset=loadax.from_arrays(rows()), batch_size=BATCH, num_epochs=1),
        num_batches=None,
    )
    trainer = kd.train.Trainer(
        seed=0,
        train_ds=pipeline,
        model=Model(),
        train_losses={"loss": kd.losses.L2(preds="preds", targets="batch.y")},
        optimizer=optax.adam(1e-2),
        num_train_steps=STEPS,
        stop_after_steps=stop_after,
        workdir=folder,
        checkpointer=kd.ckpts.Checkpointer(save_interval_steps=SAVED),
        evals={"eval": evaluation},
    )
    state, _ = trainer.train()
    return jax.tree.map(np.asarray, state.params)


def in_one_process() -> Any:
    """Returns the weights."""
    with tempfile.TemporaryDirectory() as expected_at, tempfile.TemporaryDirectory() as at:
        expected = train(own(), expected_at)
        with tempfile.TemporaryDirectory() as whole_at:
            whole = train(loadax_pipeline(), whole_at)
        train(loadax_pipeline(), at, SAVED + 1)
        check_saved(at)
        resumed = train(loadax_pipeline(), at)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, expected)), (whole, expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, resumed, expected)), (resumed, expected)
    print("kauldron: weights", expected)
    return expected


def check_saved(at: str) -> None:
    assert Path(at, f"checkpoints/ckpt_{SAVED}").exists(), list(Path(at).rglob("*"))
    assert not Path(at, f"checkpoints/ckpt_{2 * SAVED}").exists()


def as_one_of_two(at: str, stop_after: int | None = None) -> None:
    """What each process runs."""
    assert jax.process_count() == 2
    batch = next(iter(loadax_pipeline()))
    assert all(isinstance(leaf, np.ndarray) and len(leaf) == BATCH // 2 for leaf in jax.tree.leaves(batch))
    weights = train(loadax_pipeline(), at, stop_after)
    if jax.process_index() == 0:
        np.savez(Path(at, "weights.npz"), *jax.tree.leaves(weights))


def in_two_processes(expected: Any) -> None:
    """Saves by two processes, and resumes by one and by two."""
    with tempfile.TemporaryDirectory() as at, tempfile.TemporaryDirectory() as copy:
        run_processes(__file__, at, str(SAVED + 1), processes=2)
        check_saved(at)
        shutil.copytree(at, copy, dirs_exist_ok=True)
        by_one = jax.tree.leaves(train(loadax_pipeline(), copy))
        run_processes(__file__, at, processes=2)
        with np.load(Path(at, "weights.npz")) as saved:
            by_two = list(saved.values())
    for name, weights in (("1", by_one), ("2", by_two)):
        differences = [float(np.abs(a - b).max()) for a, b in zip(weights, jax.tree.leaves(expected), strict=True)]
        print(f"kauldron: saved by 2 processes, resumed by {name}: weights differ by at most {max(differences)}")
        assert max(differences) < 1e-6


def main() -> None:
    in_two_processes(in_one_process())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        folder, *stop = sys.argv[1:]
        join(lambda: as_one_of_two(folder, *map(int, stop)))
    else:
        main()
