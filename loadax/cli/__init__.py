"""The command line: `loadax inspect`, `convert`, `verify`, `index`, `plan`."""

from loadax.cli.program import main

__all__ = ["main"]
