"""One sample of this process: its memory by owner, its descriptors, threads and children."""

import ctypes
import gc
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, final

import jax
import pyarrow as pa

_SIZED = re.compile(r"(\w+):\s+(\d+) kB")
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)\s*(.*)$")
_ARENA = 64 << 20  # glibc aligns the heaps of its arenas to this


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later, summed over all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def sample() -> dict[str, int]:
    """Bytes and counts of this process, as one line of the log.

    `anonymous` is RssAnon of the kernel, `unique` the USS, which has pages of mapped files that no other process maps;
    `malloc_*` are of glibc: in use, free but kept, and mapped one by one for large blocks.
    """
    return {
        **_kernel(),
        **_malloc(),
        "jax": sum(array.nbytes for array in jax.live_arrays()),
        "arrow": pa.default_memory_pool().bytes_allocated(),
        "python_blocks": sys.getallocatedblocks(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "python_threads": threading.active_count(),
        "children": sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children")),
    }


def _kernel() -> dict[str, int]:
    status = dict(_SIZED.findall(Path("/proc/self/status").read_text()))
    rollup = dict(_SIZED.findall(Path("/proc/self/smaps_rollup").read_text()))
    return {
        "anonymous": int(status["RssAnon"]) << 10,
        "unique": int(rollup["Private_Clean"]) + int(rollup["Private_Dirty"]) << 10,
        "large_pages": int(rollup["AnonHugePages"]) << 10,
    }


def _malloc() -> dict[str, int]:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return {}
    library.mallinfo2.restype = _Mallinfo
    info = library.mallinfo2()
    return {
        "malloc_used": info.uordblks,
        "malloc_free": info.fordblks,
        "malloc_mapped": info.hblkhd,
    }


def owners() -> dict[str, int]:
    """Resident anonymous bytes by the kind of mapping that they are in.

    `heap` and `arenas` are glibc's for small blocks; `buffers` asked for large pages: loadax's buffers of 2 MiB and
    more, and large NumPy arrays. `anonymous` has the other large blocks of malloc, and what other allocators have
    mapped: smaller buffers, Arrow's pool, Python's arenas, stacks of threads.
    """
    found = {"heap": 0, "arenas": 0, "buffers": 0, "anonymous": 0, "files": 0}
    for mapping in _mappings():
        found[mapping.owner] += mapping.size
    return found


@final
class _Mapping(NamedTuple):
    start: int
    path: str
    size: int  # resident anonymous bytes
    flags: list[str]

    @property
    def owner(self) -> str:
        if self.path == "[heap]":
            return "heap"
        if self.path:
            return "files"
        if "hg" in self.flags:
            return "buffers"
        return "anonymous" if self.start % _ARENA else "arenas"


def _mappings() -> Iterator[_Mapping]:
    start = 0
    path = ""
    size = 0
    with Path("/proc/self/smaps").open() as lines:
        for text in lines:
            if begins := _MAPPING.match(text):
                start = int(begins[1], 16)
                path = begins[5]
            elif text.startswith("Anonymous:"):
                size = int(text.split()[1]) << 10
            elif text.startswith("VmFlags:"):
                yield _Mapping(start, path, size, text.split()[1:])


def trimmed() -> tuple[int, int]:
    """RssAnon before and after all garbage is collected and glibc returns the memory that it keeps."""
    gc.collect()
    before = _kernel()["anonymous"]
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    return before, _kernel()["anonymous"]
