"""`python -m loadax`: the command line."""

import sys

from loadax.cli import main

if __name__ == "__main__":
    sys.exit(main())
