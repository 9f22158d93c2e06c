import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loadax import seeds
from loadax.errors import ArgumentError, RowIndexError
from loadax.seeds import derive, permute, unpermute

WORD = 1 << 64
AROUND_POWERS_OF_FOUR = [4**power + offset for power in range(5, 10) for offset in (-1, 0, 1)]

# What version 1 gives. A change here is a new order for everybody's runs: raise ORDER_VERSION with it.
GOLDEN_KEYS = [
    5197578548964807871,
    12035550249420947055,
    14804455941960215590,
    17082178867596717304,
    6752573004810752849,
    9451143353636776879,
]
GOLDEN_LONG_KEYS = [6683382310413815350, 3376029959898191731, 9923810574119708315, 90142966704036519]
GOLDEN_ARRAY_KEYS = [2442621855899621710, 920862675595841680]
GOLDEN_TEN = [0, 1, 2, 4, 9, 3, 7, 8, 5, 6]
GOLDEN_THOUSAND = [952, 581, 948, 254, 314]
GOLDEN_TRILLION = [353711588805, 914522603610, 619974668644]
GOLDEN_LARGEST = [4212344453012409476, 1203961668159601430]


def orders(size: int, seeds: Any) -> Any:
    """One order a line: int64[len(seeds), size]."""
    return permute(np.arange(size)[None], size, np.asarray(seeds)[:, None])


def seed_sets(count: int) -> dict[str, Any]:
    """Seeds as people choose them: 0, 1, 2, …; and as the epochs of one of them."""
    return {
        "consecutive": np.arange(count),
        "epochs": derive(3, np.arange(count)),
        "negative": -np.arange(1, count + 1),
    }


def unevenness(counts: Any) -> float:
    """How many standard deviations chi-square lies above what equally likely cells give."""
    counts = np.asarray(counts, float).ravel()
    freedom = counts.size - 1
    return (((counts - counts.mean()) ** 2).sum() / counts.mean() - freedom) / math.sqrt(2 * freedom)


# What derive gives.


def test_derive_gives_python_ints_of_64_bits() -> None:
    for seed in (0, 1, -1, WORD - 1, WORD, -WORD, 10**100, np.int8(-3), np.uint64(WORD - 1)):
        key = derive(seed, 5, "name", -(10**30))
        assert type(key) is int
        assert 0 <= key < WORD


def test_derive_golden_values() -> None:
    assert seeds.ORDER_VERSION == 1
    assert [derive(0), derive(1), derive(-1), derive(0, 0), derive(0, 1), derive(1, 0)] == GOLDEN_KEYS
    assert [derive(10**30), derive(-(10**30)), derive(0, "epoch"), derive(7, "é", 2, -3)] == GOLDEN_LONG_KEYS
    assert derive(np.array([-1, 1]), 2).tolist() == GOLDEN_ARRAY_KEYS


def test_derive_tells_all_paths_apart() -> None:
    numbers = [0, 1, 2, -1, -2, WORD - 1, WORD, WORD + 1, -WORD, -WORD - 1, 1 << 63, -(1 << 63), 1 << 200, -(1 << 200)]
    words = ["", "0", "1", "a", "b", "ab", "\ud800"]
    paths = [
        (number, *path) for number in numbers for path in ((), *((end,) for end in [*numbers, *words]), (1, 2), (2, 1))
    ]
    paths += [(0, "a", 0), (0, "a", "b"), (0, "b", "a"), (0, "ab", ""), (0, "", "ab"), (0, 0, 0), (0, 0, 0, 0)]
    assert len({derive(*path) for path in set(paths)}) == len(set(paths))


def test_derive_is_injective_in_its_last_element() -> None:
    assert np.unique(derive(0, np.arange(200_000))).size == 200_000
    edges = np.array([0, 1, (1 << 63) - 1, 1 << 63, WORD - 2, WORD - 1], np.uint64)
    assert np.unique(derive(5, "x", edges)).size == edges.size
    # The mixer and the factor before it are bijections of 64 bits, which is where injectivity comes from.
    for word in (0, 1, WORD - 1, 0x0123456789ABCDEF):
        assert unmixed(seeds.scramble_int(word)) == word
    assert seeds.GOLDEN % 2 == 1


