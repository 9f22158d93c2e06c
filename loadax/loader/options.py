"""LoaderOptions: how a `Dataloader` makes batches. Arguments are checked here once, and passed on whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from jax.sharding import Mesh, NamedSharding

from loadax.core.arguments import choice, integer
from loadax.core.tree import flatten
from loadax.dataset import Dataset
from loadax.errors import ArgumentError
from loadax.loader.assembly.host_shard import ShardSpec
from loadax.loader.metrics.stats import usable_cores
from loadax.plan.mix import Mixed

_MOST_WORKERS = 16  # workers beyond that mostly wait for each other; pass num_workers for more

Schedule = tuple[tuple[int, int], ...]
"""`(first step, value)`: each value holds until the next one begins."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderOptions:
    """How batches are cut, read ahead and placed. Each has the name of the `Dataloader` argument that it comes from.

    Args:
        partition: Partition of the leaves, as the user gave it.
        shard: Part of each batch that `shard_index` and `shard_count` ask for. None: what the mesh says.
        microbatches: Number of microbatches that a batch is cut into.
        key_seed: Seed of the random keys. None: batches have no keys.
        keep_on_device: Whether all rows stay on the devices; an int: how many bytes a device may give to them.
        num_workers: Largest number of workers.
        first_workers: Number of workers to begin with.
        worker_type: Kind of the workers, "thread" or "process".
        prefetch: Number of placed batches kept ahead of the consumer.
        prefetch_bytes: Bytes of host memory for reading ahead.
        cache_bytes: Bytes of host memory for open chunks. None: as many as are needed, up to half of the memory.
    """

    partition: Any = None
    shard: ShardSpec | None = None
    microbatches: int = 1
    key_seed: int | None = None
    keep_on_device: bool | int = False
    num_workers: int = 0
    first_workers: int = 0
    worker_type: str = "thread"
    prefetch: int = 2
    prefetch_bytes: int = 256 << 20
    cache_bytes: int | None = None

    @property
    def readers(self) -> int:
        """Number of copies of the reader, each with caches of its own: one a worker process."""
        return max(1, self.num_workers) if self.worker_type == "process" else 1


def resolve_options(
    batch_sizes: Sequence[int],
    concurrent_reads: int,
    *,
    partition: Any,
    shard_index: int | None,
    shard_count: int | None,
    microbatches: int,
    key_seed: int | None,
    keep_on_device: Any,
    num_workers: int | None,
    worker_type: str,
    prefetch: int,
    prefetch_bytes: int,
    cache_bytes: int | None,
) -> LoaderOptions:
    """Checks the arguments of a `Dataloader`, for all its batch sizes and the reads that its source wants at once.

    Raises:
        ArgumentError: when an argument can't be used; names it, shows it, says what to do.
    """
    in_processes = choice("worker_type", worker_type, ("thread", "process")) == "process"
    first = 1 if in_processes else concurrent_reads
    workers = _most_workers(first, in_processes) if num_workers is None else integer("num_workers", num_workers, 0)
    options = LoaderOptions(
        partition=partition,
        prefetch=integer("prefetch", prefetch, 0),
        shard=_shard(shard_index, shard_count, batch_sizes),
        microbatches=integer("microbatches", microbatches, 1),
        key_seed=None if key_seed is None else integer("key_seed", key_seed, most=None),
        keep_on_device=_keep_on_device(keep_on_device),
        num_workers=workers,
        first_workers=first if num_workers is None else workers,
        worker_type=worker_type,
        prefetch_bytes=integer("prefetch_bytes", prefetch_bytes, 1),
        cache_bytes=None if cache_bytes is None else integer("cache_bytes", cache_bytes, 0),
    )
    for size in (size for size in batch_sizes if size % options.microbatches):
        count = options.microbatches
        raise ArgumentError(f"batch_size={size} can't be cut in microbatches={count}; use a multiple of {count}")
    return options


def _most_workers(first: int, in_processes: bool) -> int:
    """The largest number of workers that are tried where the user has not said how many.

    A process a core; of threads twice as many, since one may wait for a disk or for the GIL, or as many as the source
    wants.
    """
    cores = usable_cores()
    return min(cores, _MOST_WORKERS) if in_processes else max(min(2 * cores, _MOST_WORKERS), first)


def _keep_on_device(value: Any) -> bool | int:
    return bool(value) if value is None or isinstance(value, bool) else integer("keep_on_device", value, 1)


def _shard(index: int | None, count: int | None, batch_sizes: Sequence[int]) -> ShardSpec | None:
    """The part of each batch that `shard_index` and `shard_count` ask for; None: they don't."""
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
        ArgumentError: when something is scheduled for a later epoch, whose first step depends on what becomes of the
            last batch.
    """
    order = dataset.order
    if not isinstance(order, Mixed) or not order.by_step:
        return dataset
    known = order.at_positions(schedule)
    last = known.segments[-1].start
    if num_epochs != 1 and last + schedule[-1][1] > known.size:
        raise ArgumentError(
            f"weights are scheduled from step {order.segments[-1].start} on, which is example {last}, "
            f"but an epoch has only {known.size} examples; schedule by example, or pass stop='never' to mix()"
        )
    return replace(dataset, order=known)


def mesh_of(partition: Any) -> Mesh | None:
    """The mesh of the first sharding in `partition`, if there is one."""
    for leaf in flatten(partition)[0]:
        if isinstance(leaf, NamedSharding) and isinstance(leaf.mesh, Mesh):
            return leaf.mesh
    return None
