"""Leases of the shared memory never overlap, and idle memory is returned to the kernel."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from loadax.loader.workers.shared_memory import SharedMemoryPool, SharedMemoryView
from loadax.work.payload import nameless_file
from tests.limits import examples

PAGE = mmap.ALLOCATIONGRANULARITY


def kept_bytes(pool: SharedMemoryPool) -> int:
    return os.fstat(pool.descriptor).st_blocks * 512


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@settings(deadline=None, max_examples=examples(50))
@given(
    st.lists(st.tuples(st.integers(1, 3 * PAGE), st.integers(0, 5)), min_size=1, max_size=60),
    st.sampled_from([0, PAGE, 1 << 20]),
)
def test_no_two_leases_share_a_byte_and_another_process_sees_them(sizes: list[tuple[int, int]], keep: int) -> None:
    pool, view = SharedMemoryPool(keep), None
    view = SharedMemoryView(os.dup(pool.descriptor))
    held: list[tuple[np.ndarray, bytes]] = []
    for number, (size, forget) in enumerate(sizes):
        lease = pool.lease(size)
        assert (lease.nbytes, lease.ctypes.data % 64) == (size, 0)
        filled = bytes([number % 251]) * size
        view.memory(pool.block(lease), size)[:] = np.frombuffer(filled, np.uint8)
        held.append((lease, filled))
        del lease
        del held[len(held) - min(forget, len(held) - 1) :]
        assert all(one.tobytes() == filled for one, filled in held)
    view.close()
    pool.close()


def test_a_block_is_used_again_when_no_array_lives_on_it_and_not_before() -> None:
    pool = SharedMemoryPool(1 << 20)
    lease = pool.lease(1000)
    where, part = pool.block(lease), lease[10:20].view(np.uint16)
    del lease
    second = pool.lease(1000)
    assert pool.block(second) != where
    del part
    assert pool.block(pool.lease(1000)) == where
    pool.close()


def test_idle_memory_beyond_what_is_kept_goes_back_to_the_system() -> None:
    pool = SharedMemoryPool(most_idle=4 << 20)
    held = [pool.lease(1 << 20) for _ in range(32)]
    for lease in held:
        lease[:] = 1
    assert kept_bytes(pool) >= 32 << 20
    del held, lease
    pool.lease(1 << 20)
    assert kept_bytes(pool) <= 5 << 20
    pool.close()


def test_what_went_back_is_leased_anew_from_the_same_place() -> None:
    """So the segment does not grow with the run."""
    pool = SharedMemoryPool(most_idle=0)
    for _ in range(100):
        held = [pool.lease(size << 10) for size in (300, 40, 300)]
        for lease in held:
            lease[:] = 1
        del held, lease
    assert os.fstat(pool.descriptor).st_size <= 64 * (300 << 10)
    pool.close()


def test_leases_outlive_the_segment_and_take_few_descriptors() -> None:
    before = open_descriptors()
    pool = SharedMemoryPool(0)
    held = [pool.lease(100) for _ in range(2000)]
    for number, lease in enumerate(held):
        lease[:] = number % 251
    assert open_descriptors() - before <= 16
    pool.close()
    pool.close()
    del pool
    assert all((lease == number % 251).all() for number, lease in enumerate(held))
    del held, lease
    assert open_descriptors() <= before


def test_the_file_has_no_name() -> None:
    descriptor = nameless_file()
    assert str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith("(deleted)")
    os.close(descriptor)


def test_where_the_system_has_no_nameless_memory_a_deleted_file_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    pool = SharedMemoryPool(0)
    lease = pool.lease(5000)
    view = SharedMemoryView(os.dup(pool.descriptor))
    view.memory(pool.block(lease), 5000)[:] = 7
    assert (lease == 7).all()
    assert str(Path(f"/proc/self/fd/{pool.descriptor}").readlink()).endswith("(deleted)")
    del lease
    pool.lease(5000)
    view.close()
    pool.close()
