"""Large runs as lists, the slow and obvious way.

Chains of verbs (`chain_verbs.py`) over documents and rows are mixed, in batches of scheduled sizes and lengths. Every
token is another number, so a batch tells which records it is made of. The oracle shares nothing with `loadax` but
hashes and permutations, which `tests/test_seeds.py` is about.
"""

import math
from collections.abc import Iterator
from itertools import count as numbers
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadax import Dataloader, Dataset, from_arrays, from_documents, from_source, mix
from loadax.seeds import derive
from tests.laws import chain_verbs as verbs
from tests.laws.chain_rows import Given
from tests.laws.chain_verbs import Chain, Packing

LENGTH = 8  # entries of a row
LARGEST = 24  # rows of a batch
FAR = 400  # positions that are worked out of a mixture that never ends
KEY_SEED = 7
PADDING = {name: np.zeros(LENGTH, np.int32) for name in ("tokens", "segment_ids", "positions")} | {
    "loss_mask": np.zeros(LENGTH, bool)
}

Example = dict[str, NDArray[Any]]
Schedule = dict[int, int]
Blocks = tuple[tuple[int, tuple[int, ...]], ...]
"""From which position on how many of each part are in a block."""


class Visit(NamedTuple):
    part: str
    row: int
    epoch: int
    lane: int | None = None


def documents(count: int, seed: int, first: int, flat: bool) -> Chain:
    """Documents of up to 12 tokens, which are numbered from `first`; some may be empty."""
    lengths = np.random.default_rng(seed).integers(0, 13, count)
    lengths[0] = 5
    offsets = np.cumsum([0, *lengths])
    tokens = np.arange(first, first + lengths.sum(), dtype=np.int32)
    texts = np.split(tokens, offsets[1:-1])
    data = from_documents(tokens, offsets) if flat else from_source(texts)
    return verbs.opened(Given("documents", data, texts, one_by_one=True))


def whole_rows(count: int, first: int) -> Chain:
    """Rows that look like packed ones, of one document each."""
    tokens = np.arange(first, first + count * LENGTH, dtype=np.int32).reshape(count, LENGTH)
    packing = Packing(LENGTH, "split", "error", None)
    rows = [verbs.packed_row([{"tokens": row}], [(0, 0, LENGTH)], packing, {"tokens": row}) for row in tokens]
    data = from_arrays({name: np.stack([row[name] for row in rows]) for name in PADDING})
    return verbs.opened(Given("rows", data, rows))


def full(chain: Chain, rows: set[int] | None = None) -> bool:
    """Whether its rows, or only these of them, have any token."""
    values = [visit.value for visit in chain.visits(0) if rows is None or visit.row in rows]
    return any(len(value["tokens"] if isinstance(value, dict) else value) for value in values)


def pack(chain: Chain, method: Literal["split", "best_fit", "first_fit"], index: Path | None = None) -> Chain:
    return verbs.pack(chain, Packing(LENGTH, method, "error" if method == "split" else "cut", None), index)


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

    parts: dict[str, Chain]
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
        return mix(
            {name: part.dataset for name, part in self.parts.items()}, weights, self.seed, self.stop, self.by, version=1
        )

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

    def epoch(self, number: int) -> list[Visit]:
        """All visits of an epoch; the first ones, if it never ends."""
        if not self.mixed:
            return [Visit("", each.row, number, each.lane) for each in self.parts[""].visits(number)]
        names = list(self.parts)
        turns = (part for part, _ in verbs.draws(dict(self.blocks()), self.seed, 1))
        streams = {name: _stream(name, part) for name, part in self.parts.items()}
        visits: list[Visit] = []
        drawn = dict.fromkeys(names, 0)
        size = FAR if self.stop == "never" else 0
        while not size or len(visits) < size * (number + 1):
            name = names[next(turns)]
            begins_anew = drawn[name] == len(self.parts[name])
            if not size and self.stop == "first" and begins_anew:
                size = len(visits)
                if number == 0:
                    break
            visits.append(next(streams[name]))
            drawn[name] += 1
            if not size and self.stop == "all" and all(drawn[each] >= len(part) for each, part in self.parts.items()):
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
                batch = sorted(visits[position : position + size], key=lambda visit: visit.lane or 0)
                found.append([*batch, *[None] * (size - len(batch))])
                position, before = position + size, size
        return found

    def ids(self, visits: list[Visit | None]) -> list[int]:
        """As `rows` numbers them: over all parts, one after another."""
        sizes = [part.rows for part in self.parts.values()]
        firsts = dict(zip(self.parts, np.cumsum([0, *sizes]).tolist(), strict=False))
        return [-1 if visit is None else firsts[visit.part] + visit.row for visit in visits]

    def values(self, step: int, visits: list[Visit | None]) -> Example:
        """The batch of a step, as numpy arrays."""
        length = at(self.lengths, step)
        rows = {name: {each.row: each.value for each in part.visits(0)} for name, part in self.parts.items()}
        shown = [PADDING if visit is None else rows[visit.part][visit.row] for visit in visits]
        batch = {name: np.stack([row[name][:length] for row in shown]) for name in PADDING}
        if self.remainder == "pad":
            batch["mask"] = np.array([visit is not None for visit in visits])
        words = [
            0 if visit is None else int(derive(KEY_SEED, "key", visit.epoch, number))
            for visit, number in zip(visits, self.ids(visits), strict=True)
        ]
        batch["key"] = np.array([[word >> 32, word & 0xFFFFFFFF] for word in words], np.uint32)
        return batch


