"""LoaderOptions: options of a `Dataloader`, validated once and passed on as a whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

import numpy as np
from jax.sharding import Mesh, NamedSharding

from loadax.core.arguments import integer, number, shown
from loadax.core.leaf_names import Path, path_of, unknown_leaf
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.core.user_object import user_objects
from loadax.errors import ArgumentError
from loadax.loader.assembly.host_shard import ShardSpec
from loadax.plan.batches import Remainder
from loadax.protocols import Engine, Integers, Tree, Visits
from loadax.reader import Reader

if TYPE_CHECKING:
    from loadax.loader.mask_errors import MaskErrors


_Value = TypeVar("_Value")
# Sequence length of batches by the name of a leaf.
SeqLens = tuple[tuple[str, int], ...]
# `(first step, value)` pairs; each value applies until the next one starts.
Schedule = tuple[tuple[int, _Value], ...]


class StreamOptions(NamedTuple):
    """How a run reads its streams.

    Args:
        epochs: Number of times that each lane is read. None: endless.
        remainder: What happens to the rows of longer lanes, see `Dataloader`.
    """

    epochs: int | None
    remainder: Remainder


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
    masking: "MaskErrors | None" = None
    quarantine: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    stall_after: float | None = None
    abort_after: float | None = None
    streams: StreamOptions | None = None
    remote: Engine | None = None

    @property
    def readers(self) -> int:
        """Number of copies of the reader, each with its own caches: one per worker process."""
        if self.worker_type == "process":
            return max(1, self.num_workers)
        return 1

    @property
    def masks(self) -> bool:
        """Whether rows of a batch may be masked."""
        return self.masking is not None or len(self.quarantine) > 0


def without(visits: Visits, quarantine: Integers) -> Visits:
    """The visits with padding in place of quarantined rows (sorted int64[n]), at a cost that hardly grows with n."""
    if not len(quarantine):
        return visits
    following = np.take(
        quarantine, np.searchsorted(quarantine, visits.rows), mode="clip"
    )
    return visits._replace(rows=np.where(following == visits.rows, -1, visits.rows))


def for_user_objects(options: LoaderOptions, reader: Reader) -> LoaderOptions:
    """Options that read on the caller's thread if a user's object needs it.

    Warns:
        UserWarning: If threads take turns to call an object, or only the caller's thread may.
    """
    if options.worker_type != "process":
        in_threads = options.num_workers
    else:
        in_threads = 0
    if in_threads:
        objects = list(user_objects(reader))
    else:
        objects = []
    bound = [item for item in objects if item.of_one_thread]
    for item in objects if in_threads > 1 else bound:
        item.warn()
    if bound:
        return replace(options, num_workers=0, first_workers=0)
    return options


def host_leaf_names(
    host_leaves: Any, example: Tree, options: LoaderOptions
) -> tuple[str, ...]:
    """Validates `host_leaves` for examples of this spec.

    Raises:
        ArgumentError: If an example has no such leaf or subtree, or one is a part of another.
    """
    given = f"host_leaves={shown(host_leaves)}"
    if not isinstance(host_leaves, str | Sequence):
        raise ArgumentError(f"{given}: pass a name, or a list of names")
    if isinstance(host_leaves, str):
        names = (host_leaves,)
    else:
        names = tuple(dict.fromkeys(host_leaves))
    places: dict[Path, str] = {}
    for name in names:
        if not isinstance(example, dict):
            raise ArgumentError(
                f"{given}: host leaves have names, and an example is "
                f"{shown(example)}; make examples dicts in a map"
            )
        if not isinstance(name, str):
            raise ArgumentError(f"{given}: pass a name, or a list of names")
        place = path_of(example, name)
        if place is None:
            raise ArgumentError(
                f"{given}: {unknown_leaf(name, flatten_spec(example)[1].names)}"
            )
        places[place] = name
    for place, name in places.items():
        for around in (
            places[place[:depth]]
            for depth in range(1, len(place))
            if place[:depth] in places
        ):
            raise ArgumentError(
                f"{given}: {name!r} is a part of {around!r}; leave out one of the two"
            )
    if isinstance(options.partition, dict):
        both = sorted(set(names) & set(options.partition))
    else:
        both = []
    if both:
        raise ArgumentError(
            f"partition names {both}, which {given} keeps on the host; leave them "
            "out of one of the two"
        )
    if names and options.keep_on_device:
        raise ArgumentError(
            f"{given}: with keep_on_device no rows are read for a batch; leave out "
            "keep_on_device"
        )
    return names


def seconds(name: str, value: Any) -> float | None:
    """Validates a time limit in seconds, or None."""
    remedy = "a number of seconds above 0, or None"
    if value is None:
        checked = None
    else:
        checked = number(name, value, remedy)
    if checked is not None and checked <= 0:
        raise ArgumentError(f"{name}={shown(value)}: pass {remedy}")
    return checked


def dividing(name: str, value: Any, batch_sizes: Sequence[int]) -> int:
    """Validates a number of parts that batches are split into."""
    count = integer(name, value, 1)
    for size in (size for size in batch_sizes if size % count):
        raise ArgumentError(
            f"batch_size={size} can't be split into {name}={count} equal parts; use a "
            f"multiple of {count}"
        )
    return count


def shard_spec(
    index: int | None, count: int | None, batch_sizes: Sequence[int]
) -> ShardSpec | None:
    """Validates `shard_index` and `shard_count`; None if neither is given."""
    if index is None and count is None:
        return None
    if index is None or count is None:
        raise ArgumentError(
            f"shard_index={index} and shard_count={count}: pass both, or neither"
        )
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
        raise ArgumentError(
            f"{name}={dict(value)!r}: a schedule ascends from step 0 on, like {{0: "
            "256, 10_000: 1024}"
        )
    return tuple(
        (step, integer(f"{name}[{step}]", given))
        for step, given in zip(steps, value.values(), strict=True)
    )


def seq_lens(value: Any) -> Schedule[SeqLens]:
    """Converts `seq_len` to a schedule of lengths by leaf; the name "" is for leaves that were not named.

    Raises:
        ArgumentError: As `schedule`, or if the keys are neither steps nor names.
    """
    if not isinstance(value, Mapping) or not any(
        isinstance(key, str) for key in value
    ):
        return tuple(
            (step, (("", length),)) for step, length in schedule("seq_len", value)
        )
    if not all(isinstance(key, str) and key for key in value):
        raise ArgumentError(
            f"seq_len={dict(value)!r}: pass lengths by step, {{0: 512}}, or by leaf, "
            "{'tokens': 512}"
        )
    by_name = {
        name: schedule(f"seq_len[{name!r}]", lengths)
        for name, lengths in value.items()
    }
    steps = sorted({step for lengths in by_name.values() for step, _ in lengths})
    return tuple(
        (
            step,
            tuple(
                (name, value_at(lengths, step)) for name, lengths in by_name.items()
            ),
        )
        for step in steps
    )


def value_at(scheduled: Schedule[_Value], step: int) -> _Value:
    """Value of a schedule at a step."""
    if len(scheduled) == 1:
        return scheduled[0][1]
    return next(value for first, value in reversed(scheduled) if first <= step)


def together(one: Schedule[int], other: Schedule[Any]) -> Schedule[int]:
    """The values of `one`, split at the steps of both schedules."""
    return tuple(
        (step, value_at(one, step))
        for step in sorted({step for step, _ in (*one, *other)})
    )


def mesh_of(partition: Any) -> Mesh | None:
    """Mesh of the first `NamedSharding` in `partition`, if there is one."""
    meshes = (
        leaf.mesh for leaf in flatten(partition)[0] if isinstance(leaf, NamedSharding)
    )
    return next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)
