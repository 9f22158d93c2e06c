"""Test helpers: for your own sources and maps, the contract that a `Dataloader` relies on; for splits, that none leaks.

`check_source`, `check_map` and `disjoint` raise a `loadax.errors.ConformanceError` that names the broken law.
"""

from loadax.testing.contract import check_map, check_source
from loadax.testing.disjoint import disjoint

__all__ = ["check_map", "check_source", "disjoint"]
