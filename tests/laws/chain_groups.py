"""Verbs of groups of rows, done to a dataset and once more to plain lists; see `chain_verbs`."""

from dataclasses import replace
from functools import cache as remembered
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from loadax.seeds import derive
from tests.laws.chain_rows import Row, each_leaf, stacked
from tests.laws.chain_verbs import Chain, Keep, Visit, Windows, anew, shuffled, window_rows


class Within(NamedTuple):
    windows: Windows
    offsets: list[int]
    pad: Any


def together(chain: Chain, offsets: list[int]) -> list[int]:
    """Offsets with a group's begin wherever a row does not follow the one before, if rows are in no known runs."""
    if chain.runs is not None:
        return offsets
    rows = [visit.row for visit in chain.visits(0)]
    torn = [position for position in range(1, len(rows)) if rows[position] != rows[position - 1] + 1]
    return sorted([*offsets, *torn])


def groups_of(chain: Chain, chosen: Within) -> list[range]:
    """Positions of the groups, which seams of the chain divide if no window may cross them."""
    edges = set(chosen.offsets)
    if chain.runs is not None and chosen.windows.seams == "avoid":
        runs = chain.runs
        edges |= {position for position in range(1, len(runs)) if runs[position] != runs[position - 1]}
    return [range(*pair) for pair in pairwise(sorted(edges))]


def places(chain: Chain, chosen: Within) -> list[list[tuple[list[int], list[bool]]]]:
    """For each window the positions of its parts, and which of their rows are no padding."""
    found = []
    shape = chosen.windows
    for group in groups_of(chain, chosen):
        for anchor in group[:: shape.stride]:
            begin = anchor
            if chosen.pad and shape.lead is not None:
                begin -= (shape.length - 1) * shape.every
            parts = window_rows(begin, shape)[: 1 if shape.lead is None else 2]
            if chosen.pad or all(row in group for part in parts for row in part):
                near = [[min(max(row, group[0]), group[-1]) for row in part] for part in parts]
                found.append([(near[at], [row in group for row in part]) for at, part in enumerate(parts)])
    return found


def cleared(leaf: Any, inside: list[bool]) -> Any:
    """Rows with zeros in place of those outside."""
    values = leaf.copy()
    values[~np.array(inside)] = 0
    return values


def windows(chain: Chain, chosen: Within) -> Chain:
    all_places = places(chain, chosen)

    def part(rows: list[Row], near: list[int], inside: list[bool]) -> Row:
        values = stacked([rows[position] for position in near])
        if chosen.pad != "zeros":
            return values
        return each_leaf(lambda leaf: cleared(leaf, inside), values)

    def example(rows: list[Row], parts: Any) -> Row:
        values = [part(rows, near, inside) for near, inside in parts]
        masks = [np.array(inside) for _, inside in parts]
        if len(parts) == 2:
            pair = dict(zip(["inputs", "targets"], values, strict=True))
            return {**pair, "inputs_mask": masks[0], "targets_mask": masks[1]} if chosen.pad else pair
        if not chosen.pad:
            return values[0]
        return {**(values[0] if isinstance(values[0], dict) else {"data": values[0]}), "window_mask": masks[0]}

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        rows = chain.values(number)
        found = [Visit(row, number, example(rows, parts)) for row, parts in enumerate(all_places)]
        return [visit for visit in found if all(each(visit.row) for each in keep)]

    options: dict[str, Any] = {"within": chosen.offsets, "pad": chosen.pad, "short": "drop"}
    dataset = chain.dataset.windows(**chosen.windows._asdict(), **options)
    made = anew(chain, f".windows({chosen})", dataset, [visit.value for visit in epoch(0, ())], chain.maps)
    return replace(made, epoch=remembered(epoch), random=chain.random)


def split(chain: Chain, offsets: list[int], fraction: float, seed: int, side: int) -> Chain:
    depth = [chain.group_splits] if chain.group_splits else []

    def inside(group: int) -> bool:
        word = int(derive(0, "group", group))
        return (int(derive(seed, "split_by", *depth, word)) < fraction * 2**64) == (side == 0)

    group_at = [group for group, (low, high) in enumerate(pairwise(offsets)) for _ in range(low, high)]
    visits = chain.visits(0)
    chosen = {visit.row for visit, group in zip(visits, group_at, strict=True) if inside(group)}
    runs = None
    if chain.runs is not None:
        pairs = zip(chain.runs, group_at, strict=True)
        runs = tuple(pair for pair in pairs if inside(pair[1]))

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        return chain.epoch(number, (*keep, chosen.__contains__))

    dataset = chain.dataset.split(fraction, seed, by=offsets, allow_shared_rows=True)[side]
    verb = f".split({fraction}, {seed}, by={offsets})[{side}]"
    return chain.then(verb, dataset, epoch, group_splits=chain.group_splits + 1, stride=None, runs=runs)


def shuffle(chain: Chain, offsets: list[int], seed: int) -> Chain:
    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        visits = chain.epoch(number, ())
        groups = shuffled([visits[low:high] for low, high in pairwise(offsets)], derive(seed, "shuffle groups", number))
        found = [visit._replace(lane=None) for group in groups for visit in group]
        return [visit for visit in found if all(each(visit.row) for each in keep)]

    dataset = chain.dataset.shuffle(seed, by=offsets)
    return chain.then(f".shuffle({seed}, by={offsets})", dataset, epoch, varies=True, stride=None)


def sample(chain: Chain, offsets: list[int], weights: list[int], size: int, seed: int) -> Chain:
    urn = [group for group, weight in enumerate(weights) for _ in range(weight)]

    def drawn(number: int, position: int) -> int:
        group = urn[int(derive(seed, "sample", number, position)) % len(urn)]
        low, high = offsets[group : group + 2]
        return low + int(derive(seed, "sample in group", number, position)) % (high - low)

    def epoch(number: int, keep: tuple[Keep, ...]) -> list[Visit]:
        assert not keep
        found = [chain.visits(number * size + position)[drawn(number, position)] for position in range(size)]
        return [visit._replace(lane=None) for visit in found]

    dataset = chain.dataset.sample(weights, size, seed, by=offsets)
    verb = f".sample({weights}, {size}, {seed}, by={offsets})"
    return chain.then(verb, dataset, epoch, splittable=False, varies=True, stride=None)
