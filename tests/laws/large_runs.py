"""Large runs as lists, the slow and obvious way.

Data is chosen, split, packed, shuffled and mixed, in batches of scheduled sizes. Every token is another number, so that
what a batch holds tells which records it is made of. The oracle shares nothing with `loadax` but hashes and
permutations, which `tests/test_seeds.py` is about; only into which row a document is fitted is the packer's choice.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadax import Dataloader, Dataset, from_arrays, from_documents, from_source, mix
from loadax.seeds import derive
from tests.laws.chain_verbs import block_shuffled, permutation, shuffled
from tests.loader.oracle import lane_of

LENGTH = 8  # entries of a row
LARGEST = 24  # rows of a batch
FAR = 400  # positions that are worked out of a mixture that never ends
KEY_SEED = 7

Example = dict[str, NDArray[Any]]
Leave = Callable[[list[int]], list[int]]
Schedule = dict[int, int]
Blocks = tuple[tuple[int, tuple[int, ...]], ...]
"""From which position on how many of each part stand in a block."""


class Part(NamedTuple):
    """A dataset, what its source's rows are, and which of them it meets in which order."""

    dataset: Dataset
    examples: list[Any]
    kept: list[int]
    shuffles: tuple[Callable[[list[int], int], list[int]], ...] = ()
    splits: int = 0
    group_splits: int = 0
    texts: list[NDArray[np.int32]] | None = None  # the documents, where they were packed

    def __repr__(self) -> str:
        return f"Part({self.dataset!r})"

    def epoch(self, number: int) -> list[int]:
        """Its rows in the order of an epoch: what looks at rows goes below shuffles."""
        rows = self.kept
        for each in self.shuffles:
            rows = each(rows, number)
        return rows


class Visit(NamedTuple):
    part: str
    row: int
    epoch: int


def tokens_of(example: Any) -> NDArray[np.int32]:
    """Of a document, or of a row."""
    tokens: NDArray[np.int32] = example["tokens"] if isinstance(example, dict) else example
    return tokens


def row_of(segments: list[NDArray[np.int32]]) -> Example:
    """Documents side by side, and what tells them apart."""
    row = {name: np.zeros(LENGTH, np.int32) for name in ("tokens", "segment_ids", "positions")} | {
        "loss_mask": np.zeros(LENGTH, bool)
    }
    column = 0
    for number, segment in enumerate(segments, 1):
        for entry, token in enumerate(segment.tolist()):
            row["tokens"][column], row["segment_ids"][column], row["positions"][column] = token, number, entry
            row["loss_mask"][column] = entry > 0
            column += 1
    return row


def documents(count: int, seed: int, first: int, flat: bool) -> Part:
    """Documents of up to 12 tokens, which are numbered from `first`; some may be empty."""
    lengths = np.random.default_rng(seed).integers(0, 13, count)
    lengths[0] = 5
    offsets = np.cumsum([0, *lengths])
    tokens = np.arange(first, first + lengths.sum(), dtype=np.int32)
    texts = np.split(tokens, offsets[1:-1])
    return Part(from_documents(tokens, offsets) if flat else from_source(texts), texts, list(range(count)))


def whole_rows(count: int, first: int) -> Part:
    """Rows that look like packed ones."""
    rows = [row_of([np.arange(LENGTH, dtype=np.int32) + first + LENGTH * row]) for row in range(count)]
    return Part(
        from_arrays({name: np.stack([row[name] for row in rows]) for name in rows[0]}), rows, list(range(count))
    )


def shuffle(part: Part, seed: int) -> Part:
    def by_hand(rows: list[int], epoch: int) -> list[int]:
        return shuffled(rows, derive(seed, "shuffle", epoch))

    return part._replace(dataset=part.dataset.shuffle(seed), shuffles=(*part.shuffles, by_hand))


def shuffle_blocks(part: Part, seed: int, block: int, window: int, lanes: int) -> Part:
    def by_hand(rows: list[int], epoch: int) -> list[int]:
        return [row for row, _ in block_shuffled(rows, derive(seed, "blocks", epoch), block, window, lanes)]

    made = part.dataset.shuffle(seed, block=block, window=window, lanes=lanes)
    return part._replace(dataset=made, shuffles=(*part.shuffles, by_hand))


def full(part: Part, rows: list[int]) -> bool:
    """Whether these rows have any token."""
    return any(len(tokens_of(part.examples[row])) for row in rows)


def keep(part: Part, rest: int, index: Path | None = None) -> Part:
    def good(example: Any) -> bool:
        return int(tokens_of(example).sum()) % 3 != rest

    kept = [row for row in part.kept if good(part.examples[row])]
    return (
        part._replace(dataset=part.dataset.filter(good, index=index, workers=2), kept=kept)
        if full(part, kept)
        else part
    )


