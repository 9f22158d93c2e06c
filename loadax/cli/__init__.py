"""The command line: `loadax inspect`, `convert`, `verify`, `index`, `env`."""

from loadax.cli.program import main

__all__ = ["main"]
