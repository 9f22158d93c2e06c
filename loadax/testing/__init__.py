"""Test helpers for your own sources and maps: they check the contract that a `Dataloader` relies on.

`check_source` and `check_map` raise a `loadax.errors.ConformanceError` that names the broken law.
"""

from loadax.testing.checks import check_map, check_source

__all__ = ["check_map", "check_source"]
