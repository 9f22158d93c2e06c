"""The even patterns of `loadax.plan.even` by recursion, with Python's integers and nothing but lists."""

from itertools import pairwise

from loadax.seeds import derive, scramble_int

CELL = 64
MOST_ROTATED = 4096  # slots of a block that rotates one of 64 patterns; larger blocks have one each


def even_block(seed: int, weights: tuple[int, ...], block: int) -> list[int]:
    """Part of each slot of a block."""
    size = sum(weights)
    if size > MOST_ROTATED:
        return even_pattern(seed, weights, block)
    turn = derive(seed, "rotation", block) % size
    slots = even_pattern(seed, weights, derive(seed, "pattern", block) % 64)
    return slots[turn:] + slots[:turn]


def even_pattern(seed: int, weights: tuple[int, ...], pattern: int) -> list[int]:
    """Part of each slot of a pattern."""
    parts = [part for part, weight in enumerate(weights) if weight]
    slots = [weights[part] for part in parts]
    size = sum(slots)
    word = derive(seed, "even pattern", pattern)

    def fill(low: int, high: int, begin: int, end: int, cell_word: int) -> list[int]:
        """Parts of the slots `begin` to `end` of a node, whose leaves are `low` to `high`."""
        count = end - begin
        if high - low == 1:
            return [parts[low]] * count
        total, half = sum(slots[low:high]), sum(slots[low:high]) // 2
        # The cut nearest to half; of two as near, the later one.
        middle = min(range(low + 1, high), key=lambda cut: (abs(sum(slots[low:cut]) - half), -cut))
        left, key = sum(slots[low:middle]), derive(seed, "even", middle)
        offset = scramble_int(word ^ key) % total
        left_begin, left_end = ((edge * left + offset) // total for edge in (begin, end))
        lefts = iter(fill(low, middle, left_begin, left_end, cell_word))
        rights = iter(fill(middle, high, begin - left_begin, end - left_end, cell_word))
        left_count, cell_offset = left_end - left_begin, (scramble_int(cell_word ^ key) >> 32) * count >> 32
        before = [(slot * left_count + cell_offset) // count for slot in range(count + 1)] if count else [0]
        return [next(lefts if after > here else rights) for here, after in pairwise(before)]

    slots_of_cells = range(0, size, CELL)
    ends = (min(begin + CELL, size) for begin in slots_of_cells)
    words = (scramble_int(word + begin // CELL) for begin in slots_of_cells)
    cells = (fill(0, len(parts), *cell) for cell in zip(slots_of_cells, ends, words, strict=True))
    return [part for cell in cells for part in cell]
