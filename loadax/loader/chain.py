"""`chain`: loaders one after the other, as one."""

# ruff: noqa: SLF001 - a chain works with the parts of its loaders

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from loadax.core.arguments import entries, integer, shown
from loadax.core.formatting import type_text
from loadax.core.log import log
from loadax.core.replacements import missing_attribute
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, StreamError
from loadax.io import as_dataset
from loadax.loader.dataloader import Dataloader, refuse_next, restored
from loadax.loader.epoch import Epoch
from loadax.loader.host_rows import HostRows
from loadax.loader.inspection.trace import Trace
from loadax.loader.iterations import Iterations
from loadax.loader.iterator import DataIterator
from loadax.loader.lease import Lease
from loadax.loader.phases import Phases
from loadax.loader.stretch import Ledger, Target
from loadax.plan.find import StepPosition
from loadax.plan.skips import step_ranges
from loadax.protocols import Integers, Tree
from loadax.reader import DISTINCT, draws_by_default


def chain(loaders: Sequence[Any], version: int = DISTINCT) -> "LoaderChain":
    """Chains loaders: all steps of the first one, then those of the next.

    For longer sequences later at a constant number of tokens, for a curriculum, or for a change of data. Each loader is
    a phase of the run, with its own data, batch size, partition and number of epochs; there is one `len` and one state.
    The next phase is read ahead before the present one ends.

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
        >>> run.first_steps, len(run)
        ((0, 2), 6)
    """
    flat: list[Dataloader] = []
    for index, loader in enumerate(entries("loaders", loaders, "Dataloaders")):
        if not isinstance(loader, Dataloader | LoaderChain):
            raise ArgumentError(
                f"loaders[{index}] is {type_text(loader)}; pass Dataloaders, or "
                "concat() the datasets"
            )
        flat += [loader] if isinstance(loader, Dataloader) else loader.loaders
    if not flat:
        raise ArgumentError("chain() got no loaders; pass at least one")
    shards = [loader._pipeline.options.shard for loader in flat]
    for index, loader in enumerate(flat):
        if loader.dataset.is_stream:
            raise StreamError(
                "chain()",
                "chain the other loaders, and iterate over the loader of the stream "
                "by itself",
            )
        if loader._plan.num_steps is None and index + 1 < len(flat):
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
    return LoaderChain(tuple(flat if version == 1 else _drawing_apart(flat)))


def _drawing_apart(loaders: Sequence[Dataloader]) -> list[Dataloader]:
    """The loaders, whose maps without a given seed draw other random numbers in each phase."""
    drawing = [
        phase
        for phase, loader in enumerate(loaders)
        if draws_by_default(loader.dataset.reader)
    ]
    return [
        _of_phase(loader, phase) if phase in drawing[1:] else loader
        for phase, loader in enumerate(loaders)
    ]


def _of_phase(loader: Dataloader, phase: int) -> Dataloader:
    """The same loader, but maps without a given seed draw the numbers of a phase."""
    dataset = as_dataset(loader._arguments.data)
    reader = dataset.reader.with_streams(lambda stream: replace(stream, phase=phase))
    arguments = loader._arguments._replace(
        data=Dataset(reader.source, dataset.order, reader.maps)
    )
    made = restored(arguments, loader._plan.skips)
    made._made_in = loader._made_in
    return made


