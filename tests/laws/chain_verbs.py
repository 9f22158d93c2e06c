"""Verbs done to a dataset, and once more to plain lists: the slow and obvious way.

Every epoch of a chain is written out as a list of visits, to which each verb does what it says. It shares nothing with
`loadax.plan` and `loadax.sources` but hashes and permutations, which `tests/test_seeds.py` is about.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache as remembered
from itertools import chain as joined, count, islice, pairwise
from math import gcd
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import loadax
from loadax import Dataset
from loadax.seeds import derive, permute, row_generator
from tests.laws.chain_rows import Function, Given, Row, each_leaf, form, leaves, number_of, numeric, scaled, stacked
from tests.packing.slow_packing import slow_graphs
from tests.plan.even_patterns import even_block

SEQUENCES = ("segment_ids", "positions", "loss_mask")
"""The leaves that pack() adds."""


class Visit(NamedTuple):
    row: int
    epoch: int
    value: Row
    lane: int | None = None
    """The place of its lane in a step, where lanes are dealt."""


Keep = Callable[[int], bool]
Epoch = Callable[[int, tuple[Keep, ...]], list[Visit]]
"""The list of an epoch, of the rows that the splits above it keep: those look at rows, so they go below shuffles."""


@dataclass(frozen=True)
class Chain:
    """A dataset, its oracle, and what verbs behind it must know."""

    dataset: Dataset
    epoch: Epoch
    rows: int
    """How many rows the source has."""
    like: Row
    """A row, also where none is left."""
    story: tuple[str, ...]
    """The verbs."""
    one_by_one: bool = False
    """Whether rows come one by one, so that they need not be alike."""
    differs: bool = False
    """Whether parts that were joined have rows of several kinds, and no map has made them alike since.

    Each part looks at its first row.
    """
    unlike: bool = False
    """Whether a source below has rows of several kinds.

    Then those that verbs leave out may have no meaning for a map of batches.
    """
    stride: int | None = 1
    """Rows from one position to the next; None behind any verb but slices."""
    runs: tuple[Any, ...] | None = None
    """The run of each position: rows of one run are consecutive. None: rows are in another order."""
    backwards: tuple[Any, ...] | None = None
    """The same where a slice has reversed them, for another one that does."""
    maps: int = 0
    """How many maps a row went through since it was read, packs among them: the place of the next one in the chain."""
    batch_mapped: bool = False
    random: bool = False
    varies: bool = False
    splittable: bool = True
    """Whether each epoch has the same rows: no slice stands behind a shuffle, and nothing is mixed."""
    mixed: bool = False
    splits: int = 0
    group_splits: int = 0

    def __repr__(self) -> str:
        return "".join(self.story)

    def __len__(self) -> int:
        return len(self.epoch(0, ()))

    def visits(self, epoch: int) -> list[Visit]:
        return self.epoch(epoch, ())

    def values(self, epoch: int = 0) -> list[Row]:
        return [visit.value for visit in self.visits(epoch)]

    @property
    def first(self) -> Row:
        """What rows look like, as far as the first one tells."""
        return (self.values() or [self.like])[0]

    def alike(self, *epochs: int) -> bool:
        """Whether the rows of these epochs can be stacked."""
        return not self.differs and len({form(value) for epoch in epochs for value in self.values(epoch)}) <= 1

    def then(self, verb: str, dataset: Dataset, epoch: Epoch, **changes: Any) -> "Chain":
        """The chain with one more verb."""
        if "stride" in changes:
            changes = {"runs": None, "backwards": None} | changes
        return replace(self, dataset=dataset, epoch=remembered(epoch), story=(*self.story, verb), **changes)


def anew(chain: Chain, verb: str, dataset: Dataset, rows: Sequence[Row], maps: int) -> Chain:
    """Rows of a new source, made of those of a chain."""
    story = (*chain.story, verb)
    runs = (0,) * len(rows)
    return Chain(dataset, as_they_lie(rows), len(rows), rows[0], story, unlike=chain.unlike, maps=maps, runs=runs)


def opened(given: Given) -> Chain:
    rows = given.rows
    story = (f"{given.kind} ({len(rows)})",)
    unlike = len(set(map(form, rows))) > 1
    runs = given.runs or (0,) * len(rows)
    return Chain(
        given.dataset, as_they_lie(rows), len(rows), rows[0], story, given.one_by_one, unlike=unlike, runs=runs
    )


def as_they_lie(rows: Sequence[Row]) -> Epoch:
    """The rows of a source, in every epoch."""

    @remembered
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [Visit(row, number, value) for row, value in enumerate(rows) if all(each(row) for each in keep)]

    return epoch


def shuffled(items: list[Any], key: int) -> list[Any]:
    return [items[index] for index in permutation(len(items), key)]


@remembered
def permutation(size: int, key: int) -> list[int]:
    return permute(np.arange(size), size, key).tolist() if size else []


def block_shuffled(
    items: list[Any], key: int, block: int, window: int, lanes: int, pins: int | None = None
) -> list[tuple[Any, int]]:
    """The items, each with the place of its lane; `pins`: the key of lanes that keep their blocks."""
    blocks = [items[start : start + block] for start in range(0, len(items), block)]
    last = id(blocks[-1]) if blocks else None  # the one that may lack rows: it counts as the last of its window
    blocks = shuffled(blocks, key if pins is None else pins)
    queues = []
    lanes = min(lanes, len(blocks))
    for lane, place in enumerate(by_reversed_bits(lanes)):
        mine, queue = blocks[lane::lanes], []
        if pins is not None:
            mine = shuffled(mine, derive(key, "lane", lane))
        bounds = [0, *range(window - place % window, len(mine), window), len(mine)]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            group = sorted(mine[start:stop], key=lambda each: id(each) == last)
            queue += shuffled(list(joined(*group)), derive(key, "window", lane, number))
        queues.append([(item, place) for item in queue])
    return [queue[turn] for turn in range(max(map(len, queues), default=0)) for queue in queues if turn < len(queue)]


def by_reversed_bits(count: int) -> list[int]:
    bits = max(0, count - 1).bit_length()
    turned = [int(f"{number:0{bits}b}"[::-1], 2) if bits else 0 for number in range(1 << bits)]
    return [number for number in turned if number < count]


def shuffle(chain: Chain, seed: int) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [
            visit._replace(lane=None) for visit in shuffled(chain.epoch(number, keep), derive(seed, "shuffle", number))
        ]

    return chain.then(f".shuffle({seed})", chain.dataset.shuffle(seed), epoch, varies=True, stride=None)


def shuffle_blocks(
    chain: Chain, seed: int, block: int | Literal["chunks"], window: int, lanes: int, pinned: bool = False
) -> Chain:
    dataset = chain.dataset.shuffle(seed, block=block, window=window, lanes=lanes, pinned=pinned)
    pins = derive(seed, "pinned") if pinned else None
    size = chunk_rows(chain.dataset) if isinstance(block, str) else block

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        found = block_shuffled(chain.epoch(number, keep), derive(seed, "blocks", number), size, window, lanes, pins)
        return [visit._replace(lane=lane) for visit, lane in found]

    return chain.then(
        f".shuffle({seed}, {block!r}, {window}, {lanes}, {pinned})", dataset, epoch, varies=True, stride=None
    )


def chunk_rows(dataset: Dataset) -> int:
    """How many rows most chunks have; 0 where the source has none."""
    rows, starts = len(dataset.source), dataset.source.chunks
    if starts is None or len(starts) in (0, rows):
        return 0
    if isinstance(starts, range):
        return min(starts.step, rows)
    sizes = Counter(np.diff(np.asarray(starts), append=rows).tolist())
    return min(sizes, key=lambda size: (-sizes[size], size))


def cut(chain: Chain, start: int | None, stop: int | None, step: int | None) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        found = [visit for visit in chain.epoch(number, ())[start:stop:step] if all(each(visit.row) for each in keep)]
        return found if step in (None, 1) else [visit._replace(lane=None) for visit in found]

    stride = None if chain.stride is None else chain.stride * (step or 1)
    either = chain.backwards if chain.runs is None else chain.runs
    runs = None if either is None else either[start:stop:step]
    forward = (chain.runs is not None) == ((step or 1) > 0)
    text = ":".join("" if each is None else str(each) for each in (start, stop, step))
    positions = range(*slice(start, stop, step).indices(len(chain)))
    return chain.then(
        f".subset_per_epoch({positions})" if chain.varies else f"[{text}]",
        chain.dataset.subset_per_epoch(positions) if chain.varies else chain.dataset[start:stop:step],
        epoch,
        splittable=not chain.varies,
        stride=stride,
        runs=runs if forward else None,
        backwards=None if forward else runs,
    )


def select(chain: Chain, rows: list[int] | range) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        found = chain.epoch(number, ())
        chosen = [found[position]._replace(lane=None) for position in rows]
        return [visit for visit in chosen if all(each(visit.row) for each in keep)]

    verb = "subset_per_epoch" if chain.varies else "select"
    dataset = getattr(chain.dataset, verb)(rows)
    return chain.then(f".{verb}({rows})", dataset, epoch, splittable=not chain.varies, stride=None)


def fixed_part(chain: Chain, positions: Sequence[int], dataset: Dataset, text: str) -> Chain:
    """Some positions of a chain whose order varies, with the rows of epoch 0 in every epoch: a slice, or a list."""
    described = dataset.order.describe()[-1]
    if described[0] != "reorder":  # all positions
        assert sorted(positions) == list(range(len(chain)))
        return chain

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        first, known = chain.epoch(0, ()), {visit.row: visit for visit in chain.epoch(number, ())}
        rows = [first[position].row for position in positions]
        found = [known[row]._replace(lane=None) for row in rows if all(each(row) for each in keep)]
        return shuffled(found, derive(described[1], "part", number)) if number else found

    return chain.then(text, dataset, epoch, splittable=True, varies=True, stride=None)


def sample(chain: Chain, weights: list[int], size: int, seed: int) -> Chain:
    urn = [position for position, weight in enumerate(weights) for _ in range(weight)]

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        assert not keep
        drawn = [urn[int(derive(seed, "sample", number, position)) % len(urn)] for position in range(size)]
        return [chain.visits(number * size + position)[at]._replace(lane=None) for position, at in enumerate(drawn)]

    dataset = chain.dataset.sample(weights, size, seed)
    verb = f".sample({weights}, {size}, {seed})"
    return chain.then(verb, dataset, epoch, splittable=False, varies=True, stride=None)


def repeat(chain: Chain, times: int) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [visit for turn in range(times) for visit in chain.epoch(number * times + turn, keep)]

    return chain.then(f".repeat({times})", chain.dataset.repeat(times), epoch, stride=None)


def split(chain: Chain, fraction: float, seed: int, side: int) -> Chain:
    def inside(row: int) -> bool:
        depth = [chain.splits] if chain.splits else []
        return (int(derive(seed, "split", *depth, row)) < fraction * 2**64) == (side == 0)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, inside))

    dataset = chain.dataset.split(fraction, seed, allow_shared_rows=True)[side]
    return chain.then(f".split({fraction}, {seed})[{side}]", dataset, epoch, splits=chain.splits + 1, stride=None)


def split_counts(chain: Chain, counts: list[int], seed: int, part: int) -> Chain:
    depth = [chain.splits] if chain.splits else []
    by_hash = sorted({visit.row for visit in chain.visits(0)}, key=lambda row: int(derive(seed, "split", *depth, row)))
    chosen = set(by_hash[sum(counts[:part]) : sum(counts[: part + 1])])

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, chosen.__contains__))

    dataset = chain.dataset.split(counts, seed, allow_shared_rows=True)[part]
    return chain.then(f".split({counts}, {seed})[{part}]", dataset, epoch, splits=chain.splits + 1, stride=None)


def kept(chain: Chain, rest: int) -> set[int]:
    """The rows whose numbers leave another rest than this; what a filter sees is epoch 0."""
    return {visit.row for visit in chain.visits(0) if number_of(visit.value) % 3 != rest}


def leaves_other_rest(rest: int) -> Function:
    return lambda row: number_of(row) % 3 != rest


def keep(chain: Chain, rest: int, index: Path | None = None) -> Chain:
    inside = kept(chain, rest).__contains__

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, inside))

    dataset = chain.dataset.filter(leaves_other_rest(rest), workers=1, index=index)
    return chain.then(f".filter(number % 3 != {rest})", dataset, epoch, stride=None)


def group_of(row: Row) -> int:
    return number_of(row) % 7


def split_groups(chain: Chain, fraction: float, seed: int, side: int, index: Path | None = None) -> Chain:
    """Groups are rows whose numbers leave the same rest."""
    depth = [chain.group_splits] if chain.group_splits else []

    def inside(value: Row) -> bool:
        word = int(derive(0, "group", group_of(value)))
        return (int(derive(seed, "split_by", *depth, word)) < fraction * 2**64) == (side == 0)

    chosen = {visit.row for visit in chain.visits(0) if inside(visit.value)}

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, chosen.__contains__))

    dataset = chain.dataset.split_by(group_of, fraction, seed, allow_shared_rows=True, workers=1, index=index)[side]
    verb = f".split_by(number % 7, {fraction}, {seed})[{side}]"
    return chain.then(verb, dataset, epoch, group_splits=chain.group_splits + 1, stride=None)


def exclude(chain: Chain, gone: list[int]) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, lambda row: row not in gone))

    return chain.then(f".exclude({gone})", chain.dataset.exclude(gone), epoch, stride=None)


def map_rows(chain: Chain, function: Function, name: str, **arguments: Any) -> Chain:
    """A map of single rows."""
    dataset = chain.dataset.map(function, **arguments)
    return with_map(chain, f".map({name})", dataset, lambda visit: function(deepcopy(visit.value)))


class Padding(NamedTuple):
    lengths: int | dict[str, int]
    value: int
    truncate: bool
    side: Literal["left", "right"]
    add_lengths: bool


def pad(chain: Chain, padding: Padding) -> Chain:
    def made(visit: Visit) -> Row:
        return padded_row(visit.value, padding)

    dataset = chain.dataset.pad(*padding)
    verb = f".pad({', '.join(map(str, padding))})"
    return replace(with_map(chain, verb, dataset, made), one_by_one=False, maps=chain.maps)


def padded_row(row: Row, padding: Padding) -> Row:
    lengths, value, _, side, add_lengths = padding
    bare = isinstance(lengths, int)
    made = {"data": row} if bare else dict(row)
    for name, most in {"data": lengths}.items() if isinstance(lengths, int) else lengths.items():
        given = list(made[name])
        kept = given[:most] if side == "right" else given[::-1][:most][::-1]
        blank = [np.full(made[name].shape[1:], value, made[name].dtype)] * (most - len(kept))
        made[name] = np.array(kept + blank if side == "right" else blank + kept, made[name].dtype)
        if add_lengths:
            made["length" if bare else f"{name}_length"] = np.int32(len(kept))
    return made["data"] if bare and not add_lengths else made


Paths = dict[tuple[Any, ...], tuple[Any, ...]]
"""New paths of leaves by their old ones."""


def select_leaves(chain: Chain, verb: Literal["rename", "keep", "drop"], names: dict[str, str], paths: Paths) -> Chain:
    """The leaves at some paths, under other ones, of dicts of dicts."""
    dataset = chain.dataset.rename(names) if verb == "rename" else getattr(chain.dataset, verb)(*names)
    mapped = with_map(chain, f".{verb}({names})", dataset, lambda visit: selected_row(visit.value, paths))
    return replace(mapped, **{name: getattr(chain, name) for name in ("one_by_one", "differs", "maps")})


def selected_row(row: Row, paths: Paths) -> Row:
    made: dict[Any, Any] = {}
    for old, new in paths.items():
        value, place = row, made
        for key in old:
            value = value[key]
        for key in new[:-1]:
            place = place.setdefault(key, {})
        place[new[-1]] = value
    return made


def dict_paths(row: Row, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all that is in dicts, and is none."""
    if not isinstance(row, dict):
        return [before]
    return [path for key, value in row.items() for path in dict_paths(value, (*before, key))]


