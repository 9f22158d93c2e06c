"""OrderHash: what saved states, and hosts, compare in place of a dataset."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from loadax.dataset import Dataset
from loadax.protocols import Order

if TYPE_CHECKING:
    from loadax.loader.state_contents import StateContents
VERSION = 1  # of states
WEIGHTS_VERSION = 2  # of states with weights, which an older loadax would misread
FIELDS = ("version", "step", "batch_size", "epoch", "position", "order")  # of states
LEASE = "lease"  # field of what a lease adds
KEY_SEED = "key_seed"  # field of runs with random keys, of this loadax or later
WEIGHTS = "weights"  # field of runs whose weights were set in mid-run


@final
class OrderHash:
    """Hashes everything that determines the order before a position of an epoch.

    Includes lengths, element spec, verbs, seeds, and the version of the order's algorithm. Excludes contents, paths,
    times and functions, so that a run can resume with moved data or a corrected map. Also excludes the schedule of a
    mixture after the position, which may be changed.

    Args:
        dataset: The dataset.
        key_seed: Seed of the random keys of its batches, which states have beside the hash. None: there are none.
        make_contents: Function that makes what states have of the contents; it may return None.
        weights: Weights of its mixture that were set in mid-run, as states have them: `[position, weight, …]`.
    """

    def __init__(
        self,
        dataset: Dataset,
        key_seed: int | None = None,
        weights: Sequence[list[int]] = (),
        make_contents: "Callable[[], StateContents | None]" = lambda: None,
    ):
        self.dataset = dataset
        self._order = dataset.order
        self._described = dataset.order_facts
        self.key_seed = key_seed
        self._make_contents = make_contents
        self.weights = weights
        # The last hashes, and what they depend on: only a schedule changes them.
        self._kept: tuple[Any, str, list[int], list[Any]] = (None, "", [], [])

    def weighted(self, dataset: Dataset, weights: Sequence[list[int]]) -> "OrderHash":
        """Hash of the same data with these weights of its mixture."""
        return OrderHash(dataset, self.key_seed, weights, lambda: self.contents)

    @cached_property
    def contents(self) -> "StateContents | None":
        """What states have of the contents; made when a state is saved or restored. None: nothing."""
        return self._make_contents()

    def __call__(self, epoch: int, position: int) -> str:
        """One hash of all of it, as 16 hexadecimal digits."""
        return self._hashes(epoch, position)[1]

    def parts(self, epoch: int, position: int) -> list[int]:
        """A short hash of each part, to tell which one differs: verbs of the order, maps, and leaves of an example."""
        return [*self._hashes(epoch, position)[2]]

    def schedule(self, epoch: int, position: int) -> list[Any]:
        """The part of a schedule that determines an epoch, beside the order."""
        return self._hashes(epoch, position)[3]

    def _hashes(
        self, epoch: int, position: int
    ) -> tuple[Any, str, list[int], list[Any]]:
        past, depends = self._scheduled(epoch, position)
        kept = self._kept  # which other threads replace
        if kept[0] != depends:
            version, order, maps, leaves = self._described
            if depends:
                order = past.describe()
            digest = hash_of([version, order, maps, leaves, *depends[1:]])
            parts = [
                short_hash(hash_of(part))
                for part in (*order, *maps, ["leaves", leaves])
            ]
            kept = depends, digest, parts, depends[1:]
            self._kept = kept
        return kept

    def past(self, epoch: int, position: int) -> Order:
        """The order without what a mixture schedules after a position."""
        return self._scheduled(epoch, position)[0]

    def _scheduled(self, epoch: int, position: int) -> tuple[Order, list[Any]]:
        """The order of the past, and what of its schedule determines it; see `scheduled_until`."""
        if not self._order.mixes:
            return self._order, []
        from loadax.plan.mix import scheduled_until

        return scheduled_until(self._order, epoch, position)


def short_hash(digest: str) -> int:
    """31 bits of a hash: enough to tell one dataset from another, and an int that JSON, and int32, hold."""
    return int(digest, 16) >> 33


def hash_of(described: Any) -> str:
    """Hash of what JSON can hold, as text."""
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]
