"""LoaderOptions: options of a `Dataloader`, validated once and passed on as a whole."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, final, get_args

import numpy as np
from jax.sharding import Mesh, NamedSharding

from loadax.core.arguments import choice, integer, number, shown
from loadax.core.formatting import count_text
from loadax.core.leaf_names import Path, path_of, unknown_leaf
from loadax.core.spec import flatten_spec
from loadax.core.tasks import checked_engine
from loadax.core.tree import flatten
from loadax.core.user_object import user_objects
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, UnsupportedError
from loadax.loader.assembly.host_shard import ShardSpec
from loadax.loader.mask_errors import MaskErrors
from loadax.loader.metrics.stats import usable_cores
from loadax.loader.streams.run import StreamOptions
from loadax.plan.batches import Remainder
from loadax.plan.mix import Mixed
from loadax.plan.order import depth_first
from loadax.plan.stream import StreamOrder
from loadax.protocols import Engine, Integers, Tree
from loadax.reader import Reader
from loadax.sources.stream.source import streams_in

_MOST_WORKERS = 16  # default limit: more workers mostly wait for each other
_MOST_REMOTE, _FIRST_REMOTE = 32, 4  # workers of `remote=`, whose number is unknown

_Value = TypeVar("_Value")
# Sequence length of batches by the name of a leaf.
SeqLens = tuple[tuple[str, int], ...]
# `(first step, value)` pairs; each value applies until the next one starts.
Schedule = tuple[tuple[int, _Value], ...]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderOptions:
    """Validated arguments of `Dataloader`, which documents them.

    Args:
        shard: Part of each batch chosen by `shard_index` and `shard_count`. None: the mesh decides.
        num_workers: Largest number of workers.
        first_workers: Initial number of workers.
        masking: What to do with rows that can't be read. None: they end the run.
        quarantine: Rows that are never read: sorted int64[n].
        stall_after: Seconds of waiting for a batch after which to log what it waits for. None: never.
        abort_after: Seconds of waiting for a batch after which to raise. None: never.
        streams: How streams are read. None: there are none.
        remote: Executor whose workers read. None: workers of this machine.
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
    masking: MaskErrors | None = None
    quarantine: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    stall_after: float | None = None
    abort_after: float | None = None
    streams: StreamOptions | None = None
    remote: Engine | None = None

    @property
    def readers(self) -> int:
        """Number of copies of the reader, each with its own caches: one per worker process."""
        return max(1, self.num_workers) if self.worker_type == "process" else 1

    @property
    def masks(self) -> bool:
        """Whether rows of a batch may be masked."""
        return self.masking is not None or len(self.quarantine) > 0


def worker_counts(num_workers: int | None, worker_type: str, dataset: Dataset) -> tuple[int, int]:
    """Largest and initial number of workers for a dataset."""
    concurrent_reads = int(dataset.reader.traits.concurrent_reads)
    in_processes = choice("worker_type", worker_type, ("thread", "process")) == "process"
    if num_workers is not None:
        most = integer("num_workers", num_workers, 0)
        if in_processes:
            _warn_of_many(most)
        return most, most
    # One process per core, or two threads, since one of these may wait for a disk or for the GIL.
    cores, first = usable_cores(), 1 if in_processes else concurrent_reads
    return (min(cores, _MOST_WORKERS) if in_processes else max(min(2 * cores, _MOST_WORKERS), first)), first


def _warn_of_many(processes: int) -> None:
    """Warns of worker processes that only delay the first batch, since each starts a Python interpreter."""
    cores = usable_cores()
    if processes > max(_MOST_WORKERS, 4 * cores):
        warnings.warn(
            f"num_workers={processes} starts {processes} Python interpreters on {count_text(cores, 'core')}, which "
            f"delays the first batch by up to a minute; pass num_workers={cores}, or leave it out to autotune it",
            UserWarning,
            stacklevel=6,
        )


def remote_counts(given: Any) -> tuple[int, int]:
    """Largest and initial number of workers of `remote=` to keep busy.

    Raises:
        ArgumentError: If another argument says that others read.
        UnsupportedError: If they read for no batch.
    """
    if given.worker_type != "thread":
        raise ArgumentError(f"worker_type={given.worker_type!r}: the workers of remote= read; leave worker_type out")
    if given.keep_on_device:
        raise UnsupportedError("keep_on_device: all rows are read once, when iteration starts; leave out remote=")
    if given.num_workers is None:
        return _MOST_REMOTE, _FIRST_REMOTE
    most = integer("num_workers", given.num_workers, 0)
    if not most:
        raise ArgumentError("num_workers=0 reads on the caller's thread; leave it out, or leave out remote=")
    return most, most