def flat_map(chain: Chain, functions: Sequence[Function]) -> Chain:
    """Every function makes one example of each row."""
    fan_out = len(functions)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        assert not (keep and chain.varies)
        found = [
            visit._replace(row=visit.row * fan_out + part, value=owned(function(deepcopy(visit.value))), lane=None)
            for visit in chain.epoch(number, ())
            for part, function in enumerate(functions)
        ]
        return [visit for visit in found if all(each(visit.row) for each in keep)]

    dataset = chain.dataset.flat_map(lambda row: [function(deepcopy(row)) for function in functions], fan_out)
    return chain.then(
        f".flat_map({fan_out})",
        dataset,
        epoch,
        rows=chain.rows * fan_out,
        like=owned(functions[0](deepcopy(chain.like))),
        one_by_one=True,
        differs=False,
        stride=None,
        maps=chain.maps + 1,
        batch_mapped=False,
        splittable=not chain.varies,
    )


def count_of(row: Row) -> int:
    return number_of(row) % 3


def flat_map_counts(chain: Chain, given: bool, index: Path | None = None) -> Chain:
    """Examples whose number differs by row: by its contents, or `given` by its number in the source."""
    at_first = chain.visits(0)
    counts = [visit.row % 3 if given else count_of(visit.value) for visit in at_first]

    def parts(row: Row, number: int) -> list[Row]:
        return [scaled(part)(deepcopy(row)) for part in range(number)]

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        pairs = zip(chain.epoch(number, ()), counts, strict=True)
        values = [owned(part) for visit, many in pairs for part in parts(visit.value, many)]
        return [Visit(row, number, value) for row, value in enumerate(values) if all(each(row) for each in keep)]

    if given:
        dataset = chain.dataset.flat_map(
            lambda row, index: parts(row, index % 3), with_index=True, counts=np.array(counts)
        )
    else:
        dataset = chain.dataset.flat_map(lambda row: parts(row, count_of(row)), counts=count_of, index=index)
    verb, like = f".flat_map({'counts' if given else 'count_of'})", owned(scaled(0)(deepcopy(chain.like)))
    runs = (0,) * sum(counts)
    made = Chain(dataset, remembered(epoch), len(runs), like, (*chain.story, verb), one_by_one=True, runs=runs)
    return replace(made, unlike=chain.unlike, maps=chain.maps + 1, random=chain.random)


