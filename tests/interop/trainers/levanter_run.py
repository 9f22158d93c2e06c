"""Trains a tiny model in Levanter with loadax and with its own loader: equal losses, also after resuming."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec as P
from levanter.checkpoint import CheckpointerConfig
from levanter.data import DataLoader
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

import loadax
from loadax.interop.levanter import AsyncDataset, batches

ROWS, STEPS = 64, 6
Batch, Features = hax.Axis("batch", 16), hax.Axis("features", 4)


def data() -> loadax.Dataset:
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, Features.size)).astype(np.float32)
    return loadax.from_arrays({"x": x, "y": x.sum(1)})


class Model(eqx.Module):
    """A weight for each feature."""

    weights: hax.NamedArray


def loss_of(model: Model, example: dict[str, Any], *, key: Any = None) -> Any:
    del key
    return hax.mean(hax.square(hax.dot(model.weights, example["x"], axis=Features) - example["y"]))


def trainer(folder: str) -> Trainer:
    config = TrainerConfig(
        id="run",
        tracker=NoopConfig(),
        train_batch_size=Batch.size,
        num_train_steps=STEPS,
        require_accelerator=False,
        checkpointer=CheckpointerConfig(base_path=folder),
        log_dir=Path(folder, "logs"),
    )
    return Trainer(config, optax.sgd(0.1), loss_of, add_default_hooks=False)


def losses_of(run: Trainer, state: Any, loader: Iterable[Any], steps: int) -> tuple[list[float], Any]:
    losses = []
    for info in run.training_steps(state, loader):
        losses.append(float(info.loss))
        state = info.state
        if len(losses) == steps:
            break
    return losses, state


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, trainer(folder) as run:
        mapping = run.compute_axis_mapping

        def begin() -> Any:
            return run.initial_state(jax.random.PRNGKey(0), model_init=lambda: Model(hax.zeros(Features)))

        partition = P(hax.partitioning.physical_axis_name(Batch, mapping))
        loader = loadax.Dataloader(data(), Batch.size, mesh=run.device_mesh, partition=partition, num_epochs=None)
        axes = {"x": (Batch, Features), "y": (Batch,)}
        dataset = AsyncDataset(data(), {"x": (Features,), "y": ()}, num_epochs=None)
        own = DataLoader(dataset, Batch.size, mesh=run.device_mesh, axis_resources=mapping)

        expected, _ = losses_of(run, begin(), own, STEPS)
        assert len(expected) == STEPS
        assert losses_of(run, begin(), batches(loader, axes), STEPS)[0] == expected
        first, state = losses_of(run, begin(), batches(loader, axes), STEPS // 2)
        rest, _ = losses_of(run, state, batches(loader, axes, state.step), STEPS)
        assert first + rest == expected, (first, rest, expected)
        print("levanter: losses", expected)


if __name__ == "__main__":
    main()
