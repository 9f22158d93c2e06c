"""Key derivation and keyed permutations, which all orders and random streams of loadax are built on.

Nothing here keeps state or builds a table. Row `i` of an order of 10^12 rows costs as much as row `i` of an order of
ten, and any host, worker or later run computes the same value from the same integers. All of it is exact 64-bit integer
arithmetic, so values are the same on every machine and NumPy version; golden values in the tests pin them.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from loadax.core.arguments import MOST_POSITIONS
from loadax.core.formatting import type_text
from loadax.errors import ArgumentError, RowIndexError

# Version of `derive` and `permute`, which saved states record. A change of any of their values increments it.
ORDER_VERSION = 1

Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: splitmix64's increment
_STAFFORD = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_COUNT, _NEGATIVE, _LONG, _TEXT = (GOLDEN * tag & _MASK for tag in (1, 2, 3, 4))

# Every two rounds divide the excess of chi-square by the number of cells, so tiny sizes need the most rounds. Over
# 300,000 seeds no excess is left after 12 rounds, and for large sizes none after 4 to 6. The rest is margin.
_ROUNDS = 16
_ROUNDS_IF_LARGE = 8
_LARGE = np.uint64(4096)
_SPAN = 2048  # indices for which a block of their own pays
# indices per block: few enough for the scratch arrays to stay in the CPU cache
_BLOCK = 16384


def _word(value: int) -> Words:
    # Ufuncs are fastest with 0-d arrays: a Python int is converted at each call, and a NumPy scalar warns on overflow.
    return np.array(value, np.uint64)


_GOLDEN_WORD = _word(GOLDEN)
_SHIFT_31 = _word(31)
_SHIFT_32 = _word(32)
_STAFFORD_WORDS = tuple((_word(shift), _word(factor)) for shift, factor in _STAFFORD)
_FACTORS = (_word(0xD6E8FEB86659FD93), _word(0xA0761D6478BD642F))


def derive(seed: Any, *path: Any) -> Any:
    """Derives the 64-bit key at `path` below `seed`.

    Each path element starts a new stream of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014, with Stafford's mixer 13) and selects the output at its index. So two int elements in [0, 2**64)
    never give the same key after the same prefix, and other paths collide no more often than random 64-bit numbers.

    Args:
        seed: Int of any size and sign, or an array of integers.
        *path: Ints of any size and sign, strings, or arrays of integers. Arrays broadcast with each other and with
            `seed`; an element of an array counts as the Python int of that value.

    Returns:
        A Python int in [0, 2**64), or uint64[...] of the broadcast shape if any argument is an array.

    Raises:
        ArgumentError: If an element is a bool, a float or anything else but an integer or a string, or shapes don't
            broadcast.

    Examples:
        >>> import numpy as np
        >>> from loadax.seeds import derive
        >>> derive(0, "epoch", 3) == derive(0, "epoch", 3)
        True
        >>> [int(key) for key in derive(0, "epoch", np.arange(2))] == [derive(0, "epoch", 0), derive(0, "epoch", 1)]
        True
    """
    if isinstance(seed, str):
        raise ArgumentError(
            f"seed is {seed!r}, a string: pass an int, and strings after it, as in "
            f"derive(0, {seed!r})"
        )
    key: Any = 0
    for index, element in enumerate((seed, *path)):
        if index:
            name = f"path[{index - 1}]"
        else:
            name = "seed"
        tag, word = _tag_and_word(element, name)
        try:
            key = _absorb(key, tag, word)
        except ValueError:
            raise ArgumentError(
                f"{name} has shape {np.shape(word)}, which does not broadcast with "
                f"{np.shape(key)}, the shape of the elements before it"
            ) from None
    return key


def permute(index: Any, size: Any, seed: Any) -> Any:
    """Position of `index` in the permutation of [0, `size`) that `seed` selects; a bijection for every size and seed.

    A Feistel network over Z_a x Z_b, the smallest nearly square rectangle with `size` cells, with cycle walking for the
    few values that fall outside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). All three arguments
    broadcast.

    Args:
        index: Int or array of integers in [0, size).
        size: Int or array of integers in [1, 2**62].
        seed: Seed or key, as `derive` takes or returns them.

    Returns:
        int64[...] of the broadcast shape, or a Python int if all three arguments are scalars.

    Raises:
        ArgumentError: If a size is out of range, an argument does not consist of integers, or shapes don't broadcast.
        RowIndexError: If an index is outside [0, size).

    Examples:
        >>> import numpy as np
        >>> from loadax.seeds import permute, unpermute
        >>> sorted(permute(np.arange(5), 5, seed=7).tolist())
        [0, 1, 2, 3, 4]
        >>> unpermute(permute(3, 10**12, seed=7), 10**12, seed=7)
        3
    """
    return _permute(index, size, seed, inverse=False)


def unpermute(index: Any, size: Any, seed: Any) -> Any:
    """The inverse of `permute`: `unpermute(permute(i, size, seed), size, seed) == i`.

    Takes the same arguments and raises the same errors.
    """
    return _permute(index, size, seed, inverse=True)


def permute_by(
    index: NDArray[np.int64], which: NDArray[np.int64], sizes: Any, seeds: Any
) -> NDArray[np.int64]:
    """`permute(index, sizes[which], seeds[which])`, whose work for a size and a seed is done once for each.

    Args:
        index: int64[n], each in [0, size).
        which: Index of the size and the seed of each, int64[n].
        sizes: int64[m], in [1, 2**62].
        seeds: Seeds or keys, integer[m].

    Raises:
        ArgumentError: If a size is out of range.
        RowIndexError: If an index is outside [0, size).
    """
    # common; a scalar needs no lookup for each index
    alike = bool((sizes == sizes[0]).all())
    _check_range(index, sizes[0] if alike else sizes[which])
    values = index.astype(np.uint64)
    words = sizes.astype(np.uint64)
    keys = _as_words(derive(seeds, words))
    if alike:
        words = words[0]
    _walk(values, [words, *_rectangle(words), keys], which, inverse=False)
    return values.view(np.int64)


def _tag_and_word(element: Any, name: str) -> tuple[Any, Any]:
    """A tag for the type of `element` and 64 bits for its value; arrays of both for an array."""
    if isinstance(element, str):
        return _TEXT, _digest(element.encode("utf-8", "surrogatepass"))
    if type(element) is int:
        array = None
    else:
        array = _integers(element, name)
    if array is not None and array.ndim:
        return _tags_and_words(array)
    element = int(element)
    if element >= 0:
        word = element
    else:
        word = ~element
    if word > _MASK:
        return _LONG, _digest(
            element.to_bytes(word.bit_length() // 8 + 1, "little", signed=True)
        )
    return (_COUNT if element >= 0 else _NEGATIVE), word


def _tags_and_words(array: NDArray[Any]) -> tuple[Any, Words]:
    if array.dtype.kind == "u":
        return _COUNT, array.astype(np.uint64)
    array = array.astype(np.int64)
    negative = array < 0
    if not negative.any():
        return _COUNT, array.view(np.uint64)
    return np.where(negative, _word(_NEGATIVE), _word(_COUNT)), np.where(
        negative, ~array, array
    ).view(np.uint64)


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _absorb(key: Any, tag: Any, word: Any) -> Any:
    """Output `word` of the splitmix64 stream that (`key`, `tag`) starts."""
    if isinstance(key, int) and isinstance(tag, int) and isinstance(word, int):
        return scramble_int(scramble_int(key + tag) + word * GOLDEN)
    plain = isinstance(key, int) and isinstance(tag, int)
    start = (
        scramble_int(key + tag)
        if plain
        else scramble(np.add(_as_words(key), _as_words(tag)))
    )
    return scramble(
        np.add(_as_words(start), np.multiply(_as_words(word), _GOLDEN_WORD))
    )


def _as_words(value: Any) -> Words:
    return np.asarray(value, np.uint64)


def scramble_int(value: int) -> int:
    """Same as `scramble`, for an int, of which the lowest 64 bits count."""
    for shift, factor in _STAFFORD:
        value &= _MASK
        value = (value ^ value >> shift) * factor
    value &= _MASK
    return value ^ value >> 31


def scramble(values: Words) -> Words:
    """Applies Stafford's mixer 13, a bijection of 64-bit words, to each value in place, and returns them."""
    spare = np.empty_like(values)
    for shift, factor in _STAFFORD_WORDS:
        np.bitwise_xor(values, np.right_shift(values, shift, out=spare), out=values)
        np.multiply(values, factor, out=values)
    return np.bitwise_xor(
        values, np.right_shift(values, _SHIFT_31, out=spare), out=values
    )