def exclude(part: Part, gone: list[int]) -> Part:
    kept = [row for row in part.kept if row not in gone]
    return part._replace(dataset=part.dataset.exclude(gone), kept=kept) if full(part, kept) else part


def group_of(example: Any) -> int:
    return int(tokens_of(example).sum()) % 7


def _sides(part: Part, sides: tuple[Dataset, Dataset], inside: Callable[[int], bool]) -> list[Part]:
    kept = [[row for row in part.kept if inside(row) == first] for first in (True, False)]
    return [part._replace(dataset=side, kept=rows) for side, rows in zip(sides, kept, strict=True)]


def split(part: Part, fraction: float, seed: int) -> list[Part]:
    depth = [part.splits] if part.splits else []

    def inside(row: int) -> bool:
        return int(derive(seed, "split", *depth, row)) < fraction * 2**64

    return [each._replace(splits=part.splits + 1) for each in _sides(part, part.dataset.split(fraction, seed), inside)]


def split_groups(part: Part, fraction: float, seed: int, index: Path | None = None) -> list[Part]:
    depth = [part.group_splits] if part.group_splits else []

    def inside(row: int) -> bool:
        group = int(derive(0, "group", group_of(part.examples[row])))
        return int(derive(seed, "split_by", *depth, group)) < fraction * 2**64

    sides = part.dataset.split_by(group_of, fraction, seed, index=index, workers=2)
    return [each._replace(group_splits=part.group_splits + 1) for each in _sides(part, sides, inside)]


def fuller(sides: list[Part], side: int) -> Part:
    """That side, or the other one if it is empty."""
    return sides[side] if full(sides[side], sides[side].kept) else sides[1 - side]


def pack(part: Part, method: Literal["split", "best_fit", "first_fit"]) -> Part:
    """In the order of epoch 0."""
    texts = [part.examples[row] for row in part.epoch(0)]
    if method == "split":
        made = part.dataset.pack(LENGTH)
        stream = [(number, token) for number, text in enumerate(texts) for token in text.tolist()]
        rows = [_row_of_stream(stream[start : start + LENGTH]) for start in range(0, len(stream), LENGTH)]
    else:
        made = part.dataset.pack(LENGTH, method=method, long="cut")
        places = [made.source.documents(row) or [] for row in range(len(made))]
        rows = [
            row_of([part.examples[each.row][each.start : each.start + each.length] for each in row]) for row in places
        ]
        # Wherever a document lies, it lies there once, and is only cut where it is longer than a row.
        met = sorted((each.row, each.start, each.length) for row in places for each in row)
        lengths = {row: len(part.examples[row]) for row in part.kept}
        starts = sorted((row, start) for row, length in lengths.items() for start in range(0, length, LENGTH))
        assert met == [(row, start, min(LENGTH, lengths[row] - start)) for row, start in starts]
    return Part(made, rows, list(range(len(rows))), texts=part.examples)


def _row_of_stream(columns: list[tuple[int, int]]) -> Example:
    bounds = [
        0,
        *(place for place in range(1, len(columns)) if columns[place][0] != columns[place - 1][0]),
        len(columns),
    ]
    return row_of([np.array([token for _, token in columns[start:stop]], np.int32) for start, stop in pairwise(bounds)])