class Grouping(NamedTuple):
    budgets: dict[str, int]
    method: Literal["best_fit", "first_fit"]
    long: Literal["error", "drop"]
    window: int | None
    most_rows: int | None


def sizes_of(row: Row) -> dict[str, int]:
    return {"a": number_of(row) % 5, "b": number_of(row) // 7 % 4}


def only_size(row: Row) -> int:
    return sizes_of(row)["a"]


def group(chain: Chain, grouping: Grouping, given: bool, index: Path | None = None) -> Chain:
    """Lists of rows; `given`: their sizes are given as arrays."""
    names = [*grouping.budgets]
    at_first = chain.visits(0)
    sizes = [sizes_of({"row": visit.row} if given else visit.value) for visit in at_first]
    rows = grouped_rows([[each[name] for name in names] for each in sizes], grouping)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        found = chain.visits(0 if chain.varies else number)
        # A copy each, since a row may be twice in a group.
        values = [[deepcopy(found[position].value) for position in group] for group in rows]
        return [Visit(row, number, value) for row, value in enumerate(values) if all(each(row) for each in keep)]

    measure: Any = sizes_of if len(names) > 1 else only_size
    if given:
        measure = {name: np.array([each[name] for each in sizes]) for name in names}
        measure = measure if len(names) > 1 else measure["a"]
    budgets = grouping.budgets if len(names) > 1 else grouping.budgets["a"]
    dataset = chain.dataset.group(budgets, measure, *grouping[1:], index=index)
    story = (*chain.story, f".group({', '.join(map(str, grouping))}, {given})")
    like = [chain.like for _ in rows[0]]
    made = Chain(dataset, remembered(epoch), len(rows), like, story, one_by_one=True, runs=(0,) * len(rows))
    return replace(made, unlike=chain.unlike, maps=chain.maps + 1, random=chain.random)


def grouped_rows(sizes: list[list[int]], grouping: Grouping) -> list[list[int]]:
    """Positions of each group: rows are placed one at a time, from the largest share of a budget to the smallest."""
    budgets, most = [*grouping.budgets.values()], grouping.most_rows or len(sizes)
    sizes = [each if any(each) else [1] * len(each) for each in sizes]
    window, found = grouping.window or len(sizes), []

    def space(group: list[int]) -> list[int]:
        return [budget - sum(sizes[row][at] for row in group) for at, budget in enumerate(budgets)]

    def shares(values: list[int]) -> list[float]:
        return [value / budget for value, budget in zip(values, budgets, strict=True)]

    def fits(row: int, group: list[int]) -> bool:
        return len(group) < most and all(size <= left for size, left in zip(sizes[row], space(group), strict=True))

    for first in range(0, len(sizes), window):
        groups: list[list[int]] = []
        fitting = [row for row in range(first, min(first + window, len(sizes))) if fits(row, [])]
        for row in sorted(fitting, key=lambda row: -max(shares(sizes[row]))):
            able = [group for group in groups if fits(row, group)]
            if not able:
                groups.append([row])
            elif grouping.method == "best_fit":
                min(able, key=lambda group: sum(shares(space(group)))).append(row)
            else:
                able[0].append(row)
        found += sorted(sorted(group) for group in groups)
    return found


def map_indexed(chain: Chain, function: Function, name: str) -> Chain:
    """A map that gets the row's number in its source."""
    dataset = chain.dataset.map(function, with_index=True)
    return with_map(chain, f".map({name}, with_index)", dataset, lambda v: function(deepcopy(v.value), v.row))


def map_by_epoch(chain: Chain, name: str) -> Chain:
    """A map that gets the epoch of the row."""

    def function(row: Row, number: int, epoch: int) -> Row:
        return scaled((number + 3 * epoch) % 10)(row)

    dataset = chain.dataset.map(function, with_index=True, with_epoch=True)
    made = with_map(chain, f".map({name})", dataset, lambda v: function(deepcopy(v.value), v.row, v.epoch))
    return replace(made, random=True)


def map_batch_by_epoch(chain: Chain, name: str) -> Chain:
    def function(batch: Any, epochs: Any) -> Any:
        rows = [by_row(each_leaf(lambda leaf, at=at: leaf[at], batch), epoch) for at, epoch in enumerate(epochs)]
        return stacked(rows) if rows else batch

    def by_row(row: Row, epoch: int) -> Row:
        return scaled(int(epoch) % 10)(row)

    dataset = chain.dataset.map_batch(function, with_epoch=True)
    made = with_map(chain, f".map_batch({name})", dataset, lambda visit: by_row(visit.value, visit.epoch))
    return replace(made, one_by_one=False, batch_mapped=True, random=True)


def map_random(chain: Chain, function: Function, seed: int) -> Chain:
    def made(visit: Visit) -> Row:
        return function(deepcopy(visit.value), row_generator(seed, chain.maps, visit.epoch, visit.row))

    dataset = chain.dataset.map(function, rng=True, seed=seed)
    return replace(with_map(chain, f".map({function.__name__}, rng, {seed})", dataset, made), random=True)


def with_map(chain: Chain, verb: str, dataset: Dataset, made: Callable[[Visit], Row]) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [visit._replace(value=owned(made(visit))) for visit in chain.epoch(number, keep)]

    like = owned(made(Visit(0, 0, chain.like)))
    return chain.then(verb, dataset, epoch, like=like, one_by_one=True, differs=False, maps=chain.maps + 1)


def map_batch(chain: Chain, function: Function, by_row: Function, name: str, **arguments: Any) -> Chain:
    """A map of batches, of which the oracle does every row by itself."""
    mapped = with_map(
        chain, f".map_batch({name})", chain.dataset.map_batch(function, **arguments), lambda visit: by_row(visit.value)
    )
    return replace(mapped, one_by_one=False, batch_mapped=True)


def map_batch_random(chain: Chain, function: Function, by_row: Function, seed: int) -> Chain:
    def made(visit: Visit) -> Row:
        return by_row(visit.value, row_generator(seed, chain.maps, visit.epoch, visit.row))

    dataset = chain.dataset.map_batch(function, rng=True, seed=seed)
    mapped = with_map(chain, f".map_batch({function.__name__}, rng, {seed})", dataset, made)
    return replace(mapped, one_by_one=False, batch_mapped=True, random=True)


def owned(row: Row) -> Row:
    """Numbers as NumPy has them."""
    return each_leaf(lambda leaf: np.asarray(leaf)[()] if numeric(leaf) else leaf, row)


def moved(keep: Keep, first: int) -> Keep:
    return lambda row: keep(row + first)


def join(parts: Sequence[Chain]) -> Chain:
    firsts = [sum(each.rows for each in parts[:number]) for number in range(len(parts))]

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return [
            visit._replace(row=visit.row + first, lane=None)
            for part, first in zip(parts, firsts, strict=True)
            for visit in part.epoch(number, tuple(moved(each, first) for each in keep))
        ]

    chain = _joined(parts, "concat", loadax.concat([part.dataset for part in parts]), epoch)
    runs = [None if part.runs is None else [(number, run) for run in part.runs] for number, part in enumerate(parts)]
    return replace(chain, runs=None if None in runs else tuple(run for part in runs for run in part or ()))


FAR, FAR_EPOCHS = 1 << 40, 1 << 21
"""Positions from one epoch of a mixture that never ends to the next, and how many are told apart."""

Segments = dict[int, tuple[int, ...]]
"""From which position on, over all epochs, how many of each part stand in a block."""


def mixed(
    parts: Sequence[Chain],
    segments: Segments,
    seed: int,
    stop: Literal["first", "all", "never"],
    cut_at: int,
    version: int = 3,
) -> Chain:
    """A mixture; of one that never ends the first so many positions."""
    names = [f"part {number}" for number in range(len(parts))]
    named = {name: part.dataset for name, part in zip(names, parts, strict=True)}
    weights = {start: dict(zip(names, each, strict=True)) for start, each in segments.items()}
    dataset = loadax.mix(named, weights if len(weights) > 1 else weights[0], seed, stop, version=version)
    firsts = [sum(each.rows for each in parts[:number]) for number in range(len(parts))]
    sizes = [len(part) for part in parts]

    size = cut_at if stop == "never" else end_of(draws(segments, seed, version), sizes, stop)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        assert not keep
        found = []
        begin = number % FAR_EPOCHS * FAR if stop == "never" else number * size
        for part, draw in islice(draws(segments, seed, version, begin), size):
            visit = parts[part].visits(draw // sizes[part])[draw % sizes[part]]
            found.append(visit._replace(row=visit.row + firsts[part], lane=None))
        return found

    text = f"mix[{segments}, {seed}, {stop}, {version}]"
    chain = _joined(parts, text, dataset if stop != "never" else dataset.subset_per_epoch(range(cut_at)), epoch)
    return replace(chain, mixed=True, varies=True, splittable=False)


def draws(segments: Segments, seed: int, version: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """The part of each position from the first one on, and how often it was drawn before."""
    for position in count(first):
        starts = [start for start in segments if start <= position]
        counts, begun, slot = [0] * len(segments[0]), [0], 0
        for start, end in zip(starts, [*starts[1:], position], strict=True):
            units = tuple(each // gcd(*segments[start]) for each in segments[start])
            block, slot = divmod(end - start, sum(units))
            begun = pattern(seed, units, block, version)
            counts = [number + block * units[part] + begun[:slot].count(part) for part, number in enumerate(counts)]
        yield begun[slot], counts[begun[slot]]


@remembered
def pattern(seed: int, units: tuple[int, ...], block: int, version: int) -> list[int]:
    """Which parts stand in a block."""
    if version == 3:
        return even_block(seed, units, block)
    size = sum(units)
    which = derive(seed, "pattern", block) % max(1, min(64, (1 << 18) // size))
    numbers = [part for part, count in enumerate(units) for _ in range(count)]
    if size > 1:
        numbers = [numbers[at] for at in permute(np.arange(size), size, derive(seed, "mix", *units, which))]
    turn = derive(seed, "rotation", block) % size if version == 2 else 0
    return numbers[turn:] + numbers[:turn]


def end_of(drawn: Any, sizes: list[int], stop: str) -> int:
    """How many positions an epoch of a mixture has."""
    whole = set()
    for position, (part, draw) in enumerate(drawn):
        if stop == "first" and draw == sizes[part]:
            return position
        if draw + 1 == sizes[part]:
            whole.add(part)
        if stop == "all" and len(whole) == len(sizes):
            return position + 1
    raise AssertionError("a mixture goes on")


def _joined(parts: Sequence[Chain], verb: str, dataset: Dataset, epoch: Epoch) -> Chain:
    story = (verb, "(", *joined(*((*part.story, ", ") for part in parts[:-1])), *parts[-1].story, ")")
    return Chain(
        dataset,
        remembered(epoch),
        sum(part.rows for part in parts),
        parts[0].like,
        story,
        one_by_one=any(part.one_by_one for part in parts),
        differs=joined_differ(parts) or not all(part.alike(0, 1, 2) for part in parts),
        unlike=any(part.unlike for part in parts),
        stride=None,
        maps=max(part.maps for part in parts),
        random=any(part.random for part in parts),
        varies=any(part.varies for part in parts),
        splittable=all(part.splittable for part in parts),
        mixed=any(part.mixed for part in parts),
        splits=max(part.splits for part in parts),
        group_splits=max(part.group_splits for part in parts),
    )


def zipped(parts: Sequence[Chain], make: Callable[[Sequence[Any]], Any]) -> Chain:
    """Chains of one length side by side; `make` builds a tree of their rows, or of their datasets."""
    varies = any(part.varies for part in parts)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        assert not (keep and varies)
        rows = enumerate(zip(*(part.values(number) for part in parts), strict=True))
        return [Visit(row, number, make(values)) for row, values in rows if all(each(row) for each in keep)]

    chain = _joined(parts, "zip", loadax.zip(make([part.dataset for part in parts])), epoch)
    return replace(
        chain,
        rows=len(parts[0]),
        like=make([part.like for part in parts]),
        differs=any(part.differs for part in parts),
        stride=None if varies else 1,
        runs=_side_by_side(parts),
        random=chain.random or varies,
        splittable=not varies,
    )


def _side_by_side(parts: Sequence[Chain]) -> tuple[Any, ...] | None:
    """Runs of zipped rows, which end where those of a part end; parts in another order have one."""
    if any(part.varies for part in parts):
        return None
    return tuple(zip(*(part.runs or (0,) * len(parts[0]) for part in parts), strict=True))


def joined_differ(parts: Sequence[Chain]) -> bool:
    """Whether the rows that tell what each part's rows look like differ."""
    return any(part.differs for part in parts) or len({form(part.first) for part in parts}) > 1


class Windows(NamedTuple):
    length: int
    stride: int = 1
    lead: int | None = None
    targets: int = 1
    every: int = 1
    seams: Literal["avoid", "cross"] = "avoid"


def windows(chain: Chain, chosen: Windows) -> Chain:
    begins = window_begins(chain, chosen)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        rows = chain.values(number)
        found = []
        for row, begin in enumerate(begins):
            inputs, targets = (stacked([rows[each] for each in part]) for part in window_rows(begin, chosen))
            value = inputs if chosen.lead is None else {"inputs": inputs, "targets": targets}
            found.append(Visit(row, number, value))
        return [visit for visit in found if all(each(visit.row) for each in keep)]

    dataset = chain.dataset.windows(**chosen._asdict())
    made = anew(chain, f".windows({chosen})", dataset, [visit.value for visit in epoch(0, ())], chain.maps)
    return replace(made, epoch=remembered(epoch), random=chain.random)


def window_begins(chain: Chain, chosen: Windows) -> list[int]:
    """Positions at which windows begin."""
    assert chain.runs is not None
    runs = chain.runs if chosen.seams == "avoid" else (0,) * len(chain)
    begins: list[int] = []
    for begin, run in enumerate(runs):
        rows = [row for part in window_rows(begin, chosen) for row in part]
        in_turn = (begin - runs.index(run)) % chosen.stride == 0
        if in_turn and all(row < len(runs) and runs[row] == run for row in rows):
            begins.append(begin)
    return begins


def window_rows(begin: int, chosen: Windows) -> tuple[list[int], list[int]]:
    """Positions of a window and of its targets."""
    rows = [begin + turn * chosen.every for turn in range(chosen.length)]
    if chosen.lead is None:
        return rows, rows[:1]
    return rows, [rows[-1] + chosen.lead + turn * chosen.every for turn in range(chosen.targets)]


class Packing(NamedTuple):
    seq_len: int
    method: Literal["split", "best_fit", "first_fit"]
    long: Literal["error", "cut", "drop"]
    window: int | None
    align: int = 1
    most_documents: int | None = None
    value: int = 0
    targets: Literal["shift"] | None = None
    add: Sequence[str] = ("segment_ids", "positions", "loss_mask")


def pack(chain: Chain, packing: Packing, index: Path | None = None) -> Chain:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*shifted by one entry")  # as those of from_tokens(targets=True) are
        dataset = chain.dataset.pack(**packing._asdict(), index=index, progress=False)
        len(dataset)  # plans it
    documents = [each if isinstance(each, dict) else {"tokens": each} for each in chain.values()]
    if packing.targets == "shift":
        documents = list(map(shifted, documents))
    rows = packed_rows([len(leaves(each)[0]) for each in documents], packing)
    like = next(each for each in documents if len(leaves(each)[0]))
    found = [packed_row(documents, parts, packing, like) for parts in rows]
    verb = f".pack({', '.join(map(str, packing))})"
    return anew(chain, verb, dataset, found, chain.maps + 1)


def shifted(document: Row) -> Row:
    """A document as pairs of a token and the next one."""
    name = "tokens" if "tokens" in document else next(iter(document))
    pairs = {"inputs": document[name][:-1], "targets": document[name][1:]}
    return pairs | {key: leaf[:-1] for key, leaf in document.items() if key != name}


def pack_graphs(chain: Chain, sizes: dict[str, int], method: Any, window: int, most: int, align: int) -> Chain:
    """Rows are graphs, see `chain_rows.to_graph`."""
    dataset = chain.dataset.pack(
        {"nodes": sizes["nodes"], ("edges", "senders"): sizes["edges"]},
        method=method,
        long="drop",
        window=window,
        align=align,
        most_documents=most,
        value=-1,
        offsets={"senders": "nodes"},
        progress=False,
    )
    found = slow_graphs(chain.values(), sizes, method, window, most, align, -1)
    verb = f".pack({sizes}, {method}, {window}, {most}, {align})"
    return anew(chain, verb, dataset, found, chain.maps + 1)


Part = tuple[int, int, int]
"""A document, its first entry that is meant, and how many."""


def packed_rows(lengths: list[int], packing: Packing) -> list[list[Part]]:
    """What each packed row holds."""
    seq_len, method, long, window, *_ = packing
    if method == "split":
        stream = [(document, entry) for document, length in enumerate(lengths) for entry in range(length)]
        cuts = [stream[start : start + seq_len] for start in range(0, len(stream), seq_len)]
        return [
            [
                (document, min(e for d, e in row if d == document), entries)
                for document, entries in Counter(d for d, _ in row).items()
            ]
            for row in cuts
        ]
    found: list[list[Part]] = []
    window = len(lengths) if window is None else window
    for first in range(0, len(lengths), window):
        parts = [
            (document, start, min(seq_len, lengths[document] - start))
            for document in range(first, min(first + window, len(lengths)))
            if long != "drop" or lengths[document] <= seq_len
            for start in range(0, lengths[document], seq_len)
        ]
        found += fitted(parts, packing)
    return found


def fitted(parts: list[Part], packing: Packing) -> list[list[Part]]:
    """Parts placed one at a time from the longest to the shortest; rows by their first part."""
    rows: list[list[Part]] = []
    spaces: list[int] = []
    most = packing.most_documents or packing.seq_len
    for part in sorted(parts, key=lambda part: -width(part, packing)):
        fits = [row for row, space in enumerate(spaces) if space >= width(part, packing) and len(rows[row]) < most]
        if not fits:
            rows.append([])
            spaces.append(packing.seq_len)
            fits = [len(rows) - 1]
        chosen = min(fits, key=lambda row: (spaces[row], row)) if packing.method == "best_fit" else fits[0]
        rows[chosen].append(part)
        spaces[chosen] -= width(part, packing)
    return sorted(sorted(row) for row in rows)


def width(part: Part, packing: Packing) -> int:
    """How many entries a part takes, with what comes before the next one."""
    return -(-part[2] // packing.align) * packing.align


def packed_row(documents: list[Row], parts: list[Part], packing: Packing, like: Row) -> Row:
    def blank(value: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Any:
        return np.full((packing.seq_len, *shape), value, dtype)

    row = {key: blank(packing.value, like[key].dtype, like[key].shape[1:]) for key in like}
    row |= {"segment_ids": blank(0, np.int32), "positions": blank(0, np.int32), "loss_mask": blank(0, bool)}
    column = 0
    for number, part in enumerate(parts, 1):
        document, start, count = part
        for entry in range(count):
            for key in like:
                row[key][column + entry] = documents[document][key][start + entry]
            row["segment_ids"][column + entry] = number
            row["positions"][column + entry] = entry
            row["loss_mask"][column + entry] = entry > 0 or packing.targets == "shift"
        column += width(part, packing)
    return {key: leaf for key, leaf in row.items() if key in like or key in packing.add}


def cached(chain: Chain, path: Path) -> Chain:
    dataset = chain.dataset.cache(path, chunk_rows=3, progress=False)
    return anew(chain, ".cache()", dataset, chain.values(), 0)
