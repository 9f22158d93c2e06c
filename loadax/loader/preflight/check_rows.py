"""CheckWork: reads, maps and checks the rows of a part, as the run with `MaskErrors` would. Does not import JAX."""

import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.buffers import aligned_bytes
from loadax.core.spec import all_columns
from loadax.files.byte_ranges import joined
from loadax.loader.assembly.assembler import (
    Assembler,
    FillOptions,
    Piece,
    failure_text,
)
from loadax.loader.assembly.buffer_layout import (
    BatchBuffers,
    BufferLayout,
    ColumnTile,
)
from loadax.loader.assembly.maskable import maskable
from loadax.loader.metrics.stats import Timing
from loadax.loader.preflight.findings import (
    ABOVE,
    BELOW,
    MOST_SLOW,
    NOT_FINITE,
    Findings,
    slowest,
    table_of,
)
from loadax.loader.preflight.portion import EPOCH_BITS, Portion, chunk_numbers
from loadax.protocols import Integers, Visits
from loadax.redaction import redact
from loadax.sources.checks import chunk_starts

PIECE_ROWS = 1024
PIECE_BYTES = 4 << 20
_FIRST_PIECE = 16  # rows
_MOST_ROWS = 512  # of a piece whose rows are decoded one by one: if one fails, as many are read again
_LARGEST = 64 << 20  # bytes of a piece of one chunk
_TARGET = 16e-3  # seconds of a piece whose rows are decoded one by one
# that one with a row that fails is cut into: an error may cost more than reading all rows
_PIECES = 8
_ROW = re.compile(r"\brow (\d{1,18})\b")
_MOST_TEXTS = 100  # errors of a part that are kept whole
_MOST_CHARACTERS = 500

Bounds = tuple[float, float]


class PartOfPortion(NamedTuple):
    """Visits of a portion that are checked together.

    Args:
        portion: Index of the portion.
        low, high: Range of its visits.
    """

    portion: int
    low: int
    high: int


@final
@dataclass(frozen=True)
class CheckWork:
    """The check of all rows of a run; see `loadax.kept.pass_work.Work`.

    Args:
        portions: The rows.
        bounds: Bounds of some leaves of each portion, by their index.
        parts: What is checked together.
    """

    portions: tuple[Portion, ...]
    bounds: tuple[dict[int, Bounds], ...]
    parts: tuple[PartOfPortion, ...]
    label: str = "preflight"
    unit: str = "row"
    # by portion and source: rows of a piece of about 16 ms, as measured in this process
    piece_sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return [part.high - part.low for part in self.parts]

    def compute(self, part: int, over: threading.Event) -> dict[str, NDArray[Any]]:
        """Findings in the rows of a part."""
        number, low, high = self.parts[part]
        check = _Check(number, self, high - low)
        for source, visits in check.pieces(low, high):
            if over.is_set():
                raise CancelledError
            check.check(source, visits)
        return check.findings().arrays()


class _FailedRow(NamedTuple):
    """A row that fails, by its place in a piece."""

    place: int
    error: str


