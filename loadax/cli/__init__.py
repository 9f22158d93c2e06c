"""The command line: `loadax inspect`, `new`, `convert`, `verify`, `index`, `plan`, `audit`, `bench`, …."""

from loadax.cli.program import main

__all__ = ["main"]
