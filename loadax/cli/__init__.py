"""The command line: `loadax convert`, `loadax verify`, `loadax inspect`, `loadax index`, `loadax plan`."""

from loadax.cli.main import main

__all__ = ["main"]