@final
class _Check:
    """Checks pieces of one portion and gathers what is found.

    Args:
        number: Index of the portion.
        work: The work that it is a part of.
        rows: Number of rows that are checked in all.
    """

    def __init__(
        self,
        number: int,
        work: CheckWork,
        rows: int,
    ):
        self._number = number
        portion = work.portions[number]
        self._portion = portion
        self._bounds = work.bounds[number]
        self._sizes = work.piece_sizes
        self._most = min(rows, max(1, _LARGEST // portion.row_bytes))
        tiles = tuple(
            ColumnTile(leaf, all_columns(leaf.spec.shape), 1, self._most, None)
            for leaf in portion.leaves
        )
        layout = BufferLayout(tiles, ())
        self._assembler = Assembler(portion.reader, FillOptions(layout, masking=True))
        memory = aligned_bytes(layout.bytes_per_step)
        self._buffers = BatchBuffers(layout, memory, 1)
        self._failed: list[tuple[int, int, int]] = []
        self._flagged: list[tuple[int, ...]] = []
        self._extremes: dict[int, tuple[float, float]] = {}
        self._slow: list[tuple[float, ...]] = []
        self._read = defaultdict[int, NDArray[np.float64]](lambda: np.zeros(7))
        self._errors: list[str] = []
        self._files: dict[str, tuple[int, float]] = {}

    def pieces(self, low: int, high: int) -> Iterator[tuple[int, Visits]]:
        """Yields visits that are read together: of one source, of whole chunks, or of about 16 ms each.

        Each with the index of the source among the parts of the portion.
        """
        portion = self._portion
        rows = portion.visits(low, high).rows
        starts = chunk_starts(portion.reader.source)
        owners = portion.owners(rows)
        sources = _ends(owners)
        chunks = chunk_numbers(starts, rows)
        together = min(
            self._most, PIECE_ROWS, max(1, PIECE_BYTES // portion.row_bytes)
        )
        at = 0
        while at < len(rows):
            owner = int(owners[at])
            if chunks is None:
                key = (self._number, owner)
                size = self._sizes.get(key, _FIRST_PIECE)
                stop = at + min(size, together, _MOST_ROWS)
            else:
                stop = at + _whole_chunks(chunks[at : at + self._most], together)
            source = int(np.searchsorted(sources, at, side="right"))
            stop = min(stop, int(sources[source]))
            yield owner, portion.visits(low + at, low + stop)
            at = stop

    def check(self, part: int, visits: Visits) -> None:
        """Reads, maps and checks some rows of one source, by its index."""
        timings = [Timing()]
        failed: list[_FailedRow] = []
        self._fill(visits, 0, timings, failed, self._portion.parts[part].first_row)
        numbers = visits.rows << EPOCH_BITS | visits.epochs
        for row in failed:
            self._failed.append(
                (self._number, int(numbers[row.place]), len(self._errors))
            )
            self._errors.append(self._kept_text(row.error))
        count = len(numbers)
        good: Any = slice(0, count)
        if failed:
            good = np.delete(np.arange(count), [row.place for row in failed])
        self._check_values(good, numbers[good])
        seconds = sum(timing.seconds for timing in timings)
        cpu = sum(timing.processor_seconds for timing in timings)
        read = count - len(failed)
        if read:
            size = self._sizes.get((self._number, part), _FIRST_PIECE)
            # on a busy machine, most of the rest is waiting for other threads
            busy = max(cpu, seconds / 8)
            self._sizes[(self._number, part)] = _next_size(size, read, busy)
        self._note_time(visits, part, read, seconds, cpu)

    def findings(self) -> Findings:
        """What was found in all pieces."""
        slow = sorted(self._slow, key=lambda piece: -piece[-1])
        slow = slow[:MOST_SLOW]
        return Findings(
            failed=table_of("failed", self._failed),
            flagged=table_of("flagged", self._flagged),
            extremes=table_of(
                "extremes",
                [
                    (self._number, leaf, *both)
                    for leaf, both in self._extremes.items()
                ],
            ),
            slow=table_of("slow", slow),
            read=table_of(
                "read",
                [(self._number, part, *sums) for part, sums in self._read.items()],
            ),
            errors=self._errors,
            files=slowest(self._files),
        )

    def _fill(
        self,
        visits: Visits,
        low: int,
        timings: list[Timing],
        failed: list[_FailedRow],
        first_row: int | None = None,
    ) -> None:
        """Reads rows into the buffers from row `low` on; cuts them where one fails, until it is alone.

        Args:
            visits: The rows.
            low: Row of the buffers for the first one.
            timings: Where times are added.
            failed: Where rows that fail are added.
            first_row: Row of the dataset that is row 0 of their source, by which to find the row that an error names
                and cut around it. None: rows are cut in eight, as where several of a piece fail.
        """
        count = len(visits.rows)
        try:
            timings.append(
                self._assembler.fill_together(Piece(visits, low, self._buffers))
            )
        except Exception as error:
            if not maskable(error):
                raise
            if count == 1:
                failed.append(_FailedRow(low, failure_text(error)))
                return
            named = _named_row(error, visits, first_row)
        else:
            return
        if named is None:
            cuts = list(range(0, count, -(-count // _PIECES)))
        else:
            cuts = sorted({0, named, min(named + 1, count - 1)})
        for start, stop in pairwise([*cuts, count]):
            some = Visits(visits.rows[start:stop], visits.epochs[start:stop])
            self._fill(some, low + start, timings, failed)

    def _kept_text(self, error: str) -> str:
        """The error, or its type alone where a part has many."""
        if len(self._errors) < _MOST_TEXTS:
            return error[:_MOST_CHARACTERS]
        return error.partition(":")[0]

    def _check_values(self, good: Any, numbers: Integers) -> None:
        for leaf, described in enumerate(self._portion.leaves):
            kind = described.dtype.kind
            rows = self._buffers.rows(leaf)
            if rows is None or described.dtype.hasobject or kind in "USMm":
                continue
            values = rows[good]
            if not values.size:
                continue
            if kind == "c":
                bad = ~np.isfinite(values.reshape(len(values), -1))
                self._flag(leaf, numbers, NOT_FINITE, bad)
                continue
            # NaN is the least and the greatest of all
            least = float(values.min())
            most = float(values.max())
            low, high = self._bounds.get(leaf, (-np.inf, np.inf))
            if not (
                np.isfinite([least, most]).all() and low <= least <= most <= high
            ):
                flat = values.reshape(len(values), -1)
                finite = np.isfinite(flat)
                self._flag(leaf, numbers, NOT_FINITE, ~finite)
                self._flag(leaf, numbers, BELOW, finite & (flat < low))
                self._flag(leaf, numbers, ABOVE, finite & (flat > high))
                if not finite.any():
                    continue
                least = float(flat[finite].min())
                most = float(flat[finite].max())
            before = self._extremes.get(leaf, (np.inf, -np.inf))
            self._extremes[leaf] = (min(before[0], least), max(before[1], most))

    def _flag(
        self,
        leaf: int,
        numbers: Integers,
        kind: int,
        bad: NDArray[np.bool_],
    ) -> None:
        counts = bad.sum(axis=1)
        for row in np.flatnonzero(counts).tolist():
            self._flagged.append(
                (self._number, leaf, int(numbers[row]), kind, int(counts[row]))
            )

    def _note_time(
        self,
        visits: Visits,
        part: int,
        read: int,
        seconds: float,
        cpu: float,
    ) -> None:
        """Notes how long a piece took, where its first row is stored, and what it requests."""
        row = int(visits.rows[0])
        sums = self._read[part]
        sums[:3] += (read, seconds, cpu)
        if self._portion.is_remote:
            sums[5:] += _requested(self._portion, visits)
        if not read:
            return
        last = int(visits.rows[-1])
        self._slow.append(
            (
                self._number,
                row,
                last,
                read,
                cpu / read,
                seconds / read,
            )
        )
        if len(self._slow) > 2 * PIECE_ROWS:
            self._slow.sort(key=lambda piece: -piece[-1])
            del self._slow[MOST_SLOW:]
        stored = self._portion.parts[part]
        locations = stored.source.locate_visit(
            row - stored.first_row, int(visits.epochs[0])
        )
        for place in locations:
            if place.first is not None and place.last is not None:
                sums[4] += place.last - place.first + 1
        if locations and all(place.last is not None for place in locations):
            sums[3] += 1
        if locations:
            name = redact(locations[0].file)
            rows, before = self._files.get(name, (0, 0.0))
            self._files[name] = (rows + read, before + seconds)


def _ends(owners: Integers) -> Integers:
    """Index after the last row of each run of equal owners, int64[runs]."""
    return np.append(np.flatnonzero(np.diff(owners)) + 1, len(owners))


def _named_row(
    error: BaseException,
    visits: Visits,
    first_row: int | None,
) -> int | None:
    """Index of the row that an error names, as those of sources and maps do. None: it names none of these rows."""
    if first_row is None:
        return None
    for text in (str(error), *getattr(error, "__notes__", ())):
        for row in map(int, _ROW.findall(text)):
            (places,) = np.nonzero(visits.rows == first_row + row)
            if len(places):
                return int(places[0])
    return None


def _whole_chunks(chunks: Integers, together: int) -> int:
    """Number of the first rows that are whole chunks, about `together`, and one chunk at least."""
    ends = _ends(chunks)
    fitting = int(np.searchsorted(ends, together, side="right"))
    return int(ends[max(0, fitting - 1)])


def _next_size(
    size: int,
    rows: int,
    seconds: float,
) -> int:
    """Rows of the next piece, so that it takes about 16 ms."""
    wanted = int(_TARGET * rows / max(seconds, 1e-9))
    return max(1, min(wanted, 4 * size))


def _requested(portion: Portion, visits: Visits) -> tuple[int, int]:
    """Number of requests of a read of these rows, and their bytes."""
    source = portion.reader.source
    requests = 0
    nbytes = 0
    for wanted in source.wanted(visits):
        ranges = list(wanted.ranges)
        if not ranges:
            continue
        gap = wanted.reader.remote.gap(ranges[0].location)
        for whole, _ in joined(ranges, gap):
            requests += 1
            nbytes += whole.stop - whole.start
    for stored in source.chunks_of(visits):
        chunks = len(set(stored.chunks))
        requests += chunks
        nbytes += chunks * stored.nbytes
    return requests, nbytes
