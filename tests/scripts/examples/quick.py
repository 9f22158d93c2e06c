"""How tests start examples: most of the time of a short training would go into optimising its machine code."""

import os

ENVIRONMENT = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Compiles without optimising, which halves the processor time of some of them; a training step then runs slower."""
