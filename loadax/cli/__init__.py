"""The command line: `loadax convert`, `loadax verify`, `loadax inspect`."""

from loadax.cli.main import main

__all__ = ["main"]