class Run(NamedTuple):
    """A training run.

    Args:
        parts: by name; one alone that isn't mixed is called "".
        sizes: of the batches, by step.
        lengths: of the sequences, by step.
        epochs: of the run.
        remainder: "drop" or "pad".
        weights: by position of the mixture, or by step.
        by: which of these.
        seed: of the mixture.
        stop: of the mixture.
    """

    parts: dict[str, Part]
    sizes: Schedule
    lengths: Schedule
    epochs: int
    remainder: Literal["drop", "pad"]
    weights: dict[int, tuple[int, ...]]
    by: Literal["example", "step"] = "example"
    seed: int = 0
    stop: Literal["first", "all", "never"] = "never"

    @property
    def mixed(self) -> bool:
        return "" not in self.parts

    @property
    def endless(self) -> bool:
        return self.mixed and self.stop == "never"

    def dataset(self) -> Dataset:
        if not self.mixed:
            return self.parts[""].dataset
        weights = {start: dict(zip(self.parts, each, strict=True)) for start, each in self.weights.items()}
        return mix({name: part.dataset for name, part in self.parts.items()}, weights, self.seed, self.stop, self.by)

    def loader(self, **options: Any) -> Dataloader:
        options = {"num_workers": 0, "key_seed": KEY_SEED} | options
        return Dataloader(
            self.dataset(),
            self.sizes,
            seq_len=self.lengths,
            num_epochs=self.epochs,
            remainder=self.remainder,
            **options,
        )

    def blocks(self) -> Blocks:
        """By position, without a common divisor."""
        found = []
        for start, weights in self.weights.items():
            position = sum(at(self.sizes, step) for step in range(start)) if self.by == "step" else start
            found.append((position, tuple(each // math.gcd(*weights) for each in weights)))
        return tuple(found)

    def turns(self) -> Iterator[int]:
        """Which part's turn it is at each position of the mixture."""
        blocks = self.blocks()
        position = 0
        for (start, weights), end in zip(blocks, [*(start for start, _ in blocks[1:]), None], strict=True):
            parts = [part for part, weight in enumerate(weights) for _ in range(weight)]
            block = 0
            while end is None or position < end:
                shown = [parts[slot] for slot in _slots(self.seed, weights, block)]
                yield from shown if end is None else shown[: end - position]
                block += 1
                position = start + block * len(parts)
            position = end

    def epoch(self, number: int) -> list[Visit]:
        """All visits of an epoch; the first ones, if it never ends."""
        if not self.mixed:
            return [Visit("", row, number) for row in self.parts[""].epoch(number)]
        names, turns = list(self.parts), self.turns()
        streams = {name: _stream(name, part) for name, part in self.parts.items()}
        visits: list[Visit] = []
        drawn = dict.fromkeys(names, 0)
        size = FAR if self.stop == "never" else 0
        while not size or len(visits) < size * (number + 1):
            name = names[next(turns)]
            begins_anew = drawn[name] == len(self.parts[name].kept)
            if not size and self.stop == "first" and begins_anew:
                size = len(visits)
                if number == 0:
                    break
            visits.append(next(streams[name]))
            drawn[name] += 1
            if (
                not size
                and self.stop == "all"
                and all(drawn[each] >= len(part.kept) for each, part in self.parts.items())
            ):
                size = len(visits)
        return visits[size * number : size * (number + 1)]

    def batches(self) -> list[list[Visit | None]]:
        """What every step consists of; None is padding. Of a run that never ends the first steps."""
        found: list[list[Visit | None]] = []
        for number in range(self.epochs):
            visits = self.epoch(number)
            position, before = 0, 0
            while position < len(visits):
                size = at(self.sizes, len(found))
                if len(visits) - position < max(size, before) and (self.remainder == "drop" or self.endless):
                    break
                places = self._by_lane(number, list(range(position, min(position + size, len(visits)))))
                found.append([*(visits[place] for place in places), *[None] * (size - len(places))])
                position, before = position + size, size
        return found

    def _by_lane(self, epoch: int, places: list[int]) -> list[int]:
        """A block shuffle assignments positions to lanes, and rows of a step stand by lane."""
        assignments = (
            [] if self.mixed else self.parts[""].dataset.order.lane_assignments(epoch, places[0], places[-1] + 1)
        )
        return sorted(places, key=partial(lane_of, assignments)) if assignments else places

    def ids(self, visits: list[Visit | None]) -> list[int]:
        """As `rows` numbers them: over all parts, one behind another."""
        sizes = [len(part.examples) for part in self.parts.values()]
        firsts = dict(zip(self.parts, np.cumsum([0, *sizes]).tolist(), strict=False))
        return [-1 if visit is None else firsts[visit.part] + visit.row for visit in visits]

    def values(self, step: int, visits: list[Visit | None]) -> Example:
        """The batch of a step, as numpy arrays."""
        length = at(self.lengths, step)
        shown = [row_of([]) if visit is None else self.parts[visit.part].examples[visit.row] for visit in visits]
        batch = {name: np.stack([row[name][:length] for row in shown]) for name in row_of([])}
        if self.remainder == "pad":
            batch["mask"] = np.array([visit is not None for visit in visits])
        words = [
            0 if visit is None else int(derive(KEY_SEED, "key", visit.epoch, number))
            for visit, number in zip(visits, self.ids(visits), strict=True)
        ]
        batch["key"] = np.array([[word >> 32, word & 0xFFFFFFFF] for word in words], np.uint32)
        return batch


@cache
def _slots(seed: int, weights: tuple[int, ...], block: int) -> list[int]:
    """In which order a block of a mixture shows its parts."""
    pattern = int(derive(seed, "pattern", block)) % 64
    return permutation(sum(weights), int(derive(seed, "mix", *weights, pattern)))


def at(schedule: Schedule, step: int) -> int:
    return next(value for first, value in reversed(schedule.items()) if first <= step)


def _stream(name: str, part: Part) -> Iterator[Visit]:
    epoch = 0
    while True:
        yield from (Visit(name, row, epoch) for row in part.epoch(epoch))
        epoch += 1


SEEDS = st.integers(-2, 2)
SMALL = st.integers(1, 5)


@st.composite
def behind(choose: st.DrawFn, part: Part, verbs: list[str], most: int) -> Part:
    """Some of these verbs, one behind another."""
    for verb in choose(st.lists(st.sampled_from(verbs), max_size=most)):
        if verb == "shuffle":
            part = shuffle(part, choose(SEEDS))
        elif verb == "blocks":
            part = shuffle_blocks(part, choose(SEEDS), choose(SMALL), choose(SMALL), choose(SMALL))
        elif verb == "filter":
            part = keep(part, choose(st.integers(0, 2)))
        elif verb == "exclude":
            part = exclude(part, choose(st.lists(st.integers(0, len(part.examples) - 1), max_size=4)))
        else:
            cut = split if verb == "split" else split_groups
            part = fuller(cut(part, choose(st.sampled_from([0.4, 0.7])), choose(SEEDS)), choose(st.integers(0, 1)))
    return part


SHUFFLES = ["shuffle", "blocks"]
VERBS = [*SHUFFLES, "filter", "exclude", "split", "split_by"]
METHODS: Any = st.sampled_from(["split", "best_fit", "first_fit"])


@st.composite
def parts(choose: st.DrawFn, number: int = 0) -> Part:
    """Packed documents or whole rows, with verbs before and behind."""
    first = 1 + number * 10_000
    if choose(st.booleans()):
        part = documents(choose(st.integers(8, 40)), choose(st.integers(0, 9)), first, choose(st.booleans()))
        part = pack(choose(behind(part, VERBS, 3)), choose(METHODS))
    else:
        part = whole_rows(choose(st.integers(4, 30)), first)
    return choose(behind(part, VERBS, 3))


@st.composite
def runs(choose: st.DrawFn, stops: tuple[str, ...] = ("alone", "first", "all", "never")) -> Run:
    """Any of all this; sizes are multiples of 8 and lengths of 4, so that eight devices can cut them."""
    stop: Any = choose(st.sampled_from(stops))
    names = [""] if stop == "alone" else ["web", "code", "books"][: choose(st.integers(1, 3))]
    made = {name: choose(parts(number)) for number, name in enumerate(names)}
    if stop == "alone" and choose(st.booleans()):  # only here rows stand by lane
        made[""] = shuffle_blocks(made[""], choose(SEEDS), choose(SMALL), choose(SMALL), choose(st.integers(2, 5)))
    by: Any = choose(st.sampled_from(["example", "step"])) if stop == "never" else "example"
    starts = sorted(
        {0} if stop == "alone" else choose(st.sets(st.integers(1, 60 if by == "example" else 6), max_size=2)) | {0}
    )
    positive = st.tuples(*[st.integers(1, 3)] * len(names))
    share = st.tuples(*[st.integers(0, 3)] * len(names)).filter(any) | positive
    weights = {start: choose(positive if start == starts[-1] else share) for start in starts}
    run = Run(
        made,
        {0: choose(st.sampled_from([8, 16]))},
        {0: choose(st.sampled_from([4, 8]))},
        1 if stop == "never" else choose(st.integers(1, 3)),
        choose(st.sampled_from(["drop", "pad"])),
        weights,
        by,
        choose(SEEDS),
        "never" if stop == "alone" else stop,
    )
    if not run.endless and len(run.epoch(0)) < LARGEST:
        run = run._replace(remainder="pad")
    return choose(scheduled(run, 0))


@st.composite
def scheduled(choose: st.DrawFn, run: Run, step: int) -> Run:
    """With other sizes and lengths from a step or a later one on, if it has them."""
    before = max(step, 1)
    run = run._replace(
        sizes={first: value for first, value in run.sizes.items() if first < before},
        lengths={first: value for first, value in run.lengths.items() if first < before},
    )
    for _ in range(choose(st.integers(0, 2))):
        first, end = max(before, *(each + 1 for each in (*run.sizes, *run.lengths))), min(len(run.batches()), step + 8)
        if first >= end:
            break
        first = choose(st.integers(first, end - 1))
        if choose(st.booleans()):
            run = run._replace(lengths=run.lengths | {first: choose(st.sampled_from([4, 8]))})
        else:
            run = run._replace(sizes=run.sizes | {first: choose(st.sampled_from([8, 16, LARGEST]))})
    return run
