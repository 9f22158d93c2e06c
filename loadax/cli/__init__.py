"""The command line: `loadax inspect`, `new`, `convert`, `verify`, `index`, `plan`, `audit`, `bench`, …."""

from loadax.cli.main import main

__all__ = ["main"]
