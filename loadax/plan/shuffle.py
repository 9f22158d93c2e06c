"""Full shuffle of single positions, and what all shuffles are like."""

from dataclasses import dataclass, replace
from typing import Any, final

from loadax import seeds
from loadax.plan.order import VerbOrder
from loadax.protocols import Hits, Integers, NarrowRule, Order, Shuffle, Visits


@dataclass(frozen=True)
class ShuffleOrder(VerbOrder):
    """The positions of the parent in another order, a different one in each epoch."""

    seed: int
    varies = True

    @property
    def size(self) -> int:
        return self.parent.size

    def narrow(self, verb: str, rule: NarrowRule, first_row: int = 0) -> Order:
        return replace(self, parent=self.parent.narrow(verb, rule, first_row))


@final
@dataclass(frozen=True)
class Shuffled(ShuffleOrder):
    """A uniform permutation of all positions, another one in each epoch."""

    @property
    def shuffle(self) -> Shuffle:
        return Shuffle(self.seed)

    def visits(self, epochs: Integers, positions: Integers) -> Visits:
        if len(positions) == 0:
            return self.parent.visits(epochs, positions)
        # Nearly every call is within one epoch, and one key for all positions is much faster than a key for each.
        first = int(epochs[0])
        key = seeds.derive(
            self.seed, "shuffle", first if (epochs == first).all() else epochs
        )
        return self.parent.visits(epochs, seeds.permute(positions, self.size, key))

    def inverse(
        self,
        rows: Integers,
        epochs: Integers,
        window: tuple[int, int],  # noqa: ARG002
    ) -> Hits:
        below = self.parent.inverse(rows, epochs, (0, self.size))
        if not self.size:
            return below
        keys = seeds.derive(self.seed, "shuffle", epochs[below.asked])
        return Hits(below.asked, seeds.unpermute(below.positions, self.size, keys))

    def _described(self) -> tuple[list[Any], str]:
        return ["shuffle", self.seed], f"shuffle({self.seed})"
