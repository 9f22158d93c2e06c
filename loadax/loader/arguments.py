"""Checks the arguments of a `Dataloader`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import Mesh, NamedSharding

from loadax.core.arguments import integer
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.loader.assembly.host_shard import ShardSpec
from loadax.loader.metrics.stats import usable_cores

_MOST_WORKERS = 16  # workers beyond that mostly wait for each other; pass num_workers for more

Schedule = tuple[tuple[int, int], ...]
"""`(first step, value)`: each value holds until the next one begins."""


def schedule(name: str, value: Any) -> Schedule:
    """An int, or a dict of ints by step, as a schedule.

    Raises:
        ArgumentError: when steps don't begin at 0 and ascend, or a value is no int.
    """
    if not isinstance(value, Mapping):
        return ((0, integer(name, value)),)
    steps = [integer(f"a step of {name}", step) for step in value]
    if not steps or steps[0] != 0 or steps != sorted(set(steps)):
        raise ArgumentError(
            f"{name}={dict(value)!r}: a schedule begins at step 0, and ascends: {{0: 256, 10_000: 1024}}"
        )
    return tuple((step, integer(f"{name}[{step}]", each)) for step, each in zip(steps, value.values(), strict=True))


def value_at(scheduled: Schedule, step: int) -> int:
    """What a schedule says for a step."""
    return next(value for first, value in reversed(scheduled) if first <= step)


def together(one: Schedule, other: Schedule) -> Schedule:
    """The values of `one`, with a seam wherever either has one."""
    return tuple((step, value_at(one, step)) for step in sorted({step for step, _ in (*one, *other)}))


def with_positions(dataset: Dataset, schedule: tuple[tuple[int, int], ...], num_epochs: Any) -> Dataset:
    """The dataset with what is scheduled by step scheduled by position, now that the batch sizes are known.

    Raises:
        ArgumentError: when something is scheduled for a later epoch.
    """
    scheduled = dataset.order.schedule
    if scheduled is None or not scheduled.by_step:
        return dataset
    return replace(dataset, order=scheduled.at_positions(schedule, num_epochs))


def worker_count(num_workers: int | None, concurrent_reads: int, in_processes: bool) -> int:
    """How many workers may read, at most; what is given is checked.

    None: a process a core; of threads twice as many, since one may wait for a disk or for the interpreter, or as many
        as the source wants.
    """
    if num_workers is None:
        cores = usable_cores()
        return min(cores, _MOST_WORKERS) if in_processes else max(min(2 * cores, _MOST_WORKERS), concurrent_reads)
    return integer("num_workers", num_workers, 0)


def keep_limit(keep_on_device: Any) -> tuple[bool, int | None]:
    """Whether the dataset is kept on the devices, and how many bytes a device may give to it; None: it is not said."""
    if keep_on_device is None or isinstance(keep_on_device, bool):
        return bool(keep_on_device), None
    return True, integer("keep_on_device", keep_on_device, 1)


def part_of(index: int | None, count: int | None, batch_sizes: Sequence[int]) -> ShardSpec | None:
    """Which part of each batch `shard_index` and `shard_count` ask for; None: they don't."""
    if index is None and count is None:
        return None
    if index is None or count is None:
        raise ArgumentError(f"shard_index={index} and shard_count={count}: pass both, or neither")
    count = integer("shard_count", count, 1)
    index = integer("shard_index", index)
    if not 0 <= index < count:
        raise ArgumentError(f"shard_index={index} is not one of shard_count={count} parts: pass 0 to {count - 1}")
    for batch_size in batch_sizes:
        if batch_size % count:
            raise ArgumentError(
                f"batch_size={batch_size} can't be cut in shard_count={count} equal parts; use a multiple of {count}"
            )
    return ShardSpec(index, count)


def mesh_of(partition: Any) -> Mesh | None:
    """The mesh of the first sharding in `partition`, if there is one."""
    for leaf in flatten(partition)[0]:
        if isinstance(leaf, NamedSharding) and isinstance(leaf.mesh, Mesh):
            return leaf.mesh
    return None
