"""Several datasets as one, in one id space of rows."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import LeafError
from loadax.protocols import Columns, Integers, Source, Tree, Visits, Wrap
from loadax.sources.checks import check_rows, chunk_starts
from loadax.specs import flatten_spec
from loadax.trees import flatten


class Part(Protocol):
    """Data that is read by visits, so that its maps know the epoch."""

    @property
    def spec(self) -> Tree: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def concurrent_reads(self) -> int: ...

    @property
    def probed(self) -> int: ...

    @property
    def read_into(self) -> Callable[..., None] | None:
        """As a source's, when no map stands between."""
        ...

    @property
    def random(self) -> bool: ...

    @property
    def depth(self) -> int: ...

    @property
    def source(self) -> Source: ...

    def describe(self) -> list[Any]: ...

    def over(self, wrap: Wrap) -> "Part": ...

    def read_visits(self, visits: Visits) -> Tree: ...


@final
class ConcatenatedSource:
    """The rows of each part, one part behind the other.

    Args:
        parts: in the order of their rows.
        verb: what joined them, for messages.
        names: of the parts, if they have any.

    Raises:
        LeafError: when the parts' element specs differ; names the part and the leaf.
    """

    fresh = True  # what `read` gives is nobody else's memory

    def __init__(self, parts: Sequence[Part], verb: str = "concat", names: Sequence[str] | None = None):
        self._parts = tuple(parts)
        self._verb, self._names = verb, names
        self._ends = np.cumsum([part.num_rows for part in self._parts])
        # Only when every part can: a source says by having it that it reads columns.
        self.read_into = self._read_into if all(part.read_into is not None for part in self._parts) else None
        self.concurrent_reads = max(part.concurrent_reads for part in self._parts)
        # Of the parts' maps, for those that follow: their streams and the saved state depend on what comes before them.
        self.maps_random = any(part.random for part in self._parts)
        self.maps_depth = max(part.depth for part in self._parts)
        self.maps_described = [["concat", [part.describe() for part in self._parts]]] if self.maps_depth else []
        self.spec = self._parts[0].spec
        self.probed = sum(part.probed for part in self._parts)
        specs, self._structure = flatten_spec(self.spec)
        for number, part in enumerate(self._parts[1:], 1):
            others, structure = flatten_spec(part.spec)
            if difference := self._structure.static_difference(structure):
                raise LeafError(
                    f"{verb}: in {self._called(number)} {difference} as in {self._called(0)}; map them to one value first"
                )
            if structure != self._structure:
                raise LeafError(
                    f"{verb}: {self._called(number)} has the leaves {structure.paths}, {self._called(0)} has {self._structure.paths}"
                )
            for path, one, other in zip(structure.paths, specs, others, strict=True):
                if one != other:
                    raise LeafError(
                        f"{verb}: leaf {path or 'of the example'} is {other.dtype}{list(other.shape)} in {self._called(number)} and "
                        f"{one.dtype}{list(one.shape)} in {self._called(0)}; map them to one shape and dtype first"
                    )

    def _called(self, number: int) -> str:
        return f"part {number}" if self._names is None else f"dataset {self._names[number]!r}"

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return f"{'concatenation' if self._names is None else 'mixture'} of {len(self._parts)}"

    @property
    def sources(self) -> list[Source]:
        """What each part reads from."""
        return [part.source for part in self._parts]

    @property
    def spans(self) -> list[tuple[str, Source, int]]:
        """What each part is called, what it reads from, and the number here of the first row of that."""
        begins = self._ends - [part.num_rows for part in self._parts]
        names = self._names or [f"part {number}" for number in range(len(self._parts))]
        return list(zip(names, self.sources, begins.tolist(), strict=True))

    @property
    def chunks(self) -> Integers | None:
        """As those of all parts, when every one has some and is read as it is."""
        starts = [chunk_starts(source) for source in self.sources]
        if self.maps_depth or any(each is None for each in starts):
            return None
        begins = self._ends - [part.num_rows for part in self._parts]
        return np.concatenate([np.asarray(each, np.int64) + begin for each, begin in zip(starts, begins, strict=True)])

    def over(self, wrap: Wrap) -> "ConcatenatedSource":
        """The same parts, each over `wrap` of what it reads from."""
        return ConcatenatedSource([part.over(wrap) for part in self._parts], self._verb, self._names)

    def read(self, rows: Integers) -> Tree:
        """The examples at `rows`, as epoch 0 meets them."""
        rows = check_rows(rows, len(self))
        return self.read_visits(Visits(rows, np.zeros_like(rows)))

    def read_visits(self, visits: Visits) -> Tree:
        """The examples at `visits.rows`, each with its own epoch; one read per part that is met."""
        owner = np.searchsorted(self._ends, visits.rows, side="right")
        met = np.unique(owner)
        if len(met) == 1:
            return self._read_part(int(met[0]), visits)
        specs, _ = flatten_spec(self.spec)
        out = [np.empty((len(visits.rows), *spec.shape), spec.dtype) for spec in specs]
        for number in met:
            mine = np.flatnonzero(owner == number)
            batch = self._read_part(int(number), Visits(visits.rows[mine], visits.epochs[mine]))
            for destination, leaf in zip(out, flatten(batch)[0], strict=True):
                destination[mine] = leaf
        return self._structure.build(out)

    def _read_into(self, rows: Integers, boxes: list[Columns | None], out: list[NDArray[Any] | None]) -> None:
        """The rows at `rows`, only the columns of `boxes`, into `out`; see `Source`."""
        rows = check_rows(rows, len(self))
        owner = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owner):
            part = self._parts[number]
            assert part.read_into is not None
            mine = np.flatnonzero(owner == number)
            inner = rows[mine] - (int(self._ends[number]) - part.num_rows)
            if len(mine) == len(rows):
                part.read_into(inner, boxes, out)
                continue
            scratch = [None if each is None else np.empty((len(mine), *each.shape[1:]), each.dtype) for each in out]
            part.read_into(inner, boxes, scratch)
            for destination, values in zip(out, scratch, strict=True):
                if destination is not None:
                    destination[mine] = values

    def _read_part(self, number: int, visits: Visits) -> Tree:
        part = self._parts[number]
        return part.read_visits(Visits(visits.rows - (int(self._ends[number]) - part.num_rows), visits.epochs))
