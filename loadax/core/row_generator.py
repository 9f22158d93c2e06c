"""`generator`: the random number generator of one row, from its seed, map, epoch and row number."""

from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from loadax import seeds


def generator(seed: int, place: int, epoch: int, row: int) -> np.random.Generator:
    """Creates the random number generator of one row. It, and all that it spawns, depend on these four integers alone.

    Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is a keyed function of a counter. The
    key is the seed and the map's index in the chain, and row and epoch are the upper half of the counter, so no two
    streams overlap.
    """
    words = np.array([_key(seed), place, 0, 0, row, epoch], np.uint64)
    seed_sequence: Any = RowSeed(words)  # any ISeedSequence will do, which NumPy's types don't tell
    return np.random.Generator(np.random.Philox(seed_sequence, counter=words[2:]))


@lru_cache(maxsize=256)
def _key(seed: int) -> int:
    return int(seeds.derive(seed, "map"))


@final
class RowSeed(ISpawnableSeedSequence):
    """Seed sequence of one row, as NumPy's bit generators take it.

    With `Philox(key=...)`, NumPy asks the operating system for entropy to spawn from. That takes longer than everything
    else here, and spawned generators differ in every run.

    Args:
        words: Key and counter, uint64[6].
    """

    def __init__(self, words: NDArray[np.uint64]):
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Returns the key to Philox. Other bit generators get words that are derived from key and counter."""
        if n_words == 2 and np.dtype(dtype) == np.uint64:
            return self._words[:2]
        return self._sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        """Seed sequences of `n_children` further generators."""
        return self._sequence.spawn(n_children)

    @cached_property
    def _sequence(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._words.astype("<u8").view("<u4").tolist())
