"""Freed memory is kept where workers of other engines were told to keep none."""

import os
import subprocess
import sys

import pytest

from tests.limits import HANG

PROGRAM = """
import resource
import sys
import numpy as np
from loadax.core.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        np.empty(1 << 20, np.uint8)[::4096] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc returns it")
def test_arrays_of_one_size_get_new_pages_once() -> None:
    """As Dask's nannies start their workers."""
    told = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=told, stdout=subprocess.PIPE, timeout=HANG, check=True)
    before, after = map(int, done.stdout.split())
    assert before >= 100 * 256
    assert after < before / 10