def _permute(index: Any, size: Any, seed: Any, inverse: bool) -> Any:
    indices = _integers(index, "index")
    sizes = _integers(size, "size")
    try:
        shape = np.broadcast_shapes(indices.shape, sizes.shape, np.shape(seed))
    except ValueError:
        shapes = f"{indices.shape}, {sizes.shape} and {np.shape(seed)}"
        raise ArgumentError(
            f"index, size and seed have shapes {shapes}, which don't broadcast: give "
            "them one shape, or scalars"
        ) from None
    _check_range(indices, sizes)
    sizes = sizes.astype(np.uint64)
    keys = _as_words(derive(seed, sizes if sizes.ndim else int(sizes)))
    alone = math.prod(shape) == 1
    if alone:
        indices, sizes, keys = (array.reshape(()) for array in (indices, sizes, keys))
    # NumPy takes twice as long for one element as for two, so a single index is passed twice.
    values = (
        np.broadcast_to(indices, (2,) if alone else shape)
        .astype(np.uint64)
        .reshape(-1)
    )
    arrays = (sizes, *_rectangle(sizes), keys)
    parameters = [
        np.broadcast_to(array, shape).reshape(-1) if array.ndim else array
        for array in arrays
    ]
    _walk(values, parameters, None, inverse)
    if shape:
        return values[: math.prod(shape)].view(np.int64).reshape(shape)
    return int(values[0])


