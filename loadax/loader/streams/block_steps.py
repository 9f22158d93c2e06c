"""BlockSteps: reads the rows of several steps together from lanes that yield blocks of rows.

A block that also has rows of the next steps gives them at once, so that a lane is looked at once a block and not once
a step. The iterator of a lane is asked for a block only when a step lacks its rows, and after all steps before it are
full: no step waits for rows of a later one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, final

from numpy.typing import NDArray

from loadax.core.formatting import count_text
from loadax.loader.streams.tickets import PieceTickets
from loadax.protocols import Array
from loadax.sources.stream.lane import Lane


class StepNote(Protocol):
    """Notes that the rows of a step were read, and those of all steps before it.

    Args:
        index: Index of the step.
        present: Whether lanes have some of its rows.
        ended_lane: Text: which lane has ended, if it lacks rows.
    """

    def __call__(self, index: int, present: bool, ended_lane: str) -> None: ...


@final
class BlockSteps:
    """Rows of some steps, of which each lane has equally many in each step.

    Args:
        lanes: The lanes, in the order of the rows of a step.
        begins: First row of each lane.
        steps: Number of steps.
        out: An array for each leaf, of the rows of all steps.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        begins: Sequence[int],
        steps: int,
        out: Sequence[Array],
    ):
        self._lanes = lanes
        self._begins = begins
        self._steps = steps
        self._rows_per_step = len(out[0]) // (steps * len(lanes))
        shape = (steps, len(lanes), self._rows_per_step)
        self._out = [leaf.reshape(*shape, *leaf.shape[1:]) for leaf in out]
        # Rows of each lane that are in `out`.
        self._written = [0] * len(lanes)

    def read(
        self,
        piece: PieceTickets,
        tickets: Sequence[int],
        leave: Callable[[Lane], None],
        note: StepNote,
    ) -> None:
        """Reads all steps, one after the other.

        Args:
            piece: Tickets of the piece.
            tickets: Its ticket for each lane.
            leave: Called with each lane whose rows were read, before the next piece reads it.
            note: Called after each step.
        """
        turns: Iterable[int] = piece.turns(self._lanes, tickets)
        for step in range(self._steps):
            unread = []
            for index in turns:
                lane = self._lanes[index]
                if self._write(index, step):
                    leave(lane)
                    piece.leave(lane)
                else:
                    unread.append(index)
            turns = unread
            note(step, *self._read_of(step))

    def _write(self, index: int, step: int) -> bool:
        """Writes the rows of a lane until a step, and later ones at hand. Returns whether none is left to write."""
        lane = self._lanes[index]
        written = self._written[index]
        until = (step + 1) * self._rows_per_step
        end = self._steps * self._rows_per_step
        while written < until:
            part = lane.part(self._begins[index] + written, end - written)
            if part is None:
                break
            leaves, low, high = part
            for out, leaf in zip(self._out, leaves, strict=True):
                write_rows(out[:, index], written, leaf[low:high])
            written += high - low
        self._written[index] = written
        return written == end or written < until

    def _read_of(self, step: int) -> tuple[bool, str]:
        """Whether lanes have some rows of a step, and which one has ended, as text; empty: none."""
        until = (step + 1) * self._rows_per_step
        if min(self._written) >= until:
            return True, ""
        lane = next(
            lane
            for lane, written in zip(self._lanes, self._written, strict=True)
            if written < until
        )
        present = max(self._written) > step * self._rows_per_step
        return (
            present,
            f"lane {lane.number} ended after {count_text(lane.row, 'row')}",
        )


def write_rows(out: NDArray[Any], begin: int, values: Array) -> None:
    """Writes consecutive rows into an array of steps.

    Args:
        out: Array [steps, rows of a step, ...].
        begin: Where the rows begin, counted over all steps.
        values: The rows.
    """
    rows = out.shape[1]
    step, offset = divmod(begin, rows)
    written = 0
    if offset:
        written = min(rows - offset, len(values))
        out[step, offset : offset + written] = values[:written]
        step += 1
    whole = (len(values) - written) // rows
    if whole:
        end = written + whole * rows
        out[step : step + whole] = values[written:end].reshape(whole, *out.shape[1:])
        step += whole
        written = end
    if written < len(values):
        out[step, : len(values) - written] = values[written:]
