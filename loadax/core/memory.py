"""How much memory the machine has, and the refusal of data that says that it needs more."""

import ctypes
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

from loadax.core.formatting import size_text
from loadax.errors import SourceError

# What a container may have, by version of cgroups.
LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Bytes. Every piece that a worker fills allocates and frees arrays of the same few sizes. By default, glibc would
# return them to the kernel each time, which then clears new pages.
MMAP_THRESHOLD = 4 << 20
TRIM_THRESHOLD = 16 << 20
# of malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@cache
def machine_memory() -> int:
    """Memory of the machine, or of the container if it may have less, in bytes."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or it says "max"
            memory = min(memory, int(path.read_text()))
    return memory


def return_freed_memory() -> None:
    """Returns freed memory to the kernel, which glibc else keeps for arrays of less than 32 MiB."""
    with suppress(AttributeError):  # other C libraries
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Keeps some freed memory in this process, as a worker that Dask has told to keep none."""
    with suppress(AttributeError):  # other C libraries
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)


def check_fits(size: int, what: str, remedy: str) -> None:
    """Refuses data that is decoded whole, and takes more than half of the machine's memory.

    A small file may say that it is huge. Decoding it would end the process, or others of the machine.

    Args:
        size: Bytes when decoded, as the data says.
        what: Name of the data, with its file.
        remedy: What to do, as the end of a sentence.

    Raises:
        SourceError: When it is larger.
    """
    memory = machine_memory()
    if size > memory // 2:
        raise SourceError(
            f"{what} takes {size_text(size)} decoded, more than half of the "
            f"{size_text(memory)} of memory of this machine; {remedy}"
        )