def _walk(
    values: Words,
    parameters: Sequence[Words],
    which: NDArray[np.int64] | None,
    inverse: bool,
) -> None:
    """Permutes `values` in place, with as many rounds as their sizes need; see `_walk_by_block`."""
    large = parameters[0] >= _LARGE
    if large.all() or not large.any():
        _walk_by_block(
            values,
            parameters,
            which,
            _ROUNDS_IF_LARGE if large.all() else _ROUNDS,
            inverse,
        )
        return
    for rounds, few in ((_ROUNDS, ~large), (_ROUNDS_IF_LARGE, large)):
        chosen = np.flatnonzero(few if which is None else few[which])
        part = values[chosen]
        if which is None:
            _walk_by_block(
                part, [array[chosen] for array in parameters], None, rounds, inverse
            )
        else:
            _walk_by_block(part, parameters, which[chosen], rounds, inverse)
        values[chosen] = part


def _walk_by_block(
    values: Words,
    parameters: Sequence[Words],
    which: NDArray[np.int64] | None,
    rounds: int,
    inverse: bool,
) -> None:
    """Permutes `values` in place, block by block.

    `parameters` are sizes, rows, columns and keys, of rank 0 or 1; `which` is the index in them for each value (None:
    in order).
    """
    *others, keys = parameters
    once = which is not None or not keys.ndim
    parameters = [*others, *(_round_keys(keys, rounds) if once else [keys])]
    for block in _blocks(values.size, which):
        index: Any
        if which is None:
            index = block
        else:
            index = which[block]
        if which is not None and (index[0] == index).all():
            index = (index[0], ...)  # scalars need no lookup
        sizes, rows, columns, *block_keys = (
            array[index] if array.ndim else array for array in parameters
        )
        if not once:
            block_keys = _round_keys(block_keys[0], rounds)
        _cycle_walk(values[block], sizes, rows, columns, block_keys, inverse)


def _blocks(size: int, which: NDArray[np.int64] | None) -> Iterator[slice]:
    """Cuts `size` values into blocks; where neighbours mostly share their element of `which`, at its changes too."""
    cuts = np.arange(0, size, _BLOCK)
    if which is not None:
        changes = np.flatnonzero(which[1:] != which[:-1]) + 1
        if len(changes) * _SPAN <= size:
            cuts = np.union1d(cuts, changes)
    return map(slice, cuts.tolist(), [*cuts[1:].tolist(), size])


