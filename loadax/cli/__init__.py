"""The command line: `loadax convert`, `verify`, `inspect`, `index`, `plan`, `audit` and `bench`."""

from loadax.cli.main import main

__all__ = ["main"]
