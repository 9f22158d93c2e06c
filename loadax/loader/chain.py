"""`chain`: loaders one after the other, as one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadax.core.arguments import entries, integer
from loadax.core.formatting import type_text
from loadax.core.log import log
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, StreamError
from loadax.io import as_dataset
from loadax.loader.dataloader import Dataloader, loader_of
from loadax.loader.phase import Phase, make_phase
from loadax.reader import DISTINCT, draws_by_default


def chain(loaders: Sequence[Any], version: int = DISTINCT) -> Dataloader:
    """Chains loaders: all steps of the first one, then those of the next.

    For longer sequences later at a constant number of tokens, for a curriculum, or for a change of data. Each loader is
    a phase of the run, with its own data, batch size, partition and number of epochs; there is one `len` and one state.
    The next phase is read ahead before the present one ends.

    Steps and epochs count over all phases, while a map `with_epoch=True` gets the epoch of its loader, from 0 in each
    phase; `it.phase` is the index of the next batch's loader. `run.first_steps` has the first step of each phase,
    `run.loaders` a loader of each by itself; `batch_size`, `spec`, `steps_per_epoch` and `dataset` are those of the
    first. A state holds one state for each phase that has begun: these must match where it is restored, while later
    ones may change, and loaders may be added at the end. In the first phase, it is the state of that loader alone.

    Args:
        loaders: `Dataloader`s, or chains of them, which are flattened. Only the last one may be infinite.
        version: 1, for a run that began with it: random maps of different phases that were given no seed draw equal
            numbers, as before there was version 2.

    Raises:
        ArgumentError: If there are none, an entry is something else, one before the last is infinite, or they differ in
            `shard_index` or `shard_count`.
        StreamError: If the dataset of one is a stream.

    It is logged if two phases have the same `key_seed`, or the same shuffle of the same data.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, chain
        >>> tokens = np.arange(64 * 32).reshape(64, 32)
        >>> short = Dataloader(tokens, batch_size=32, seq_len=16)
        >>> run = chain([short, Dataloader(tokens, batch_size=16)])
        >>> [batch.shape for batch in run]
        [(32, 16), (32, 16), (16, 32), (16, 32), (16, 32), (16, 32)]
        >>> run.first_steps, len(run), len(run.skip([0, 3]))
        ((0, 2), 6, 4)
    """
    flat: list[Phase] = []
    for index, loader in enumerate(entries("loaders", loaders, "Dataloaders")):
        if not isinstance(loader, Dataloader):
            raise ArgumentError(
                f"loaders[{index}] is {type_text(loader)}; pass Dataloaders, or "
                "concat() the datasets"
            )
        flat += loader.phases
    if not flat:
        raise ArgumentError("chain() got no loaders; pass at least one")
    shards = [phase.pipeline.options.shard for phase in flat]
    for index, phase in enumerate(flat):
        if phase.dataset.is_stream:
            raise StreamError(
                "chain()",
                "chain the other loaders, and iterate over the loader of the stream "
                "by itself",
            )
        if phase.plan.num_steps is None and index + 1 < len(flat):
            raise ArgumentError(
                f"loaders[{index}] is infinite; make it with num_epochs=, or pass it "
                "last"
            )
        if shards[index] != shards[0]:
            raise ArgumentError(
                f"loaders[{index}] has the share {shards[index]}, not {shards[0]} as "
                "loaders[0]; pass one share to all"
            )
    version = integer("version", version)
    if version not in (1, DISTINCT):
        raise ArgumentError(
            f"version={version}: pass {DISTINCT}, or 1 to go on with a run that "
            "began with it"
        )
    _warn_of_repetition(flat)
    return loader_of(flat if version == 1 else _drawing_apart(flat))


def _drawing_apart(phases: Sequence[Phase]) -> list[Phase]:
    """The phases, in each of which maps without a given seed draw other random numbers."""
    drawing = [
        number
        for number, phase in enumerate(phases)
        if draws_by_default(phase.dataset.reader)
    ]
    return [
        _drawing_as(phase, number) if number in drawing[1:] else phase
        for number, phase in enumerate(phases)
    ]


def _drawing_as(phase: Phase, number: int) -> Phase:
    """The same phase, but maps without a given seed draw the numbers of phase `number`."""
    dataset = as_dataset(phase.arguments.data)
    reader = dataset.reader.with_streams(lambda stream: replace(stream, phase=number))
    data = Dataset(reader.source, dataset.order, reader.maps)
    made = make_phase(phase.arguments._replace(data=data))
    made = made.weighted(phase.order.weights).skipping(phase.plan.skips)
    return replace(made, made_in=phase.made_in)


def _warn_of_repetition(phases: Sequence[Phase]) -> None:
    """Logs if two phases have the same random keys, or the same random order of the same rows."""
    keys = dict[int, int]()
    orders = list[tuple[int, Dataset]]()
    for number, phase in enumerate(phases):
        key_seed = phase.pipeline.options.key_seed
        dataset = phase.dataset
        if key_seed is not None and keys.setdefault(key_seed, number) != number:
            log.warning(
                "chain: loaders[%d] has key_seed=%d, as loaders[%d], so rows get "
                "equal keys in both; pass another one, such as key_seed=%d",
                *(number, key_seed, keys[key_seed], max(*keys, key_seed) + 1),
            )
        alike = (
            first
            for first, other in orders
            if dataset.source is other.source
            and dataset.order.describe() == other.order.describe()
        )
        if dataset.order.varies:
            first = next(alike, None)
        else:
            first = None
        if first is None:
            orders.append((number, dataset))
        else:
            log.warning(
                "chain: loaders[%d] reads the rows of loaders[%d] in the same random "
                "order; pass another seed to shuffle() in one of them, such as "
                "shuffle(seed=1)",
                *(number, first),
            )
