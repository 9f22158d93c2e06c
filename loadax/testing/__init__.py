"""Test helpers for your own sources and maps: they check the contract that a `Dataloader` relies on.

`check_source` and `check_map` raise a `loadax.errors.ConformanceError` that names the broken law. `FaultySource` fails
at chosen rows, to test the error handling of your program.
"""

from loadax.testing.checks import check_map, check_source
from loadax.testing.faulty import FaultySource

__all__ = ["FaultySource", "check_map", "check_source"]