def unmixed(word: int) -> int:
    """The inverse of splitmix64's mixer, its steps undone from the last to the first."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        word ^= word >> shift ^ word >> 2 * shift
        word = word * pow(factor, -1, WORD) % WORD
    return word


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_derive_of_an_array_is_derive_of_its_elements(dtype: type[np.integer[Any]]) -> None:
    limits = np.iinfo(dtype)
    array = np.array([limits.min, limits.max, 0, 1, 7], dtype)
    expected = [int(value) for value in array]
    assert derive(array).tolist() == [derive(value) for value in expected]
    assert derive(3, array, "x", -5).tolist() == [derive(3, value, "x", -5) for value in expected]
    assert derive(array[:1], 2).tolist() == [derive(expected[0], 2)]
    assert derive(array[0], 2) == derive(expected[0], 2)
    assert derive(np.array(array[0]), 2) == derive(expected[0], 2)


def test_derive_broadcasts() -> None:
    left, right = np.arange(-2, 2)[:, None], np.arange(3, dtype=np.uint64)
    keys = derive(left, "x", right)
    assert keys.shape == (4, 3)
    assert keys.dtype == np.uint64
    assert keys.tolist() == [[derive(int(a), "x", int(b)) for b in right] for a in left[:, 0]]
    assert derive(np.zeros((0, 2), np.int64), 1).shape == (0, 2)


def test_keys_of_consecutive_places_are_even_in_every_bit() -> None:
    for keys in (derive(np.arange(100_000)), derive(0, np.arange(100_000)), derive(0, "a", np.arange(100_000), 0)):
        bits = np.unpackbits(keys.view(np.uint8)).reshape(-1, 64)
        assert np.abs(bits.mean(0) - 0.5).max() < 4.5 * 0.5 / math.sqrt(100_000)
        changed = np.unpackbits((keys[1:] ^ keys[:-1]).view(np.uint8)).reshape(-1, 64)
        assert np.abs(changed.mean(0) - 0.5).max() < 4.5 * 0.5 / math.sqrt(100_000)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ((True,), r"seed is True, a bool: pass an int or an array of integers"),
        ((np.True_,), r"seed is np.True_, a bool: pass an int"),
        ((1.5,), r"seed is 1.5, a float: pass an int"),
        (("a",), r"seed is 'a', a string: pass an int, and strings after it, as in derive\(0, 'a'\)"),
        ((0, 1, 2.0), r"path\[1\] is 2.0, a float: pass an int"),
        ((0, None), r"path\[0\] is None, a NoneType: pass an int"),
        ((0, np.array([True])), r"path\[0\] is an array of dtype bool: pass an int"),
        ((0, np.arange(2.0)), r"path\[0\] is an array of dtype float64: pass an int"),
        ((0, [[1], [2, 3]]), r"path\[0\] is \[\[1\], \[2, 3\]\], which is ragged: pass an int"),
        ((0, np.arange(3), np.arange(2)), r"path\[1\] has shape \(2,\), which does not broadcast with \(3,\)"),
    ],
)
def test_derive_refuses(path: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        derive(*path)


# Every order is a bijection.


def test_permute_golden_values() -> None:
    assert permute(np.arange(10), 10, 0).tolist() == GOLDEN_TEN
    assert permute(np.arange(5), 1000, -1).tolist() == GOLDEN_THOUSAND
    assert permute([0, 1, 10**12 - 1], 10**12, derive(3, "epoch", 1)).tolist() == GOLDEN_TRILLION
    assert permute([0, 2**62 - 1], 2**62, 2**100).tolist() == GOLDEN_LARGEST


def test_bijective_for_every_small_size() -> None:
    for size in range(1, 301):
        order = permute(np.arange(size), size, size % 7)
        assert np.array_equal(np.sort(order), np.arange(size)), size
        assert np.array_equal(unpermute(order, size, size % 7), np.arange(size)), size


@pytest.mark.parametrize("size", [*AROUND_POWERS_OF_FOUR, 10**6])
def test_bijective_for_large_sizes(size: int) -> None:
    order = permute(np.arange(size), size, 1)
    assert np.array_equal(np.bincount(order, minlength=size), np.ones(size))
    assert np.array_equal(unpermute(order, size, 1), np.arange(size))


def test_round_trip_up_to_the_largest_size() -> None:
    choice = random.Random(0)
    roots = [choice.randrange(2, 1 << 31) for _ in range(200)]
    sizes = [choice.randrange(1, 1 << choice.randrange(1, 63)) for _ in range(1000)]
    sizes += [root * root + offset for root in roots for offset in (-1, 0, 1)]
    sizes += [(1 << 62) - offset for offset in range(200)] + [((1 << 31) - 1) ** 2 + offset for offset in (-1, 0, 1)]
    index = np.array([choice.randrange(size) for size in sizes])
    places = permute(index, np.array(sizes), 5)
    assert places.dtype == np.int64
    assert (places >= 0).all()
    assert (places < np.array(sizes)).all()
    assert np.array_equal(unpermute(places, np.array(sizes), 5), index)


def test_the_rectangle_holds_every_size() -> None:
    choice = random.Random(1)
    sizes = [*range(1, 5000), *(1 << bits for bits in range(63)), *(choice.randrange(1, 1 << 62) for _ in range(1000))]
    sizes += [root * root + offset for root in (*range(2, 99), 94906267, (1 << 31) - 1) for offset in (-1, 0, 1)]
    for size, rows, columns in zip(
        sizes, *(side.tolist() for side in seeds._rectangle(np.array(sizes, np.uint64))), strict=True
    ):
        assert size <= rows * columns <= 1 << 62
        assert rows == math.isqrt(size - 1) + 1
        assert rows % 2 == 0 or columns % 2 == 0
        assert rows * columns - size <= max(2 * rows, 7)


# Arguments of every shape.


def test_broadcasting_equals_a_loop_over_scalars() -> None:
    index = np.array([0, 1, 2, 4, 0])
    sizes = np.array([[5], [1000], [2**62]])
    keys = derive(0, np.arange(2))[:, None, None]
    for function in (permute, unpermute):
        result = function(index, sizes, keys)
        assert result.shape == (2, 3, 5)
        assert result.dtype == np.int64
        for place in np.ndindex(result.shape):
            expected = function(int(index[place[2]]), int(sizes[place[1], 0]), int(keys[place[0], 0, 0]))
            assert type(expected) is int
            assert result[place] == expected


def test_small_sizes_mixed_into_large_ones_change_nothing() -> None:
    sizes = np.resize([1, 2, 3, 7, 10**9, 17, 2**62, 1001], 40_000)  # more than one block
    index = np.arange(40_000) % np.minimum(sizes, 40_000)
    keys = derive(1, np.arange(40_000) % 5)
    together = permute(index, sizes, keys)
    assert np.array_equal(unpermute(together, sizes, keys), index)
    for size in np.unique(sizes).tolist():
        for key in np.unique(keys).tolist():
            chosen = (sizes == size) & (keys == key)
            assert np.array_equal(together[chosen], permute(index[chosen], size, key))


def test_one_element_in_any_shape() -> None:
    expected = permute(5, 1000, 3)
    for index, size, seed in (
        (np.array([5]), 1000, 3),
        (5, np.array([[1000]]), 3),
        (5, 1000, np.array([3])),
        ([5], [1000], [3]),
    ):
        result = permute(index, size, seed)
        assert result.shape == np.broadcast_shapes(np.shape(index), np.shape(size), np.shape(seed))
        assert result.ravel().tolist() == [expected]
    assert type(permute(np.int64(5), np.array(1000), np.uint64(3))) is int
    assert permute(np.int64(5), np.array(1000), np.uint64(3)) == expected


def test_no_elements() -> None:
    assert permute(np.zeros((0, 3), np.int64), 5, 0).shape == (0, 3)
    assert permute(np.arange(0), np.arange(0), np.arange(0)).shape == (0,)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_every_integer_dtype(dtype: type[np.integer[Any]]) -> None:
    index = np.arange(100, dtype=dtype)[::-2]  # strided, and not written to
    index.flags.writeable = False
    assert np.array_equal(permute(index, dtype(100), 4), permute(np.arange(100)[::-2], 100, 4))
    assert derive(index, index).tolist() == derive(index.copy(), index.copy()).tolist()


# Every order is as likely as every other.


@pytest.mark.parametrize("name", ["consecutive", "epochs", "negative"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_a_tiny_size_are_equally_likely(size: int, name: str) -> None:
    found = orders(size, seed_sets(300_000)[name])
    _, counts = np.unique(found @ size ** np.arange(size), return_counts=True)
    assert counts.size == math.factorial(size)
    assert unevenness(counts) < 4.5


@pytest.mark.parametrize("size", [6, 7, 9, 16, 25, 100])
def test_every_row_lands_everywhere_and_is_followed_by_every_row(size: int) -> None:
    for name, chosen in seed_sets(1_200_000 // size).items():
        found = orders(size, chosen)
        rows = np.broadcast_to(np.arange(size), found.shape)
        landed = np.bincount((rows * size + found).ravel())
        assert unevenness(landed) < 4.5, name
        followed = np.bincount(((found[:, 1:] - found[:, :-1]) % size).ravel(), minlength=size)
        assert followed[0] == 0
        assert unevenness(followed[1:]) < 4.5, name
        first, second, third, fourth = (found[:, place] for place in (0, 1, size // 2, size - 1))
        for left, right in ((first, second), (first, third), (second, fourth)):
            pairs = np.bincount(left * size + right, minlength=size * size).reshape(size, size)
            assert unevenness(pairs[~np.eye(size, dtype=bool)]) < 4.5, name


@pytest.mark.parametrize("size", [4, 5, 9, 16, 25])
def test_odd_orders_are_as_likely_as_even_ones(size: int) -> None:
    for name, chosen in seed_sets(50_000).items():
        found = orders(size, chosen)
        inversions = sum((found[:, :place] > found[:, place : place + 1]).sum(1) for place in range(size))
        assert unevenness(np.bincount(inversions % 2, minlength=2)) < 4.5, name


@pytest.mark.parametrize("size", [1000, 65_535, 65_536, 65_537, 10**6, 10**9])
def test_large_orders_are_even(size: int) -> None:
    for name, chosen in seed_sets(2_000).items():
        start = permute(np.arange(200)[None], size, chosen[:, None])
        landed = start * 50 // size
        assert unevenness(np.bincount(landed.ravel())) < 4.5, name
        steps = ((start[:, 1:] - start[:, :-1]) % size - 1) * 50 // (size - 1)
        assert unevenness(np.bincount(steps.ravel())) < 4.5, name
        pairs = landed[:, 1:] * 50 + landed[:, :-1]
        # neighbours overlap, and rows don't repeat
        assert unevenness(np.bincount(pairs.ravel(), minlength=2500)) < 5.5, name


def test_orders_of_neighbouring_seeds_epochs_and_sizes_have_nothing_in_common() -> None:
    index, count = np.arange(64), 4_000
    keys = derive(np.arange(count)[:, None], 0)
    neighbours = {
        "seed": permute(index, 64, derive(np.arange(1, count + 1)[:, None], 0)),
        "epoch": permute(index, 64, derive(np.arange(count)[:, None], 1)),
        "size": permute(index, 65, keys),
    }
    order = permute(index, 64, keys)
    for name, other in neighbours.items():
        assert unevenness(np.bincount((order * 65 + other).ravel(), minlength=64 * 65).reshape(64, 65)[:, :64]) < 4.5, (
            name
        )
        agreeing = (order == other).sum() / count
        assert abs(agreeing - 1) < 4.5 / math.sqrt(count), name


def test_no_two_pairs_of_seed_and_epoch_share_an_order() -> None:
    keys = derive(np.arange(-50, 50)[:, None], np.arange(100)).ravel()
    assert np.unique(keys).size == keys.size
    found = permute(np.arange(100)[None], 100, keys[:, None])
    assert np.unique(found, axis=0).shape[0] == keys.size


# What permute refuses.


@pytest.mark.parametrize("function", [permute, unpermute])
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((5, 5, 0), RowIndexError, r"index is 5, out of range: indices of an order of size 5 are in \[0, 5\)"),
        ((-1, 5, 0), RowIndexError, r"index is -1, out of range: .* \[0, 5\)"),
        ((2**70, 5, 0), RowIndexError, r"index is 1180591620717411303424, out of range: .* \[0, 5\)"),
        (
            (np.uint64(2**64 - 1), 5, 0),
            RowIndexError,
            r"index is 18446744073709551615, out of range: .* \[0, 5\)",
        ),
        (
            (np.arange(3), np.array([5, 1, 2], np.int8), 0),
            RowIndexError,
            r"index is 1, out of range: .* \[0, 1\)",
        ),
        ((0, 0, 0), ArgumentError, r"size is 0: an order has from 1 to 2\*\*62 rows"),
        ((0, -3, 0), ArgumentError, r"size is -3: an order has"),
        ((0, 2**62 + 1, 0), ArgumentError, r"size is 4611686018427387905: an order has"),
        ((0, 2**80, 0), ArgumentError, r"size is 1208925819614629174706176: an order has"),
        ((0, np.array([5, 0]), 0), ArgumentError, r"size is 0: an order has"),
        ((1.0, 5, 0), ArgumentError, r"index is 1.0, a float: pass an int or an array of integers"),
        ((True, 5, 0), ArgumentError, r"index is True, a bool: pass an int"),
        ((np.arange(2.0), 5, 0), ArgumentError, r"index is an array of dtype float64: pass an int"),
        (([2**70], 5, 0), ArgumentError, r"index is an array of dtype object: pass an int"),
        ((0, 5.0, 0), ArgumentError, r"size is 5.0, a float: pass an int"),
        ((0, 5, 0.5), ArgumentError, r"seed is 0.5, a float: pass an int"),
        ((0, 5, "a"), ArgumentError, r"seed is 'a', a string: pass an int"),
        (
            (np.arange(3), np.array([5, 6]), 0),
            ArgumentError,
            r"index, size and seed have shapes \(3,\), \(2,\) and \(\), which don't",
        ),
    ],
)
def test_permute_refuses(
    function: Callable[..., Any], arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        function(*arguments)


@pytest.mark.parametrize("sizes", [(9, 70_000, 4096), (70_000, 80_000, 90_000), (4000, 4000, 4000)])
def test_permuting_long_runs_of_one_size_and_seed_is_permuting_each_index(sizes: tuple[int, ...]) -> None:
    """Also with ends of runs inside of blocks of indices, and runs that span several."""
    keys = derive(5, np.arange(3))
    for runs in ([5000, 1, 40_000, 3000, 7], [16_384, 16_384], [20_000], [1, 2, 3]):
        which = np.repeat(np.arange(len(runs)) % 3, runs)
        index = np.arange(len(which)) * 1_000_003 % np.array(sizes)[which]
        expected = permute(index, np.array(sizes)[which], keys[which])
        np.testing.assert_array_equal(seeds.permute_by(index, which, np.array(sizes), keys), expected)


def test_permuting_by_a_few_sizes_and_seeds_is_permuting_with_one_of_them() -> None:
    """Of small sizes and of large ones, which take other numbers of rounds."""
    keys = derive(4, np.arange(3))
    for sizes in ([1, 5, 300], [5000, 4096], [3, 70_000, 10], [7, 7, 7], [70_000, 70_000]):
        which = np.tile(np.arange(len(sizes)), 7)
        index = np.arange(len(which)) * 1_000_003 % np.array(sizes)[which]
        expected = [permute(int(at), sizes[one], int(keys[one])) for at, one in zip(index, which, strict=True)]
        assert seeds.permute_by(index, which, np.array(sizes), keys[: len(sizes)]).tolist() == expected
    with pytest.raises(RowIndexError, match=r"index is 5, out of range: indices of an order of size 5"):
        seeds.permute_by(np.array([5]), np.array([0]), np.array([5]), keys[:1])
