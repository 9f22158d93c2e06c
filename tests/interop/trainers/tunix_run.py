"""Trains Tunix' toy transformer with loadax and with Grain: equal losses, also after resuming in the middle."""

import tempfile
from collections.abc import Iterable
from typing import Any, final

import grain
import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P
from orbax import checkpoint as ocp
from tunix.sft import hooks, peft_trainer, sharding_utils
from tunix.tests import test_common

import loadax
from loadax.interop.tunix import DataHooks

ROWS, BATCH, STEPS = 64, 8, 6


def inputs() -> peft_trainer.TrainingInput:
    tokens = np.random.default_rng(0).integers(0, 256, (ROWS, 16))
    return peft_trainer.TrainingInput(input_tokens=tokens.astype(np.int32), input_mask=np.ones((ROWS, 16), bool))


def loader(mesh: jax.sharding.Mesh) -> loadax.Dataloader:
    return loadax.Dataloader(loadax.from_arrays(inputs()), BATCH, mesh=mesh, partition=P("fsdp"), num_epochs=None)


def of_grain() -> Iterable[Any]:
    whole = inputs()
    rows = [jax.tree.map(lambda leaf, row=row: leaf[row], whole) for row in range(ROWS)]
    return grain.MapDataset.source(rows).repeat().to_iter_dataset().batch(BATCH)


@final
class Losses(hooks.TrainingHooks):  # type: ignore[misc] # Tunix ships no types
    """Keeps the loss of every step; does nothing else."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_step_end(self, train_ctx: Any, train_step: int, train_loss: Any) -> None:
        self.losses.append(float(train_loss))

    def on_train_start(self, train_ctx: Any) -> None: ...
    def on_train_end(self, train_ctx: Any) -> None: ...
    def on_train_step_start(self, train_ctx: Any) -> None: ...
    def on_eval_step_start(self, train_ctx: Any) -> None: ...
    def on_eval_step_end(self, train_ctx: Any, eval_loss: float) -> None: ...


def train(
    mesh: jax.sharding.Mesh,
    data: Iterable[Any],
    steps: int,
    folder: str | None = None,
    data_hooks: DataHooks | None = None,
) -> list[float]:
    config = peft_trainer.TrainingConfig(
        eval_every_n_steps=2,
        max_steps=steps,
        checkpoint_root_directory=folder,
        checkpointing_options=ocp.CheckpointManagerOptions(save_interval_steps=1),
    )
    model = test_common.ToyTransformer(test_common.ModelConfig(), rngs=nnx.Rngs(0))
    trainer = peft_trainer.PeftTrainer(model, optax.sgd(0.1), config)
    replicated = jax.sharding.NamedSharding(mesh, P())
    for part in (model, trainer.optimizer):
        nnx.update(part, jax.device_put(nnx.state(part), replicated))
    trainer = trainer.with_gen_model_input_fn(
        lambda batch: {
            "input_tokens": batch.input_tokens,
            "input_mask": batch.input_mask,
            "positions": np.arange(16)[None].repeat(BATCH, 0),
            "attention_mask": np.ones((BATCH, 16, 16), bool),
        }
    )
    losses = Losses()
    trainer.with_training_hooks(losses)
    evaluations = None
    if data_hooks is not None:
        trainer.with_data_hooks(data_hooks)
        evaluations = ["from the hooks"]
    with mesh:  # as Tunix has it; under jax.set_mesh it places nothing
        trainer.train(data, evaluations)
    return losses.losses


def main() -> None:
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    expected = train(mesh, of_grain(), STEPS)
    assert len(expected) == STEPS
    assert train(mesh, loader(mesh), STEPS) == expected
    batch = next(iter(loader(mesh)))
    with mesh:
        assert sharding_utils.shard_input(batch, ("fsdp",)) is batch, "placed once"
    evaluation = loadax.Dataloader(loadax.from_arrays(inputs()), 16, mesh=mesh, partition=P("fsdp"))
    with tempfile.TemporaryDirectory() as folder:
        first = train(mesh, [], STEPS // 2, folder, DataHooks(loader(mesh), evaluation))
        rest = train(mesh, [], STEPS, folder, DataHooks(loader(mesh), evaluation))
    assert first + rest == expected, (first, rest, expected)
    print("tunix: losses", expected)


if __name__ == "__main__":
    main()