def for_user_objects(options: LoaderOptions, reader: Reader) -> LoaderOptions:
    """Options that read on the caller's thread if a user's object needs it.

    Warns:
        UserWarning: If threads take turns to call an object, or only the caller's thread may.
    """
    in_threads = options.num_workers if options.worker_type != "process" else 0
    objects = list(user_objects(reader)) if in_threads else []
    bound = [item for item in objects if item.of_one_thread]
    for item in objects if in_threads > 1 else bound:
        item.warn()
    return replace(options, num_workers=0, first_workers=0) if bound else options


def loader_options(given: Any, dataset: Dataset, batch_sizes: Sequence[int]) -> LoaderOptions:
    """Validates the arguments of a `Dataloader` that are options; without masking, quarantine and streams.

    Args:
        given: Arguments, as attributes.
        dataset: Dataset, with a known spec.
        batch_sizes: All batch sizes of the run.
    """
    most, first = worker_counts(given.num_workers, given.worker_type, dataset)
    remote, keep = checked_engine(given.remote, "remote"), given.keep_on_device
    if remote is not None:
        most, first = remote_counts(given)
    return LoaderOptions(
        partition=given.partition,
        shard=shard_spec(given.shard_index, given.shard_count, batch_sizes),
        microbatches=dividing("microbatches", given.microbatches, batch_sizes),
        key_seed=None if given.key_seed is None else integer("key_seed", given.key_seed, most=None),
        keep_on_device=bool(keep) if isinstance(keep, bool | None) else integer("keep_on_device", keep, 1),
        num_workers=most,
        first_workers=first,
        worker_type=given.worker_type if remote is None else "remote",
        remote=remote,
        prefetch=integer("prefetch", given.prefetch, 0),
        prefetch_bytes=integer("prefetch_bytes", given.prefetch_bytes, 1),
        cache_bytes=None if given.cache_bytes is None else integer("cache_bytes", given.cache_bytes, 0),
        stall_after=seconds("stall_after", given.stall_after),
        abort_after=seconds("abort_after", given.abort_after),
    )


def host_leaf_names(host_leaves: Any, example: Tree, options: LoaderOptions) -> tuple[str, ...]:
    """Validates `host_leaves` for examples of this spec.

    Raises:
        ArgumentError: If an example has no such leaf or subtree, or one is a part of another.
    """
    given = f"host_leaves={shown(host_leaves)}"
    if not isinstance(host_leaves, str | Sequence):
        raise ArgumentError(f"{given}: pass a name, or a list of names")
    names = (host_leaves,) if isinstance(host_leaves, str) else tuple(dict.fromkeys(host_leaves))
    places: dict[Path, str] = {}
    for name in names:
        if not isinstance(example, dict):
            raise ArgumentError(
                f"{given}: host leaves have names, and an example is {shown(example)}; make examples dicts in a map"
            )
        if not isinstance(name, str):
            raise ArgumentError(f"{given}: pass a name, or a list of names")
        place = path_of(example, name)
        if place is None:
            raise ArgumentError(f"{given}: {unknown_leaf(name, flatten_spec(example)[1].names)}")
        places[place] = name
    for place, name in places.items():
        for around in (places[place[:depth]] for depth in range(1, len(place)) if place[:depth] in places):
            raise ArgumentError(f"{given}: {name!r} is a part of {around!r}; leave out one of the two")
    both = sorted(set(names) & set(options.partition)) if isinstance(options.partition, dict) else []
    if both:
        raise ArgumentError(
            f"partition names {both}, which {given} keeps on the host; leave them out of one of the two"
        )
    if names and options.keep_on_device:
        raise ArgumentError(f"{given}: with keep_on_device no rows are read for a batch; leave out keep_on_device")
    return names


def seconds(name: str, value: Any) -> float | None:
    """Validates a time limit in seconds, or None."""
    remedy = "a number of seconds above 0, or None"
    checked = None if value is None else number(name, value, remedy)
    if checked is not None and checked <= 0:
        raise ArgumentError(f"{name}={shown(value)}: pass {remedy}")
    return checked


def dividing(name: str, value: Any, batch_sizes: Sequence[int]) -> int:
    """Validates a number of parts that batches are split into."""
    count = integer(name, value, 1)
    for size in (size for size in batch_sizes if size % count):
        raise ArgumentError(f"batch_size={size} can't be split into {name}={count} parts; use a multiple of {count}")
    return count


