"""Arguments of a `Dataloader` as they were passed, by concern, and the options that they make."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jax.sharding import Mesh

from loadax.core.arguments import choice, integer
from loadax.core.formatting import count_text
from loadax.core.warn import warn_user
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, UnsupportedError
from loadax.loader.metrics.stats import usable_cores
from loadax.loader.options import LoaderOptions, dividing, seconds, shard_spec
from loadax.loader.slots import StepsChoice
from loadax.plan.batches import Remainder
from loadax.protocols import Engine, Integers, Tree
from loadax.sharding.mesh import PlannedMesh

if TYPE_CHECKING:
    from loadax.loader.device.device_map import DeviceMap
    from loadax.loader.mask_errors import MaskErrors
    from loadax.loader.receipts.content_digests import ContentDigests

_MOST_WORKERS = 16  # default limit: more workers mostly wait for each other
# workers of `remote=`, whose number is unknown
_MOST_REMOTE = 32
_FIRST_REMOTE = 4


class StepArguments(NamedTuple):
    """Which rows are in which step, and how much of them."""

    batch_size: int | Mapping[int, int] | StepsChoice
    num_epochs: int | None
    remainder: Remainder
    balance: Any
    seq_len: int | Mapping[int, int] | Mapping[str, Any] | None


class PlaceArguments(NamedTuple):
    """Onto which devices batches are placed, and what these do with them."""

    mesh: Mesh | PlannedMesh | None
    partition: Any
    host_leaves: Sequence[str] | str
    microbatches: int
    key_seed: int | None
    device_map: "Callable[[Tree], Tree] | DeviceMap | None"
    keep_on_device: bool | int
    shard_index: int | None
    shard_count: int | None


class WorkerArguments(NamedTuple):
    """Where rows are read."""

    num_workers: int | None
    worker_type: str
    remote: Engine | None


class LimitArguments(NamedTuple):
    """How far rows are read ahead, and how long a batch is waited for."""

    prefetch: int
    prefetch_bytes: int
    cache_bytes: int | None
    stall_after: float | None
    abort_after: float | None


class ErrorArguments(NamedTuple):
    """Rows that can't be read."""

    on_error: "str | MaskErrors"
    quarantine: Any


class LoaderArguments(NamedTuple):
    """All arguments of a `Dataloader`."""

    data: Any
    steps: StepArguments
    place: PlaceArguments
    workers: WorkerArguments
    limits: LimitArguments
    errors: ErrorArguments
    contents: "str | ContentDigests | None" = "identity"


def worker_counts(given: WorkerArguments, dataset: Dataset) -> tuple[int, int]:
    """Largest and initial number of workers of this machine for a dataset."""
    concurrent_reads = int(dataset.reader.traits.concurrent_reads)
    in_processes = (
        choice("worker_type", given.worker_type, ("thread", "process")) == "process"
    )
    if given.num_workers is not None:
        most = integer("num_workers", given.num_workers, 0)
        if in_processes:
            _warn_of_many(most)
        return most, most
    # One process per core, or two threads, since one of these may wait for a disk or for the GIL.
    cores = usable_cores()
    if in_processes:
        first = 1
    else:
        first = concurrent_reads
    return (
        min(cores, _MOST_WORKERS)
        if in_processes
        else max(min(2 * cores, _MOST_WORKERS), first)
    ), first


def _warn_of_many(processes: int) -> None:
    """Warns of worker processes that only delay the first batch, since each starts a Python interpreter."""
    cores = usable_cores()
    if processes > max(_MOST_WORKERS, 4 * cores):
        warn_user(
            f"num_workers={processes} starts {processes} Python interpreters on "
            f"{count_text(cores, 'core')}, which delays the first batch by up to a "
            f"minute; pass num_workers={cores}, or leave it out to autotune it"
        )


def remote_counts(
    given: WorkerArguments, keep_on_device: bool | int
) -> tuple[int, int]:
    """Largest and initial number of workers of `remote=` to keep busy.

    Raises:
        ArgumentError: If another argument says that others read.
        UnsupportedError: If they read for no batch.
    """
    if given.worker_type != "thread":
        raise ArgumentError(
            f"worker_type={given.worker_type!r}: the workers of remote= read; leave "
            "worker_type out"
        )
    if keep_on_device:
        raise UnsupportedError(
            "keep_on_device: all rows are read once, when iteration starts; leave "
            "out remote="
        )
    if given.num_workers is None:
        return _MOST_REMOTE, _FIRST_REMOTE
    most = integer("num_workers", given.num_workers, 0)
    if not most:
        raise ArgumentError(
            "num_workers=0 reads on the caller's thread; leave it out, or leave out "
            "remote="
        )
    return most, most


def loader_options(
    place: PlaceArguments,
    workers: WorkerArguments,
    limits: LimitArguments,
    dataset: Dataset,
    batch_sizes: Sequence[int],
    masking: "MaskErrors | None",
    quarantine: Integers,
) -> LoaderOptions:
    """Validates the arguments of a `Dataloader` that are options; without streams.

    Args:
        place: Where batches are placed.
        workers: Who reads.
        limits: How far ahead.
        dataset: Dataset, with a known spec.
        batch_sizes: All batch sizes of the run.
        masking: What to do with rows that can't be read.
        quarantine: Rows that are never read.
    """
    most, first = worker_counts(workers, dataset)
    if workers.remote is not None:
        from loadax.work.executors import checked_engine

        checked_engine(workers.remote, "remote")
        most, first = remote_counts(workers, place.keep_on_device)
    keep = place.keep_on_device
    return LoaderOptions(
        partition=place.partition,
        shard=shard_spec(place.shard_index, place.shard_count, batch_sizes),
        microbatches=dividing("microbatches", place.microbatches, batch_sizes),
        key_seed=None
        if place.key_seed is None
        else integer("key_seed", place.key_seed, most=None),
        keep_on_device=bool(keep)
        if isinstance(keep, bool | None)
        else integer("keep_on_device", keep, 1),
        num_workers=most,
        first_workers=first,
        worker_type=workers.worker_type if workers.remote is None else "remote",
        remote=workers.remote,
        prefetch=integer("prefetch", limits.prefetch, 0),
        prefetch_bytes=integer("prefetch_bytes", limits.prefetch_bytes, 1),
        cache_bytes=None
        if limits.cache_bytes is None
        else integer("cache_bytes", limits.cache_bytes, 0),
        masking=masking,
        quarantine=quarantine,
        stall_after=seconds("stall_after", limits.stall_after),
        abort_after=seconds("abort_after", limits.abort_after),
    )
