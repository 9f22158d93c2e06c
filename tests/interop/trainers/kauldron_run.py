"""Trains a tiny model in Kauldron with loadax and with its own pipeline: equal weights, also after resuming."""

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

ROWS, BATCH, STEPS, SAVED = 64, 16, 8, 4


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


def main() -> None:
    with tempfile.TemporaryDirectory() as expected_at, tempfile.TemporaryDirectory() as at:
        expected = train(own(), expected_at)
        with tempfile.TemporaryDirectory() as whole_at:
            whole = train(loadax_pipeline(), whole_at)
        train(loadax_pipeline(), at, SAVED + 1)
        assert Path(at, f"checkpoints/ckpt_{SAVED}").exists(), list(Path(at).rglob("*"))
        resumed = train(loadax_pipeline(), at)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole, expected)), (whole, expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, resumed, expected)), (resumed, expected)
    print("kauldron: weights", expected)


if __name__ == "__main__":
    main()
