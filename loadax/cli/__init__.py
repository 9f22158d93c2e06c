"""The command line: `loadax inspect`, `convert`, `verify`, `index`, `plan`, `bench`."""

from loadax.cli.program import main

__all__ = ["main"]
