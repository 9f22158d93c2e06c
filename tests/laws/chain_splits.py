"""Random chains that end in a split, and the law for its parts: they read no value of the same row, or are refused.

Rows are documents of values that occur once: those of row r are 100 r + 100 and the next ones. Whatever verbs do to
them, the values that a dataset reads tell the rows that it is made of.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import loadax
from loadax import Dataset
from loadax.core.tree import flatten
from loadax.errors import LoadaxError

EPOCHS = 3
_MOST = 80  # rows, so that chains stay quick


@dataclass
class Splits:
    """Counts of what was tried: chains, parts that were compared, and refusals."""

    chains: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def check(random: Random, counts: Splits) -> None:
    """Checks one chain that is split in some way.

    Raises:
        AssertionError: When two parts read a row of the data in any of some epochs.
    """
    counts.chains += 1
    story: list[str] = []
    try:
        data = _data(random, story)
        for _ in range(random.randint(0, 4)):
            data = _one_more(random, data, story)
        split = random.choice(_SPLITS)
        parts = split(random, data, story)
        parts = [_one_more(random, part, story) for part in parts] if random.random() < 0.5 else parts
        seen = [_rows(part) for part in parts]
    except LoadaxError as error:  # also of windows over ragged rows, when they are read
        counts.refused[re.sub(r"[\d(\[].*", "", str(error))] += 1
        return
    counts.compared[split.__name__] += 1
    for index, rows in enumerate(seen):
        for other in seen[:index]:
            assert not rows & other, (story, sorted(rows & other))


def _rows(part: Dataset) -> set[int]:
    """Rows of the data that a dataset reads in some epochs, by their values."""
    rows: set[int] = set()
    for epoch in range(EPOCHS):
        positions = np.arange(len(part))
        for example in part.reader.examples(part.order.visits(np.full_like(positions, epoch), positions)):
            rows |= _rows_of(example)
    return rows - {-1}


def _rows_of(example: Any) -> set[int]:
    named = example
    while isinstance(named, dict):
        named = next(named[name] for name in ("tokens", "inputs", "data") if name in named)
    leaves, _ = flatten(named)
    return {row for leaf in leaves for row in (np.asarray(leaf).reshape(-1) // 100 - 1).tolist()}


def _first_row(example: Any) -> int:
    return min(_rows_of(example), default=0)


def _halves(example: Any) -> list[Any]:
    return [example, example] if isinstance(example, dict) else [example[:1], example[1:]]


def _data(random: Random, story: list[str]) -> Dataset:
    count, ragged = random.randint(2, 24), random.random() < 0.4
    story.append(f"{count} rows{' of documents' * ragged}")
    rows = [np.arange(random.randint(1, 7) if ragged else 4) + 100 * row + 100 for row in range(count)]
    return loadax.from_source(rows) if ragged else loadax.from_arrays(np.array(rows))


def _one_more(random: Random, data: Dataset, story: list[str]) -> Dataset:
    """The dataset with one more verb, the same arguments for both parts of a split as far as they go."""
    seed, number, size = random.randint(0, 5), random.randint(1, 6), len(data)
    if not 0 < size <= _MOST:
        return data
    offsets = [*range(0, size, number), size]
    verbs: dict[str, Callable[[], Dataset]] = {
        "shuffle": lambda: data.shuffle(seed),
        "map": lambda: data.map(lambda row: row),
        "map_batch": lambda: data.map_batch(lambda rows: rows),
        "shuffle again": lambda: data.shuffle(seed + 7),
        "shuffle blocks": lambda: data.shuffle(seed, block=number, window=2, lanes=2),
        "slice": lambda: data[number % 3 :: 1 + number % 2],
        "reverse": lambda: data[::-1],
        "select": lambda: data.select([each * 5 % size for each in range(size // 2 + 1)]),
        "split": lambda: data.split(0.7, seed)[seed % 2],
        "runs": lambda: data.split(0.7, contiguous=True)[seed % 2],
        "windows": lambda: data.windows(1 + number // 2, stride=1 + seed % 3),
        "windows within": lambda: data.windows(
            1 + number // 2, stride=1 + seed % 3, within=offsets, pad=(None, "edge")[seed % 2], short="drop"
        ),
        "shuffle groups": lambda: data.shuffle(seed, by=offsets),
        "sample groups": lambda: data.sample(np.diff(offsets), size, seed, by=offsets),
        "flat_map": lambda: data.flat_map(lambda row: [row, row], fan_out=2),
        "halves": lambda: data.flat_map(_halves, counts=[2] * size),
        "pack": lambda: data.pack(number + 3),
        "pack whole": lambda: data.pack(8, method="best_fit", long="cut"),
        "filter": lambda: data.filter(lambda row: _first_row(row) % 5 != seed, workers=1),
        "exclude": lambda: data.exclude([number]),
        "group": lambda: data.group(number + 1, sizes=lambda _: 1 + seed % 2),
        "repeat": lambda: data.repeat(2),
        "concat": lambda: loadax.concat([data, data.shuffle(seed)]),
        "concat parts": lambda: loadax.concat(data.split(3, seed)[1:]),
        "sample": lambda: data.sample(np.arange(1, size + 1), size, seed),
        "mix": lambda: loadax.mix([data.shuffle(seed), data], [2, 1]),
        "zip": lambda: data[:-1].zip(data[1:]),
    }
    name = random.choice([*verbs, "shuffle", "shuffle"])
    story.append(f"{name} {seed} {number}")
    return verbs[name]()


def _fraction(random: Random, data: Dataset, _: list[str]) -> Sequence[Dataset]:
    return data.split(random.choice([0.3, 0.5, 0.8]), random.randint(0, 3))


def _counts(random: Random, data: Dataset, _: list[str]) -> Sequence[Dataset]:
    first = random.randint(1, max(1, len(data) - 1))
    return data.split([first, len(data) - first], random.randint(0, 3))


def _folds(random: Random, data: Dataset, _: list[str]) -> Sequence[Dataset]:
    folds = data.split(random.randint(2, 4), random.randint(0, 3))
    return loadax.concat(folds[1:]), folds[0]


def _runs(random: Random, data: Dataset, story: list[str]) -> Sequence[Dataset]:
    gap = random.randint(0, 4)
    story.append(f"runs with a gap of {gap}")
    return data.split(random.choice([0.5, 0.8, 2, 3]), contiguous=True, gap=gap)


def _groups(random: Random, data: Dataset, _: list[str]) -> Sequence[Dataset]:
    parts = random.randint(2, 5)
    runs = random.random() < 0.5
    return data.split_by(lambda row: _first_row(row) // parts, 0.5, contiguous=runs, workers=1)


def _offsets(random: Random, data: Dataset, story: list[str]) -> Sequence[Dataset]:
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.randint(1, 5)))
    offsets = [0, *cuts, len(data)]
    runs = random.random() < 0.3
    story.append(f"parts by {offsets}, contiguous={runs}")
    return data.split(random.choice([0.5, 0.8, 2]), 0 if runs else random.randint(0, 3), by=offsets, contiguous=runs)


def _complements(random: Random, size: int) -> Iterator[Any]:
    """Two complementary slices, or lists."""
    at = random.randint(0, size)
    listed = random.sample(range(size), size)
    yield from random.choice(
        [
            (slice(None, at), slice(at, None)),
            (slice(None, None, 2), slice(1, None, 2)),
            (slice(at, None), slice(None, at)),
            (slice(None, at, -1), slice(at, None, -1)),
            (listed[:at], listed[at:]),
            (range(at), range(at, size)),
        ]
    )


def _slices(random: Random, data: Dataset, story: list[str]) -> Sequence[Dataset]:
    """Complementary parts behind a shuffle; without one, positions of rows are what a user sees, and may overlap."""
    if not data.order.varies:
        data = data.shuffle(random.randint(0, 5))
    chosen = list(_complements(random, len(data)))
    story.append(f"parts {chosen}")
    return [data[each] for each in chosen]


_SPLITS = (_fraction, _counts, _folds, _runs, _groups, _offsets, _slices, _slices, _slices)
