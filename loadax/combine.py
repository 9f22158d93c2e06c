"""Combines datasets: `concat`, `mix` and `zip`."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

from loadax.core.arguments import choice, entries, integer, number, shown
from loadax.core.tree import flatten
from loadax.dataset import Dataset, zipped
from loadax.errors import ArgumentError
from loadax.io import as_dataset
from loadax.plan.concat import Concatenated
from loadax.plan.mix import ENDLESS, Mixed, Segment, Stop
from loadax.sources.wrappers.concat import ConcatenatedSource

_MOST_UNITS = 1 << 16  # positions of a block of a mixture: weights are exact to a 65,536th


def concat(datasets: Sequence[Any]) -> Dataset:
    """One dataset behind another. Each part keeps its own order and maps; rows are numbered on from part to part.

    A part's random maps count its own rows: give the maps of different parts different seeds, or map the whole.

    Raises:
        ArgumentError: when there is none, or an entry is no dataset.
        LeafError: when their element specs differ; names the part and the leaf.
    """
    parts = [as_dataset(each) for each in _listed(datasets, "datasets: concat([one, other])")]
    if not parts:
        raise ArgumentError("concat() got no dataset; pass at least one")
    for place, part in enumerate(parts[:-1]):
        if len(part) >= ENDLESS:
            raise ArgumentError(
                f"concat: part {place} never ends, so nothing behind it would be met; mix() it, or cut it: ds[:n]"
            )
    order = Concatenated(tuple(part.order for part in parts), tuple(len(part.source) for part in parts))
    return Dataset(ConcatenatedSource([part.reader for part in parts]), order)


def mix(
    datasets: Mapping[str, Any] | Sequence[Any], weights: Any, seed: int = 0, stop: Stop = "first", by: str = "example"
) -> Dataset:
    """Datasets mixed by weights, in exact proportions: every block of positions holds exactly its share of each.

    Each dataset keeps its own order and maps and goes through its own epochs, each shuffled anew if it was shuffled:
    shuffle the datasets, not the mixture. Any position is computed at once, whatever came before.

    Args:
        datasets: with equal element specs; a dict names them, in a sequence they are called "0", "1" and so on.
        weights: one for each dataset, as a dict by name or a sequence: numbers of at least 0, in any unit. They become
            integers once: exactly when they are decimals or fractions with few digits, else to a 65,536th of their sum.
            Or a schedule of such weights, `{0: …, 1_000_000: …}`: from which example of the mixture on they hold.
            Changing what is scheduled later leaves all that comes before as it was, and each dataset goes on where it
            was.
        seed: of the order in which the datasets take turns.
        by: what a schedule counts: "example", or "step", which a `Dataloader` converts when nothing stands between.
        stop: where an epoch of the mixture ends: "first": when one dataset has been through; "all": when every one has,
            the others go on from their beginning meanwhile; "never": the mixture has no end.

    Raises:
        ArgumentError: when a weight is negative or no number, all are zero, a name is wrong, or a dataset has no rows.
        LeafError: when their element specs differ; names the dataset and the leaf.

    Examples:
        >>> import numpy as np
        >>> web, code = np.arange(100), np.arange(100, 200)
        >>> mixed = mix({"web": web, "code": code}, weights={"web": 3, "code": 1})
        >>> rows = mixed.read(range(8))
        >>> int((rows < 100).sum()), int((rows >= 100).sum())
        (6, 2)
    """
    named = (
        dict(datasets)
        if isinstance(datasets, Mapping)
        else {str(place): each for place, each in enumerate(_listed(datasets, "datasets, or a dict of them"))}
    )
    if not named:
        raise ArgumentError("mix() got no dataset; pass at least one")
    for name in named:
        if not isinstance(name, str):
            raise ArgumentError(
                f"mix: a dataset is called {name!r}; call it by a str, since weights by int are a schedule"
            )
    parts = {name: as_dataset(each) for name, each in named.items()}
    for name, part in parts.items():
        if not len(part):
            raise ArgumentError(f"mix: dataset {name!r} has no rows; leave it out")
    choice("stop", stop, get_args(Stop))
    choice("by", by, ("example", "step"), "'example' or 'step': what a schedule counts")
    seed = integer("seed", seed, most=None)
    source = ConcatenatedSource([part.reader for part in parts.values()], "mix", list(parts))
    order = Mixed(
        tuple(part.order for part in parts.values()),
        tuple(len(part.source) for part in parts.values()),
        tuple(parts),
        _segments(weights, list(parts)),
        seed,
        stop,
        by_step=by == "step",
    )
    if not order.by_step:
        _ = order.size  # a mixture that would not end is refused now
    return Dataset(source, order)


def zip(datasets: Any) -> Dataset:
    """Datasets side by side: example p is a tree of the examples at position p of each.

    Each dataset keeps its own order, maps and epochs. Behind `zip`, rows are positions: `shuffle` keeps together what
    stands side by side, and `filter`, `split` and other verbs that look at rows keep or leave out whole examples. They
    need rows that are the same in every epoch, so shuffle behind `zip`, not before it.

    Args:
        datasets: Datasets of equal lengths in a dict, tuple or list, which may be nested. Each may be whatever a
            `Dataloader` takes, but a list of examples is `from_source(examples)` here.

    Raises:
        ArgumentError: when there is none, their lengths differ, or an entry is no dataset.

    Examples:
        >>> import numpy as np
        >>> pairs = zip({"x": np.arange(4), "y": np.arange(4) ** 2})
        >>> pairs[3]
        {'x': np.int64(3), 'y': np.int64(9)}
        >>> [int(pair["y"]) for pair in pairs.filter(lambda pair: pair["x"] > 1)]
        [4, 9]
    """
    if not isinstance(datasets, Mapping | tuple | list):
        raise ArgumentError(f"datasets={shown(datasets)}: pass a dict, tuple or list of datasets: zip((one, other))")
    parts, structure = flatten(datasets, lambda node: not isinstance(node, Mapping | tuple | list))
    if not parts:
        raise ArgumentError("zip() got no dataset; pass at least one")
    return zipped([as_dataset(part) for part in parts], structure)


def _listed(datasets: Any, what: str) -> list[Any]:
    if isinstance(datasets, Dataset):  # it is iterable too: by its examples
        raise ArgumentError(f"datasets={shown(datasets)} is one dataset: pass a list of {what}")
    return entries("datasets", datasets, what)


def _segments(weights: Any, names: list[str]) -> tuple[Segment, ...]:
    scheduled = isinstance(weights, Mapping) and bool(weights) and all(type(key) is int for key in weights)
    if not scheduled:
        return (Segment(0, _units(weights, names, "weights")),)
    starts = list(weights)
    if starts[0] != 0 or starts != sorted(set(starts)):
        raise ArgumentError(f"weights are scheduled from the examples {starts}; begin at 0, and ascend")
    return tuple(Segment(start, _units(each, names, f"weights[{start}]")) for start, each in weights.items())


def _units(weights: Any, names: list[str], label: str) -> tuple[int, ...]:
    """The weights of one block as integers without a common divisor."""
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ArgumentError(
                f"{label} are for {sorted(map(str, weights))}, the datasets are {names}; give each one a weight"
            )
        given = [weights[name] for name in names]
    elif isinstance(weights, Sequence) and not isinstance(weights, str):
        given = list(weights)
        if len(given) != len(names):
            raise ArgumentError(f"{label} has {len(given)} numbers for {len(names)} datasets; give each one a weight")
    else:
        raise ArgumentError(f"{label}={weights!r}: pass a dict of weights by name, or a sequence of them")
    exact = [_fraction(each, f"{label}[{names[place]!r}]") for place, each in enumerate(given)]
    total = sum(exact)
    if not total:
        raise ArgumentError(f"{label} are all zero; give at least one dataset a positive weight")
    scale = math.lcm(*(share.denominator for share in (each / total for each in exact)))
    if scale > _MOST_UNITS:
        return _rounded([each / total for each in exact])
    units = [int(each / total * scale) for each in exact]
    divisor = math.gcd(*units)
    return tuple(each // divisor for each in units)


def _rounded(shares: list[Fraction]) -> tuple[int, ...]:
    """Shares in 65,536ths, by largest remainders; what has a weight keeps at least one."""
    units = [max(int(share * _MOST_UNITS), 1) if share else 0 for share in shares]
    missing = _MOST_UNITS - sum(units)
    by_remainder = sorted(range(len(shares)), key=lambda part: units[part] - shares[part] * _MOST_UNITS)
    for part in by_remainder[: max(missing, 0)]:
        units[part] += 1
    return tuple(units)


def _fraction(value: Any, label: str) -> Fraction:
    """The number as it is written: 0.1 is a tenth."""
    remedy = "a number of at least 0"
    if number(label, value, remedy) < 0:
        raise ArgumentError(f"{label}={value!r}: pass {remedy}")
    return Fraction(value) if isinstance(value, int | Fraction) else Fraction(repr(float(value)))