def shard_spec(index: int | None, count: int | None, batch_sizes: Sequence[int]) -> ShardSpec | None:
    """Validates `shard_index` and `shard_count`; None if neither is given."""
    if index is None and count is None:
        return None
    if index is None or count is None:
        raise ArgumentError(f"shard_index={index} and shard_count={count}: pass both, or neither")
    count = dividing("shard_count", count, batch_sizes)
    return ShardSpec(integer("shard_index", index, 0, count - 1), count)


def schedule(name: str, value: Any) -> Schedule[int]:
    """Converts an int, or a dict of ints by step, to a schedule.

    Raises:
        ArgumentError: If the steps don't start at 0 and ascend, or a value is not an int.
    """
    if not isinstance(value, Mapping):
        return ((0, integer(name, value)),)
    steps = [integer(f"a step of {name}", step) for step in value]
    if not steps or steps[0] != 0 or steps != sorted(set(steps)):
        raise ArgumentError(f"{name}={dict(value)!r}: a schedule ascends from step 0 on, like {{0: 256, 10_000: 1024}}")
    return tuple((step, integer(f"{name}[{step}]", given)) for step, given in zip(steps, value.values(), strict=True))


def seq_lens(value: Any) -> Schedule[SeqLens]:
    """Converts `seq_len` to a schedule of lengths by leaf; the name "" is for leaves that were not named.

    Raises:
        ArgumentError: As `schedule`, or if the keys are neither steps nor names.
    """
    if not isinstance(value, Mapping) or not any(isinstance(key, str) for key in value):
        return tuple((step, (("", length),)) for step, length in schedule("seq_len", value))
    if not all(isinstance(key, str) and key for key in value):
        raise ArgumentError(f"seq_len={dict(value)!r}: pass lengths by step, {{0: 512}}, or by leaf, {{'tokens': 512}}")
    by_name = {name: schedule(f"seq_len[{name!r}]", lengths) for name, lengths in value.items()}
    steps = sorted({step for lengths in by_name.values() for step, _ in lengths})
    return tuple((step, tuple((name, value_at(lengths, step)) for name, lengths in by_name.items())) for step in steps)


def value_at(scheduled: Schedule[_Value], step: int) -> _Value:
    """Value of a schedule at a step."""
    return next(value for first, value in reversed(scheduled) if first <= step)


def together(one: Schedule[int], other: Schedule[Any]) -> Schedule[int]:
    """The values of `one`, split at the steps of both schedules."""
    return tuple((step, value_at(one, step)) for step in sorted({step for step, _ in (*one, *other)}))


def with_streams(
    options: LoaderOptions, dataset: Dataset, num_epochs: int | None, remainder: Remainder, smallest: int
) -> LoaderOptions:
    """Adds how the streams of a dataset are read, in batches of at least `smallest` rows.

    Raises:
        ArgumentError: If a batch does not show whether all lanes have ended, and the remainder depends on it.
        UnsupportedError: If an option needs random access.
    """
    if options.worker_type == "process" and options.num_workers:
        raise UnsupportedError(
            "worker_type='process': the lanes of a stream are open in this process, and no other one can read them; "
            "leave it out, and do slow work in maps that release the GIL, or in processes that open_lane starts"
        )
    if options.remote is not None:
        raise UnsupportedError(
            "remote=: the lanes of a stream are open in this process, and workers elsewhere can't read them; leave it "
            "out, and do slow work in processes that open_lane starts"
        )
    if options.keep_on_device:
        raise UnsupportedError("keep_on_device: a stream has no fixed number of rows; leave it out")
    choice("remainder", remainder, get_args(Remainder))
    if num_epochs is not None and num_epochs < 1:
        raise ArgumentError(f"num_epochs={num_epochs}: pass 1 or more, or None for endless epochs")
    endless = num_epochs is None or any(
        isinstance(order, Mixed) and order.stop == "never" for order in depth_first(dataset.order)
    )
    lanes = dataset.order.lanes if isinstance(dataset.order, StreamOrder) else 0
    if not endless and remainder != "drop" and lanes > smallest:
        call = next(stream.origin.call for _, stream in streams_in(dataset.source)).replace("…", str(smallest))
        raise ArgumentError(
            f"remainder={remainder!r}: a batch of {smallest} rows has none of some of the {lanes} lanes, so it "
            "does not tell whether all lanes have ended; pass remainder='drop', a batch_size of at least the number "
            f"of lanes, or fewer lanes: {call}"
        )
    return replace(options, streams=StreamOptions(None if endless else num_epochs, remainder))


def mesh_of(partition: Any) -> Mesh | None:
    """Mesh of the first `NamedSharding` in `partition`, if there is one."""
    meshes = (leaf.mesh for leaf in flatten(partition)[0] if isinstance(leaf, NamedSharding))
    return next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)
