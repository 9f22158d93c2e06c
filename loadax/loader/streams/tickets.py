"""LaneTickets: a ticket lock for each lane, so that one piece reads it at a time, in the order of the pieces."""

import math
import threading
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import final

from loadax.sources.stream.lane import Lane


class SkippedError(Exception):
    """Rows were not read, since those before them could not be, which is the error to tell of; or the run is closed."""


@final
class LaneTickets:
    """The waiting of pieces for lanes that earlier pieces read.

    A piece has a ticket for each of its lanes, and may read a lane while the lane serves this ticket. Tickets are taken
    in the order of the pieces, so a piece only waits for earlier ones, and no two wait for each other.
    """

    def __init__(self) -> None:
        # Reentrant: garbage collection under the lock may close the iterator.
        self._lock = threading.RLock()
        self._waiting: dict[tuple[Lane, int], threading.Condition] = {}  # by lane and ticket
        self._first_skipped = math.inf

    def skips(self, piece: int) -> bool:
        """Whether a piece is not read any more, since it or one before it has failed."""
        return piece >= self._first_skipped

    def skip(self, piece: int) -> None:
        """Skips this piece and all later ones that wait for a lane."""
        with self._lock:
            self._first_skipped = min(piece, self._first_skipped)
            for served in self._waiting.values():
                served.notify()

    def wait(self, piece: int, lane: Lane, ticket: int) -> None:
        """Waits until a lane serves the ticket of a piece.

        Raises:
            SkippedError: If the piece is skipped.
        """
        with self._lock:
            # Each waits for its own ticket alone: with many threads, waking all of them costs more than reading.
            served = self._waiting[lane, ticket] = threading.Condition(self._lock)
            try:
                while lane.serving != ticket:
                    if self.skips(piece):
                        raise SkippedError
                    served.wait()
            finally:
                del self._waiting[lane, ticket]

    def serve_next(self, lane: Lane) -> None:
        """Lets the next piece read a lane."""
        lane.serving += 1
        if self._waiting:  # without the lock: a thread that waits from now on sees the line above
            with self._lock:
                served = self._waiting.get((lane, lane.serving))
                if served is not None:
                    served.notify()


@final
class PieceTickets:
    """The tickets of one piece.

    Args:
        tickets: The waiting of all pieces.
        piece: Number of the piece.
    """

    def __init__(self, tickets: LaneTickets, piece: int):
        self._tickets, self._piece = tickets, piece
        self.waited = 0.0
        """Seconds that the piece has waited for lanes."""

    def in_turn(self, lanes: Sequence[Lane], tickets: Sequence[int]) -> Iterator[int]:
        """Yields the index of each lane while it serves the ticket: first those that need no waiting.

        Where two pieces have a lane in common, it is the last of one and the first of the other. Waiting for it first,
        pieces would be read one after the other.
        """
        later = []
        for index, (lane, ticket) in enumerate(zip(lanes, tickets, strict=True)):
            if lane.serving != ticket:
                later.append(index)
                continue
            yield index
            self._tickets.serve_next(lane)
        for index in later:
            began = perf_counter()
            self._tickets.wait(self._piece, lanes[index], tickets[index])
            self.waited += perf_counter() - began
            yield index
            self._tickets.serve_next(lanes[index])