def _warn_of_repetition(loaders: Sequence[Dataloader]) -> None:
    """Logs if two phases have the same random keys, or the same random order of the same rows."""
    keys = dict[int, int]()
    orders = list[tuple[int, Dataset]]()
    for phase, loader in enumerate(loaders):
        key_seed = loader._pipeline.options.key_seed
        dataset = loader.dataset
        if key_seed is not None and keys.setdefault(key_seed, phase) != phase:
            log.warning(
                "chain: loaders[%d] has key_seed=%d, as loaders[%d], so rows get "
                "equal keys in both; pass another one, such as key_seed=%d",
                *(phase, key_seed, keys[key_seed], max(*keys, key_seed) + 1),
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
            orders.append((phase, dataset))
        else:
            log.warning(
                "chain: loaders[%d] reads the rows of loaders[%d] in the same random "
                "order; pass another seed to shuffle() in one of them, such as "
                "shuffle(seed=1)",
                *(phase, first),
            )


@final
class LoaderChain:
    """Loaders one after the other as one, made by `loadax.chain`, with the members of a `Dataloader`.

    Steps and epochs count over all phases, while a map `with_epoch=True` gets the epoch of its loader, from 0 in each
    phase; `it.phase` is the index of the next batch's loader. A state holds one state for each phase that has begun:
    these must match where it is restored, while later ones may change, and loaders may be added at the end. In the
    first phase, it is the state of that loader alone.

    Attributes:
        loaders: The loader of each phase, for what is not here: `chain.loaders[1].dataset`, ….
    """

    def __init__(self, loaders: tuple[Dataloader, ...]):
        self.loaders = loaders
        self._phases = Phases([(loader._plan, loader._order) for loader in loaders])
        self._iterations = Iterations(
            self._phases, [loader._pipeline for loader in loaders]
        )

    def __reduce__(self) -> Any:
        return LoaderChain, (self.loaders,)

    def __bool__(self) -> bool:
        """True even without a length, as of a `Dataloader`."""
        return True

    # type checkers must still report misspelt names, and `next(loader)`
    if not TYPE_CHECKING:
        __getattr__ = missing_attribute
        __next__ = refuse_next

    def __len__(self) -> int:
        """Number of steps of all phases together.

        Raises:
            TypeError: If the last loader is infinite.
        """
        return self.first_steps[-1] + len(self.loaders[-1])

    @property
    def first_steps(self) -> tuple[int, ...]:
        """First step of each phase."""
        return self._phases.first_steps

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of the first epoch of the first loader."""
        return self.loaders[0].steps_per_epoch

    @property
    def batch_size(self) -> int:
        """Rows of the first global batch."""
        return self.loaders[0].batch_size

    @property
    def spec(self) -> Tree:
        """The first batch as a pytree of `jax.ShapeDtypeStruct`, see `Dataloader.spec`."""
        return self.loaders[0].spec

    @property
    def specs(self) -> dict[int, Tree]:
        """The specs of all batch shapes of the run, by the first step of each in each phase."""
        firsts = zip(self.first_steps, self.loaders, strict=True)
        return {
            first + step: spec
            for first, loader in firsts
            for step, spec in loader.specs.items()
        }

    def _of(self, step: Any, function: Callable[[Dataloader, int], Any]) -> Any:
        """Calls `function(loader, local_step)` for the loader that serves `step`."""
        phase, local = self._phases.check(integer("step", step, most=None))
        return function(self.loaders[phase], local)

    def __getitem__(self, step: int) -> Tree:
        """The placed global batch of a step, identical to the one that iteration yields."""
        return self._of(step, Dataloader.__getitem__)

    def rows(self, step: int) -> Integers:
        """Row ids of a step in the dataset of its loader, see `Dataloader.rows`."""
        return self._of(step, Dataloader.rows)

    def local_rows(self, step: int) -> Integers:
        """Row ids that this process reads for the step, see `Dataloader.local_rows`."""
        return self._of(step, Dataloader.local_rows)

    def host_batch(self, step: int) -> Tree:
        """The rows of `local_rows(step)` as NumPy arrays, see `Dataloader.host_batch`."""
        return self._of(step, Dataloader.host_batch)

    def host(self, step: int) -> HostRows:
        """Reads the host leaves of a step, see `Dataloader.host`."""
        return replace(self._of(step, Dataloader.host), step=int(step))

    def trace(self, step: int, positions: Any = None) -> Trace:
        """The origin of a step's records, see `Dataloader.trace`."""
        return replace(
            self._of(step, lambda loader, local: loader.trace(local, positions)),
            step=int(step),
        )

    def find(
        self, row: int, dataset: str | None = None, *, phase: int, **search: Any
    ) -> list[StepPosition]:
        """Finds the steps and batch positions at which a phase reads a record.

        Args:
            row: Row id as in `rows`, or a row of the part named by `dataset`.
            dataset: Name of a part of a mixture or concatenation.
            phase: Index of the loader, since row ids are those of its dataset.
            search: `epochs=` or `steps=` of `Dataloader.find`, counted in that phase.
        """
        found = self.loaders[integer("phase", phase, 0, self._phases.last)].find(
            row, dataset, **search
        )
        return [
            StepPosition(self.first_steps[phase] + step, position)
            for step, position in found
        ]

    def __iter__(self) -> DataIterator:
        return self._iterations.iterate(self._targets(), loop="iter(loader)")

    def iterate(self, start: Any = 0) -> DataIterator:
        """Makes an iterator that starts at a step or a saved state.

        Args:
            start: Step, or a state of `get_state()` from a run on any mesh and any number of hosts: of a chain whose
                loaders up to the present phase are these, or of an iterator of the first loader. None: step 0.

        Raises:
            StateError: If a phase that has begun differs; names it, and the field.
        """
        return self._iterations.iterate(self._targets(), start)

    def warmup(self, start: Any = 0) -> None:
        """Starts reading ahead in the background, see `Dataloader.warmup`.

        Args:
            start: As for `iterate`.

        Raises:
            StateError: As for `iterate`.
        """
        self._iterations.warmup(self._targets(), start)

    @property
    def ledger(self) -> Ledger | None:
        """Counters of the latest iterator, for monitoring from outside. None: there was none."""
        return self._iterations.ledger

    def _targets(self) -> list[Target]:
        return [loader._target(loader._placing_mesh()) for loader in self.loaders]

    def host_batches(self, start: Any = 0) -> DataIterator:
        """Iterates over `host_batch(step)`, read ahead, see `Dataloader.host_batches`."""
        return self._iterations.iterate(
            [loader._host_target() for loader in self.loaders], start
        )

    def lease(self, start: Any = 0) -> Lease:
        """Hands out rows that may be finished in any order: those of the first loader, then those of the next.

        Positions count on from one loader to the next, so none occurs twice. Rows of several loaders may be in flight.

        Args:
            start: As for `Dataloader.lease`: a state of `lease.get_state()`, or a list of those of all processes; also
                a step, or a state of an iterator. States of a lease over the first loader are taken too.

        Raises:
            ArgumentError: If the batch size of a loader is scheduled.
            StateError: If a loader that has begun differs, or the state of a process is missing.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, chain
            >>> run = chain([Dataloader(np.arange(6), 4), Dataloader(np.arange(10, 14), 2)])
            >>> with run.lease() as lease:
            ...     first, second, third = next(lease), next(lease), next(lease)
            ...     lease.ack([first.positions, third.positions])
            ...     state = lease.get_state()
            >>> third.positions.tolist()
            [6, 7]
            >>> with run.lease(state) as lease:
            ...     [leased.examples.tolist() for leased in lease]
            [[4, 5], [12, 13]]
        """
        return Lease(
            [loader._leased() for loader in self.loaders], self._phases, start
        )

    def skip(self, steps: Any) -> "LoaderChain":
        """A chain of the same run without some steps, see `Dataloader.skip`.

        Args:
            steps: Steps of this chain: an int, a range, a slice, or any iterable of these.

        Raises:
            ArgumentError: If the run does not have these steps, or none of a loader would remain.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, chain
            >>> run = chain([Dataloader(np.arange(6), 2), Dataloader(np.arange(10, 18), 4)])
            >>> shorter = run.skip([0, 3])
            >>> [shorter.rows(step).tolist() for step in range(len(shorter))]
            [[2, 3], [4, 5], [4, 5, 6, 7]]
        """
        skipped: list[list[range]] = [[] for _ in self.loaders]
        for low, high in step_ranges(steps, self._phases.num_steps):
            for phase, local_steps in self._phases.ranges(low, high):
                skipped[phase].append(local_steps)
        loaders = []
        for phase, (loader, local) in enumerate(
            zip(self.loaders, skipped, strict=True)
        ):
            try:
                loaders.append(loader.skip(local) if local else loader)
            except ArgumentError as error:
                raise ArgumentError(
                    f"steps={shown(steps)} skips all steps of loaders[{phase}]; keep "
                    "at least one of each loader, or chain() the others without it"
                ) from error
        return LoaderChain(tuple(loaders))

    def epochs(self, start: Any = None) -> Iterator[Epoch]:
        """Yields one sized iterator per epoch: those of the first loader, then those of the next.

        Args:
            start: Step or state to start from, see `Dataloader.epochs`.
        """
        yield from self._iterations.epochs(self._targets(), start)

    def digest(self, steps: range | None = None) -> str:
        """Hash of the rows at each step and position, counted over all phases, see `Dataloader.digest`.

        Args:
            steps: Range of consecutive steps. None: all.

        Raises:
            ArgumentError: If the last loader is infinite and no steps are given.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader, chain
            >>> first, second = Dataloader(np.arange(8), 4), Dataloader(np.arange(8), 2)
            >>> chain([first]).digest() == first.digest(), chain([first, second]).digest() == first.digest()
            (True, False)
        """
        from loadax.loader.inspection.digest import DigestedSteps, digest_of

        digested = []
        for phase, local in self._phases.ranges_of(steps):
            loader = self.loaders[phase]
            digested.append(
                DigestedSteps(
                    loader._plan,
                    local,
                    loader._pipeline.options.quarantine,
                    self.first_steps[phase],
                )
            )
        return digest_of(digested)

    def explain(self, steps: int = 8) -> str:
        """Text: what every host of the mesh will read, hold and drop, for each phase; see `Dataloader.explain`."""
        return self._by_phase([loader.explain(steps) for loader in self.loaders])

    def check_plan(self, steps: int | None = None) -> str:
        """Simulates each phase on all hosts of its mesh, see `Dataloader.check_plan`. Text: a summary for each.

        Raises:
            ConformanceError: If a check fails. Names the step, counted in that phase, and the position.
        """
        return self._by_phase([loader.check_plan(steps) for loader in self.loaders])

    def _by_phase(self, texts: Sequence[object]) -> str:
        phases = enumerate(zip(self.first_steps, texts, strict=True))
        return "\n".join(
            f"phase {phase}, from step {first:,} on\n{text}"
            for phase, (first, text) in phases
        )

    def __repr__(self) -> str:
        return f"chain([{', '.join(map(repr, self.loaders))}])"
