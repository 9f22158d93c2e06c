"""LaneTickets: a ticket lock for each lane, so that one piece reads it at a time, in the order of the pieces."""

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from time import perf_counter
from typing import final

from loadax.loader.slots import SkippedError
from loadax.sources.stream.lane import Lane

# Number of a piece that has no tickets yet: all that have some are before it.
NO_PIECE = sys.maxsize


@final
class LaneTickets:
    """The waiting of pieces for their turn: to take tickets, and to read lanes that earlier pieces read.

    A piece has a ticket for each of its lanes, and may read a lane while the lane serves this ticket. Tickets are taken
    in the order of the pieces, so a piece only waits for earlier ones, and no two wait for each other.
    """

    def __init__(self) -> None:
        # Reentrant: garbage collection under the lock may close the iterator.
        self._lock = threading.RLock()
        self._waiting: dict[Hashable, threading.Condition] = {}  # by turn
        self._first_skipped = sys.maxsize + 1

    def skip(self, piece: int) -> None:
        """Skips this piece and all later ones that wait, and all that have no tickets yet."""
        with self._lock:
            self._first_skipped = min(piece, self._first_skipped)
            for served in self._waiting.values():
                served.notify()

    def wait(self, piece: int, turn: Hashable, has_come: Callable[[], bool]) -> None:
        """Waits for a turn, of which `begin` tells.

        Args:
            piece: The piece that waits; or `NO_PIECE`.
            turn: What is waited for: no other piece waits for it.
            has_come: Returns whether it is the turn of the piece.

        Raises:
            SkippedError: If the piece is skipped.
        """
        with self._lock:
            # Each waits for its own turn alone: with many threads, waking all of them costs more than reading.
            come = self._waiting[turn] = threading.Condition(self._lock)
            try:
                while piece < self._first_skipped and not has_come():
                    come.wait()
            finally:
                del self._waiting[turn]
            if piece >= self._first_skipped:
                raise SkippedError

    def begin(self, turn: Hashable) -> None:
        """Wakes the piece that waits for a turn, which has come."""
        # without the lock: a thread that waits from now on sees that it has come
        if self._waiting:
            with self._lock:
                come = self._waiting.get(turn)
                if come is not None:
                    come.notify()

    def serve_next(self, lane: Lane) -> None:
        """Lets the next piece read a lane."""
        lane.serving += 1
        if self._waiting:
            self.begin((lane, lane.serving))


@final
class PieceTickets:
    """The tickets of one piece.

    Args:
        tickets: The waiting of all pieces.
        piece: Number of the piece.
    """

    def __init__(self, tickets: LaneTickets, piece: int):
        self._tickets = tickets
        self._piece = piece
        # Seconds that the piece has waited for lanes.
        self.waited = 0.0

    def in_turn(self, lanes: Sequence[Lane], tickets: Sequence[int]) -> Iterator[int]:
        """Yields the index of each lane while it serves the ticket; see `turns`."""
        for index in self.turns(lanes, tickets):
            yield index
            self.leave(lanes[index])

    def leave(self, lane: Lane) -> None:
        """Lets the next piece read a lane."""
        self._tickets.serve_next(lane)

    def turns(self, lanes: Sequence[Lane], tickets: Sequence[int]) -> Iterator[int]:
        """Yields the index of each lane that serves the ticket, until `leave`: first those that need no waiting.

        Where two pieces have a lane in common, it is the last of one and the first of the other. Waiting for it first,
        pieces would be read one after the other.
        """
        later = []
        for index, (lane, ticket) in enumerate(zip(lanes, tickets, strict=True)):
            if lane.serving != ticket:
                later.append((index, lane, ticket))
                continue
            yield index
        for index, lane, ticket in later:
            began = perf_counter()
            self._tickets.wait(
                self._piece,
                (lane, ticket),
                lambda: lane.serving == ticket,  # noqa: B023 - called here
            )
            self.waited += perf_counter() - began
            yield index
