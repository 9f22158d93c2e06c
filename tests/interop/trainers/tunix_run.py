"""Trains Tunix' toy transformer with loadax and with Grain: equal losses, also after resuming in the middle.

By supervised fine-tuning, and by reinforcement learning (GRPO) on prompts that are strings.
"""

import tempfile
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, final

import grain
import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P
from orbax import checkpoint as ocp
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.sft import hooks, peft_trainer, sharding_utils
from tunix.tests import test_common

import loadax
from loadax.interop.tunix import DataHooks
from loadax.loader.lease import Lease

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


def replicated(mesh: jax.sharding.Mesh, part: Any) -> Any:
    nnx.update(part, jax.device_put(nnx.state(part), jax.sharding.NamedSharding(mesh, P())))
    return part


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
    model = replicated(mesh, test_common.ToyTransformer(test_common.ModelConfig(), rngs=nnx.Rngs(0)))
    trainer = peft_trainer.PeftTrainer(model, optax.sgd(0.1), config)
    replicated(mesh, trainer.optimizer)
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
    trainer.train(data, evaluations)
    return losses.losses


def fine_tune(mesh: jax.sharding.Mesh) -> None:
    expected = train(mesh, of_grain(), STEPS)
    assert len(expected) == STEPS
    assert train(mesh, loader(mesh), STEPS) == expected
    evaluation = loadax.Dataloader(loadax.from_arrays(inputs()), 16, mesh=mesh, partition=P("fsdp"))
    with tempfile.TemporaryDirectory() as folder:
        first = train(mesh, [], STEPS // 2, folder, DataHooks(loader(mesh), evaluation))
        rest = train(mesh, [], STEPS, folder, DataHooks(loader(mesh), evaluation))
    assert first + rest == expected, (first, rest, expected)
    print("tunix: losses", expected)


def say_what_is_placed_twice(mesh: jax.sharding.Mesh) -> None:
    """`DataHooks` warns of the partitions that Tunix places a second time, and of no other."""
    trainer = peft_trainer.PeftTrainer(
        replicated(mesh, test_common.ToyTransformer(test_common.ModelConfig(), rngs=nnx.Rngs(0))),
        optax.sgd(0.1),
        peft_trainer.TrainingConfig(eval_every_n_steps=2),
    )
    data = loadax.from_arrays(inputs())
    for partition in (P("fsdp"), P("fsdp", None), P(("fsdp", "tp")), P("tp")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            data_hooks = DataHooks(loadax.Dataloader(data, BATCH, mesh=mesh, partition=partition))
            batch = data_hooks.load_next_train_batch(trainer)
        placed_once = sharding_utils.shard_input(batch, trainer.config.data_sharding_axis) is batch
        assert len(caught) == (not placed_once), (partition, caught)
        assert placed_once == (partition == P("fsdp"))
        print(f"tunix: {partition} is placed", "once" if placed_once else "twice, and DataHooks says so")


# Tunix' toy tokenizer knows them.
WORDS = ["input", "string", "hello", "world", "Hello", "there", "My", "name", "is", "library"]


def questions() -> dict[str, Any]:
    drawn = np.random.default_rng(0).choice(WORDS, (ROWS, 4))
    return {"prompts": np.array([" ".join(words) for words in drawn[:, 1:]]), "answer": drawn[:, 0]}


def host_loader(mesh: jax.sharding.Mesh) -> loadax.Dataloader:
    data, names = loadax.from_arrays(questions()), ("prompts", "answer")
    return loadax.Dataloader(data, BATCH, mesh=mesh, partition=P("fsdp"), num_epochs=None, host_leaves=names)


def questions_of_grain() -> Iterable[Any]:
    whole = questions()
    rows = [{name: str(leaf[row]) for name, leaf in whole.items()} for row in range(ROWS)]
    return grain.MapDataset.source(rows).repeat().to_iter_dataset().batch(BATCH)


def prompts_of(lease: Lease, trainer: Any) -> Iterator[Any]:
    """Prompts for a learner that trains on them in order, whose checkpoints get the state of the lease."""
    before, metadata = trainer.iter_steps, trainer.custom_checkpoint_metadata_fn
    handed_out: deque[Any] = deque()
    acknowledged = before

    def metadata_with_lease() -> dict[str, Any]:
        nonlocal acknowledged
        while acknowledged < trainer.iter_steps:  # batches that are in the weights
            lease.ack(handed_out.popleft())
            acknowledged += 1
        return {**metadata(), "lease": lease.get_state()}

    trainer.custom_checkpoint_metadata_fn = metadata_with_lease
    for leased in lease:
        yield from repeat(leased.examples, before)  # the learner drops as many batches when it resumes
        before = 0
        handed_out.append(leased.positions)
        yield leased.examples


def saved_lease(folder: str) -> Any:
    """State of the lease in the latest checkpoint of the actor."""
    with ocp.CheckpointManager(Path(folder) / "actor") as checkpoints:
        step = checkpoints.latest_step()
        return 0 if step is None else checkpoints.metadata(step).custom_metadata["lease"]


def reinforce(
    mesh: jax.sharding.Mesh, data: Iterable[Any] | Lease, steps: int, folder: str | None = None
) -> tuple[list[Any], Any]:
    """Trains by GRPO; returns what the reward function was asked, and the weights."""
    asked = []

    def reward(prompts: Any, completions: Any, answer: Any, **_: Any) -> list[float]:
        asked.append((list(prompts), list(answer)))
        return [(word in text) + len(text) / 100 for word, text in zip(answer, completions, strict=True)]

    def model() -> Any:
        config = test_common.ModelConfig(vocab_size=vocabulary.GetPieceSize(), num_layers=1)
        return replicated(mesh, test_common.ToyTransformer(config, rngs=nnx.Rngs(0)))

    vocabulary = test_common.MockVocab()
    role = rl_cluster.Role
    cluster = rl_cluster.RLCluster(
        actor=model(),
        reference=model(),
        tokenizer=vocabulary,
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys((role.ACTOR, role.REFERENCE, role.ROLLOUT), mesh),
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.sgd(0.1),
                eval_every_n_steps=steps + 1,
                max_steps=steps,
                checkpoint_root_directory=folder,
                checkpointing_options=ocp.CheckpointManagerOptions(save_interval_steps=1),
            ),
            rollout_config=RolloutConfig(max_tokens_to_generate=4, max_prompt_length=8, kv_cache_size=16),
        ),
    )
    replicated(mesh, cluster.actor_trainer.optimizer)
    prompts = prompts_of(data, cluster.actor_trainer) if isinstance(data, Lease) else data
    GRPOLearner(cluster, GRPOConfig(num_generations=2), reward).train(prompts)
    return asked, jax.tree.map(np.asarray, nnx.state(cluster.actor_trainer.model))


