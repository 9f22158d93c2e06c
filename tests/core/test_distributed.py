"""Which process this is: told without JAX; real runs are in `tests/processes`."""

import subprocess
import sys

import pytest

from loadax.core.distributed import Process, this_process

ALONE = """
import sys
from loadax.core.distributed import Process, this_process
assert this_process() == Process(0, 1)
assert "jax" not in sys.modules
"""


def test_outside_of_a_run_there_is_one_process() -> None:
    assert this_process() == Process(0, 1)


@pytest.mark.processes
def test_jax_is_not_imported_to_find_out() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True)
