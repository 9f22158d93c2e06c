"""For tests of your own sources and maps: do they keep the contract that a `Dataloader` relies on?

`check_source` and `check_map` raise a `loadax.errors.ConformanceError` that names the law that is broken, and return
nothing when all hold. `FaultySource` fails where it is told to, for tests of what your program does then.
"""

from loadax.testing.faulty import FaultySource
from loadax.testing.maps import check_map
from loadax.testing.sources import check_source

__all__ = ["FaultySource", "check_map", "check_source"]
