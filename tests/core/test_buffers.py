"""Memory is aligned, and is used again only when nobody can see it any more."""

import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from loadax.core.buffers import ALIGNMENT, BufferPool, aligned_bytes, aligned_columns, aligned_empty
from loadax.protocols import ArraySpec
from tests.limits import HANG, until

SIZE = 1 << 16
Bytes = NDArray[np.uint8]


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 1 << 20])
def test_fresh_memory_is_aligned_and_of_the_size_that_was_asked_for(size: int) -> None:
    for _ in range(8):
        memory = aligned_bytes(size)
        assert address(memory) % ALIGNMENT == 0
        assert memory.shape == (size,)
        memory[:] = 7


@pytest.mark.parametrize("shape", [(), (3,), (0, 5), (7, 3, 2)])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32, np.int64, np.complex128, "bfloat16"])
def test_aligned_empty(shape: tuple[int, ...], dtype: Any) -> None:
    array = aligned_empty(shape, jax.numpy.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, jax.numpy.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert address(array) % ALIGNMENT == 0 or array.size == 0


@pytest.mark.parametrize("size", [0, 1, 64, 1000, SIZE])
def test_a_lease_is_aligned_and_writable(size: int) -> None:
    pool = BufferPool(1 << 20)
    for _ in range(3):
        lease = pool.lease(size)
        assert lease.dtype == np.uint8
        assert lease.shape == (size,)
        assert address(lease) % ALIGNMENT == 0
        lease[:] = 1
        del lease


def test_memory_comes_back_and_is_used_again() -> None:
    pool = BufferPool(1 << 20)
    lease = pool.lease(SIZE)
    where = address(lease)
    assert pool.idle_bytes == 0
    del lease
    assert pool.idle_bytes == SIZE
    again = pool.lease(SIZE)
    assert address(again) == where
    assert pool.idle_bytes == 0


def strided(lease: Bytes) -> Any:
    return lease[10:20][::-3]


def typed(lease: Bytes) -> Any:
    return lease.view(np.float32).reshape(64, -1).T[3:5]


def scalar(lease: Bytes) -> Any:
    return lease.view(np.int64)[5:6].reshape(())


def wrapped(lease: Bytes) -> Any:
    return np.asarray(lease.data[100:200])


def subclass(lease: Bytes) -> Any:
    class Mine(np.ndarray[Any, Any]):
        pass

    return lease.view(Mine)[2:4].view(np.ndarray)


def read_only(lease: Bytes) -> Any:
    view = lease[4:]
    view.flags.writeable = False
    return view


def in_a_dlpack(lease: Bytes) -> Any:
    return np.from_dlpack(lease)


def placed(lease: Bytes, devices: int = 1) -> jax.Array:
    """A jax.Array on the memory of `lease`, one part a device."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), "d")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    rows = lease.view(np.float32).reshape(8, -1)
    array = jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])
    return jax.block_until_ready(array)


def eventually(condition: Callable[[], bool]) -> bool:
    """JAX may let go of memory on a thread of its own."""
    until(lambda: (gc.collect(), condition())[1])
    return True


def shard_of_eight(lease: Bytes) -> Any:
    return placed(lease, 8).addressable_shards[5].data


def view_of_an_array(lease: Bytes) -> Any:
    return np.asarray(placed(lease))[2:3]


def view_of_a_deleted_array(lease: Bytes) -> Any:
    array = placed(lease)
    view = np.asarray(array)
    array.delete()
    return view


def address_of(keeper: Any) -> int:
    if isinstance(keeper, np.ndarray):
        return address(keeper)
    shards = [shard.data.unsafe_buffer_pointer() for shard in keeper.addressable_shards]
    return int(shards[0])


VIEWS = [strided, typed, scalar, wrapped, subclass, read_only, in_a_dlpack]
ARRAYS = [placed, partial(placed, devices=8), shard_of_eight, view_of_an_array, view_of_a_deleted_array]


@pytest.mark.parametrize("keep", [*VIEWS, *ARRAYS], ids=lambda keep: getattr(keep, "__name__", "placed on 8"))
def test_views_and_jax_arrays_keep_their_memory_until_they_are_gone(keep: Callable[[Bytes], Any]) -> None:
    pool = BufferPool(1 << 20)
    lease = pool.lease(SIZE)
    lease.view(np.float32)[:] = 3.0
    start = address(lease)
    keeper = keep(lease)
    assert start <= address_of(keeper) < start + SIZE  # it is the lease's memory, no copy
    before = np.array(keeper)
    del lease
    gc.collect()
    assert pool.idle_bytes == 0
    for _ in range(4):
        pool.lease(SIZE).view(np.float32)[:] = -1.0
    assert np.array(keeper).tobytes() == before.tobytes()
    del keeper
    assert eventually(lambda: pool.idle_bytes == 2 * SIZE)


def test_a_computation_under_way_keeps_its_input() -> None:
    pool = BufferPool(1 << 24)

    @jax.jit
    def slow(x: jax.Array) -> jax.Array:
        y = jax.numpy.eye(256)
        return x.sum() + 0 * jax.lax.fori_loop(0, 40, lambda _, z: z @ y, y).sum()

    jax.block_until_ready(slow(np.zeros((8, SIZE // 32), np.float32)))
    for _ in range(5):
        lease = pool.lease(SIZE)
        lease.view(np.float32)[:] = 1.0
        total = slow(placed(lease))
        del lease
        pool.lease(SIZE).view(np.float32)[:] = -1.0
        assert float(total) == SIZE / 4


def test_many_threads_never_share_a_buffer() -> None:
    pool = BufferPool(8 * SIZE)
    wrong: list[int] = []

    def work(number: int) -> None:
        kept: list[Bytes] = []
        for turn in range(300):
            lease = pool.lease(SIZE >> (turn % 3))
            lease[:64] = number
            lease[-64:] = number
            kept = [*kept[-2:], lease[:64], lease[-64:]]
            if any((view != number).any() for view in kept):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert not wrong
    assert pool.idle_bytes <= 8 * SIZE


def test_memory_beyond_what_is_kept_goes_to_the_system() -> None:
    pool = BufferPool(3 * SIZE)
    leases = [pool.lease(SIZE) for _ in range(5)]
    leases.clear()
    assert pool.idle_bytes == 3 * SIZE
    nothing = BufferPool(0)
    lease = nothing.lease(SIZE)
    del lease
    assert nothing.idle_bytes == 0


def test_the_size_that_was_not_used_for_longest_goes_first() -> None:
    pool = BufferPool(3 * SIZE)
    small, large = pool.lease(SIZE), pool.lease(2 * SIZE)
    del small, large  # both idle: 3 SIZE
    large = pool.lease(2 * SIZE)
    other = pool.lease(2 * SIZE)
    del large, other  # 5 SIZE would be idle: the small one goes first, then one of the large ones
    assert pool.idle_bytes == 2 * SIZE
    again = pool.lease(2 * SIZE)
    assert pool.idle_bytes == 0
    del again


def test_a_collection_in_the_middle_of_a_lease_loses_nothing() -> None:
    """Python may collect garbage at any call inside `lease`, and so give back another lease on the same thread."""
    pool = BufferPool(1 << 20)
    first, cycle = pool.lease(SIZE), [pool.lease(SIZE)]
    del first

    class Collecting(type(pool._idle)):  # type: ignore[misc]
        def get(self, *args: Any) -> Any:
            found = super().get(*args)
            cycle.clear()
            return found

        def move_to_end(self, *args: Any) -> None:
            super().move_to_end(*args)
            cycle.clear()

        def pop(self, *args: Any) -> Any:
            found = super().pop(*args)
            cycle.clear()
            return found

    pool._idle = Collecting(pool._idle)
    lease = pool.lease(SIZE)
    assert not cycle
    assert pool.idle_bytes == SIZE == sum(memory.nbytes for stack in pool._idle.values() for memory in stack)
    del lease
    assert pool.idle_bytes == 2 * SIZE


def test_a_pool_that_is_gone_leaves_its_leases_alone() -> None:
    pool = BufferPool(1 << 20)
    lease = pool.lease(SIZE)
    lease[:] = 5
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert (lease == 5).all()
    del lease
    gc.collect()
    assert gone() is None


def test_columns_of_one_block_are_aligned_and_apart() -> None:
    kinds = [((3,), np.uint8), ((), np.float64), ((2, 0), np.int32)]
    specs = [ArraySpec(shape, np.dtype(kind)) for shape, kind in kinds]
    for rows in (0, 1, 7):
        columns = aligned_columns(specs, rows, aligned_bytes)
        assert [(column.shape, column.dtype) for column in columns] == [((rows, *s.shape), s.dtype) for s in specs]
        for value, column in enumerate(columns):
            column[...] = value
            assert column.ctypes.data % ALIGNMENT == 0 or not column.size
        assert all((column == value).all() for value, column in enumerate(columns))