def at(schedule: Schedule, step: int) -> int:
    return next(value for first, value in reversed(schedule.items()) if first <= step)


def _stream(name: str, part: Chain) -> Iterator[Visit]:
    return (Visit(name, each.row, epoch) for epoch in numbers() for each in part.visits(epoch))


SEEDS = st.integers(-2, 2)
SMALL = st.integers(1, 5)


@st.composite
def then(choose: st.DrawFn, chain: Chain, most: int) -> Chain:
    """The chain with some more verbs, of which none leaves it without tokens."""
    for verb in choose(st.lists(st.sampled_from(VERBS), max_size=most)):
        if verb == "shuffle":
            chain = verbs.shuffle(chain, choose(SEEDS))
        elif verb == "blocks":
            chain = verbs.shuffle_blocks(chain, choose(SEEDS), choose(SMALL), choose(SMALL), choose(SMALL))
        elif verb == "filter":
            rest = choose(st.integers(0, 2))
            chain = verbs.keep(chain, rest) if full(chain, verbs.kept(chain, rest)) else chain
        elif verb == "exclude":
            gone = choose(st.lists(st.integers(0, chain.rows - 1), max_size=4))
            chain = verbs.exclude(chain, gone) if full(chain, {*range(chain.rows)} - {*gone}) else chain
        else:
            split = verbs.split if verb == "split" else verbs.split_groups
            fraction, seed, side = choose(st.sampled_from([0.4, 0.7])), choose(SEEDS), choose(st.integers(0, 1))
            sides = [split(chain, fraction, seed, each) for each in (side, 1 - side)]
            chain = sides[0] if full(sides[0]) else sides[1]
    return chain


VERBS = ["shuffle", "blocks", "filter", "exclude", "split", "split_by"]
METHODS: Any = st.sampled_from(["split", "best_fit", "first_fit"])


@st.composite
def parts(choose: st.DrawFn, number: int = 0) -> Chain:
    """Packed documents or whole rows, with verbs before and after packing."""
    first = 1 + number * 10_000
    if choose(st.booleans()):
        part = documents(choose(st.integers(8, 40)), choose(st.integers(0, 9)), first, choose(st.booleans()))
        part = pack(choose(then(part, 3)), choose(METHODS))
    else:
        part = whole_rows(choose(st.integers(4, 30)), first)
    return choose(then(part, 3))


@st.composite
def runs(choose: st.DrawFn, stops: tuple[str, ...] = ("alone", "first", "all", "never")) -> Run:
    """Any of all this; sizes are multiples of 8 and lengths of 4, so that eight devices can cut them."""
    stop: Any = choose(st.sampled_from(stops))
    names = [""] if stop == "alone" else ["web", "code", "books"][: choose(st.integers(1, 3))]
    made = {name: choose(parts(number)) for number, name in enumerate(names)}
    if stop == "alone" and choose(st.booleans()):  # only here rows stand by lane
        made[""] = verbs.shuffle_blocks(
            made[""], choose(SEEDS), choose(SMALL), choose(SMALL), choose(st.integers(2, 5))
        )
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
