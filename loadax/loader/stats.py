"""Where the time goes: counted per piece of work, never per row."""

from dataclasses import dataclass, field
from typing import NamedTuple, final


class Timing(NamedTuple):
    """Seconds that one piece of work took, by stage, and what it brought."""

    read: float = 0.0
    transform: float = 0.0
    assemble: float = 0.0
    place: float = 0.0
    rows: int = 0
    bytes: int = 0


@final
@dataclass
class Stats:
    """What an iterator has done so far. Seconds of `read` to `place` are summed over all threads.

    Attributes:
        steps: batches handed out.
        wait: seconds that `next()` took: what training waited for data.
        read: seconds of reading the source.
        transform: seconds in the user's maps.
        assemble: seconds of laying rows out for the devices, where reading did not do that itself.
        place: seconds of making `jax.Array`s.
        rows: rows that this process read, for batches handed out or not.
        bytes: what they hold, as the devices want it.
        ready: placed batches that wait for the consumer now.
        probed: rows read when the loader was made, to find the spec; not in `rows`.
        elapsed: seconds since the iterator began.
    """

    steps: int = 0
    wait: float = 0.0
    read: float = 0.0
    transform: float = 0.0
    assemble: float = 0.0
    place: float = 0.0
    rows: int = 0
    bytes: int = 0
    ready: int = 0
    probed: int = 0
    elapsed: float = field(default=0.0)

    @property
    def rows_per_second(self) -> float:
        """Rows that this process read, per second since the iterator began."""
        return self.rows / self.elapsed if self.elapsed else 0.0

    def __str__(self) -> str:
        """One line, as for the end of a training run."""
        share = self.wait / self.elapsed if self.elapsed else 0.0
        return f"waited {self.wait:.3f} s of {self.elapsed:.1f} s for data ({share:.1%})"

    def plus(self, later: "Stats") -> "Stats":
        """These and what came later, together."""
        summed = {name: value + getattr(later, name) for name, value in vars(self).items()}
        return Stats(**{**summed, "ready": later.ready})

    def add(self, timing: Timing) -> None:
        """Counts one piece of work."""
        self.read += timing.read
        self.transform += timing.transform
        self.assemble += timing.assemble
        self.place += timing.place
        self.rows += timing.rows
        self.bytes += timing.bytes