def equal(weights: Any, others: Any) -> bool:
    return bool(jax.tree.all(jax.tree.map(np.array_equal, weights, others)))


def learn_from_rewards(mesh: jax.sharding.Mesh) -> None:
    expected, weights = reinforce(mesh, questions_of_grain(), 3)
    assert len(expected) == 3
    asked, own_weights = reinforce(mesh, host_loader(mesh).host_batches(), 3)
    assert asked == expected
    assert equal(own_weights, weights)
    with tempfile.TemporaryDirectory() as folder:
        first, weights_then = reinforce(mesh, host_loader(mesh).host_batches(), 2, folder)
        rest, resumed = reinforce(mesh, host_loader(mesh).host_batches(), 3, folder)  # Tunix drops two batches itself
    assert first + rest == expected
    assert equal(resumed, weights)
    assert not equal(weights_then, weights), "it learns"
    with tempfile.TemporaryDirectory() as folder:
        with host_loader(mesh).lease(saved_lease(folder)) as lease:
            first, _ = reinforce(mesh, lease, 2, folder)
        with host_loader(mesh).lease(saved_lease(folder)) as lease:
            rest, resumed = reinforce(mesh, lease, 3, folder)
            assert lease.acknowledged == BATCH
    assert first + rest == expected
    assert equal(resumed, weights)
    print("tunix: GRPO asked", *map(str, expected[-1][0]), sep="; ")


def main() -> None:
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    warnings.filterwarnings("ignore", "`with mesh:` context manager", DeprecationWarning)
    with mesh:  # as Tunix has it; under jax.set_mesh it places nothing
        fine_tune(mesh)
        say_what_is_placed_twice(mesh)
        learn_from_rewards(mesh)


if __name__ == "__main__":
    main()
