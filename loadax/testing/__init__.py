"""Test helpers for your own sources and maps: they check the contract that a `Dataloader` relies on.

`check_source` and `check_map` raise a `loadax.errors.ConformanceError` that names the broken law. `FaultySource` fails
at chosen rows, to test the error handling of your program.
"""

from loadax.testing.faulty import FaultySource
from loadax.testing.maps import check_map
from loadax.testing.sources import check_source

__all__ = ["FaultySource", "check_map", "check_source"]