def _rectangle(sizes: Words) -> tuple[Words, Words]:
    """Sides of a nearly square rectangle with at least `sizes` cells, and few more.

    It is larger than necessary for two reasons. Adding modulo an odd number is an even permutation, so two odd sides
    would reach only half of the orders: one side is even. And a side of two or three next to a longer one mixes slowly:
    tiny rectangles are squares.
    """
    last = sizes.reshape(-1) - np.uint64(1)
    root = np.sqrt(last.astype(np.float64)).astype(np.uint64)
    # float64 rounds `last` to 53 bits, which can round the root up to the next integer, but never down.
    root -= (root * root > last).astype(np.uint64)
    rows = root + np.uint64(1)
    columns = np.maximum((last + rows) // rows, np.minimum(rows, np.uint64(4)))
    columns += rows & columns & np.uint64(1)
    return rows.reshape(sizes.shape), columns.reshape(sizes.shape)


def _round_keys(keys: Words, rounds: int) -> list[Words]:
    steps = np.arange(1, rounds + 1, dtype=np.uint64) * _GOLDEN_WORD
    if not keys.ndim:
        mixed = scramble(steps + keys)
        return [mixed[round_index, ...] for round_index in range(rounds)]
    return [
        scramble(np.add(keys, steps[round_index, ...]))
        for round_index in range(rounds)
    ]


def _cycle_walk(
    values: Words,
    sizes: Words,
    rows: Words,
    columns: Words,
    keys: list[Words],
    inverse: bool,
) -> None:
    """Enciphers `values` in place, and repeats that for values outside [0, size) until there are none."""
    _encipher(values, rows, columns, keys, inverse)
    outside = np.flatnonzero(values >= sizes)
    while outside.size:
        if outside.size == 1:
            # faster, see `_permute`; both copies write the same value
            outside = outside.repeat(2)
        again = values[outside]
        sizes_, rows_, columns_, *keys_ = (
            array[outside] if array.ndim else array
            for array in (sizes, rows, columns, *keys)
        )
        _encipher(again, rows_, columns_, keys_, inverse)
        values[outside] = again
        outside = outside[again >= sizes_]


def _encipher(
    values: Words, rows: Words, columns: Words, keys: Sequence[Words], inverse: bool
) -> None:
    """One pass of the Feistel network over Z_rows x Z_columns, in place."""
    first = np.floor_divide(values, columns)
    second = np.subtract(values, first * columns)
    hashed = np.empty_like(values)
    spare = np.empty_like(values)
    multiply = np.multiply
    xor = np.bitwise_xor
    right_shift = np.right_shift
    minimum = np.minimum
    shift, wrap = (np.subtract, np.add) if inverse else (np.add, np.subtract)
    half = _SHIFT_32
    (factor, other_factor) = _FACTORS
    halves = ((first, second, rows), (second, first, columns))
    for round_index in range(len(keys) - 1, -1, -1) if inverse else range(len(keys)):
        target, other, modulus = halves[round_index & 1]
        xor(other, keys[round_index], hashed)
        multiply(hashed, factor, hashed)
        xor(hashed, right_shift(hashed, half, spare), hashed)
        multiply(hashed, other_factor, hashed)
        right_shift(hashed, half, hashed)
        multiply(hashed, modulus, hashed)
        right_shift(hashed, half, hashed)
        shift(target, hashed, target)
        # Modulo without a division: of the two candidates, the one outside [0, modulus) is the larger, since it may
        # have wrapped around.
        minimum(target, wrap(target, modulus, spare), out=target)
    np.add(multiply(first, columns, values), second, values)


def _integers(value: Any, name: str) -> NDArray[Any]:
    """`value` as an array of integers.

    A Python int that fits no dtype becomes an object array of rank 0.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise ArgumentError(
            f"{name} is {value!r:.80}, which is ragged: pass an int or an array of "
            "integers"
        ) from None
    if array.dtype.kind in "iu" or (
        isinstance(value, int) and array.dtype.kind == "O"
    ):
        return array
    if array.ndim:
        what = f"an array of dtype {array.dtype}"
    else:
        what = f"{value!r:.80}, {type_text(value)}"
    raise ArgumentError(f"{name} is {what}: pass an int or an array of integers")


def _check_range(indices: NDArray[Any], sizes: NDArray[Any]) -> None:
    wrong = np.asarray((sizes < 1) | (sizes > MOST_POSITIONS))
    if wrong.any():
        raise ArgumentError(
            f"size is {int(sizes[wrong].flat[0])}: an order has from 1 to 2**62 rows"
        )
    wrong = np.asarray((indices < 0) | (indices >= sizes))
    if wrong.any():
        value, size = (
            int(np.broadcast_to(array, wrong.shape)[wrong].flat[0])
            for array in (indices, sizes)
        )
        raise RowIndexError(
            f"index is {value}, out of range: indices of an order of "
            f"size {size} are in [0, {size})"
        )


def row_generator(seed: int, place: int, epoch: int, row: int) -> np.random.Generator:
    """Creates the random number generator of one row. It, and all that it spawns, depend on these four integers alone.

    Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) is a keyed function of a counter. The
    key is the seed and the map's index in the chain, and row and epoch are the upper half of the counter, so no two
    streams overlap.
    """
    words = np.array([_key(seed), place, 0, 0, row, epoch], np.uint64)
    # any ISeedSequence will do, which NumPy's types don't tell
    seed_sequence: Any = RowSeed(words)
    return np.random.Generator(np.random.Philox(seed_sequence, counter=words[2:]))


@lru_cache(maxsize=256)
def _key(seed: int) -> int:
    return int(derive(seed, "map"))


@final
class RowSeed(ISpawnableSeedSequence):
    """Seed sequence of one row, as NumPy's bit generators take it.

    With `Philox(key=...)`, NumPy asks the operating system for entropy to spawn from. That takes longer than everything
    else here, and spawned generators differ in every run.

    Args:
        words: Key and counter, uint64[6].
    """

    def __init__(self, words: NDArray[np.uint64]):
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Returns the key to Philox. Other bit generators get words that are derived from key and counter."""
        if n_words == 2 and np.dtype(dtype) == np.uint64:
            return self._words[:2]
        return self._sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        """Seed sequences of `n_children` further generators."""
        return self._sequence.spawn(n_children)

    @cached_property
    def _sequence(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._words.astype("<u8").view("<u4").tolist())
