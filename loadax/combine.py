"""Combines datasets: `concat`, `mix` and `zip`."""

import re
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

from loadax.composition.concat import ConcatenatedSource
from loadax.core.arguments import choice, entries, integer, number, shown
from loadax.core.tree import flatten
from loadax.dataset import Dataset, zipped
from loadax.errors import ArgumentError, StreamError
from loadax.io import as_dataset
from loadax.plan.concat import Concatenated
from loadax.plan.mix import ENDLESS, Mixed, Segment, Stop, whole_weights
from loadax.sources.library import comes_from


def concat(datasets: Sequence[Any]) -> Dataset:
    """Concatenates datasets. Each part keeps its own order and maps.

    A part's random maps use its own row numbers: give the maps of different parts different seeds, or map the whole.

    Raises:
        ArgumentError: When `datasets` is empty, or an entry is not a dataset.
        LeafError: When their element specs differ.
    """
    parts = [as_dataset(dataset) for dataset in _listed(datasets, "datasets: concat([one, other])")]
    if not parts:
        raise ArgumentError("concat() got no datasets; pass at least one")
    if any(part.is_stream for part in parts):
        raise StreamError("concat()")
    for index, part in enumerate(parts[:-1]):
        if len(part) >= ENDLESS:
            raise ArgumentError(f"concat: part {index} is endless; pass it last, mix() it, or slice it: ds[:n]")
    order = Concatenated(tuple(part.order for part in parts), tuple(len(part.source) for part in parts))
    _warn_of_other_numbers("concat", parts)
    return Dataset(ConcatenatedSource([part.reader for part in parts]), order)


def mix(
    datasets: Mapping[str, Any] | Sequence[Any],
    weights: Any,
    seed: int = 0,
    stop: Stop = "first",
    by: str = "example",
    version: int = 1,
) -> Dataset:
    """Mixes datasets in exact proportions: every block of positions has exactly its share of each.

    Each dataset keeps its own order and maps, and goes through its own epochs, with another shuffle in each if it is
    shuffled: shuffle the datasets, not the mixture. Any position is computed directly, without those before it.

    Args:
        datasets: Datasets with equal element specs, as a dict by name, or as a sequence, with names "0", "1", ….
        weights: Weights of at least 0 in any unit, as a dict by name or a sequence. They are converted to integers:
            exactly if they are decimals or fractions with few digits, else to a 65,536th of their sum. Or a schedule of
            weights by the first example that they apply to, `{0: …, 1_000_000: …}`. Changing a later entry does not
            change earlier examples, and each dataset continues where it was.
        seed: Seed of the order in which the datasets take turns.
        by: Unit of the schedule: "example", or "step", which needs a `Dataloader` directly after `mix`.
        stop: End of an epoch of the mixture. "first": when one dataset is exhausted; "all": when all have been
            exhausted once, while the others start over; "never": the mixture is endless.
        version: Version of the order within blocks. 1: one of 64 patterns per block, drawn once from the seed, so some
            places of a block have more rows of a dataset than others: 5.9 to 15.6 % where its weight is 0.1. 2: the
            patterns are rotated at random, and every place has its share. Pass 2 for new runs, above all where a place
            in the batch means a device; a saved run continues with the version that it began with.

    Raises:
        ArgumentError: When a weight is negative or not a number, all are zero, a name is wrong, or a dataset is empty.
        LeafError: When their element specs differ.

    Examples:
        >>> import numpy as np
        >>> from loadax import mix
        >>> web, code = np.arange(100), np.arange(100, 200)
        >>> mixed = mix({"web": web, "code": code}, weights={"web": 3, "code": 1})
        >>> rows = mixed.read(range(8))
        >>> int((rows < 100).sum()), int((rows >= 100).sum())
        (6, 2)
    """
    if not isinstance(datasets, Mapping):
        datasets = {str(index): each for index, each in enumerate(_listed(datasets, "datasets, or a dict of them"))}
    named = dict(datasets)
    if not named:
        raise ArgumentError("mix() got no datasets; pass at least one")
    for name in named:
        if not isinstance(name, str):
            raise ArgumentError(f"mix: a dataset is named {name!r}; pass a str, since weights by int are a schedule")
    parts = {name: as_dataset(dataset) for name, dataset in named.items()}
    for name, part in parts.items():
        if not part.order.size:
            raise ArgumentError(f"mix: dataset {name!r} has no rows; leave it out")
    choice("stop", stop, get_args(Stop))
    choice("by", by, ("example", "step"), "'example' or 'step': what a schedule counts")
    version = integer("version", version)
    if version not in (1, 2):
        raise ArgumentError(f"version={version}: pass 1 or 2")
    seed = integer("seed", seed, most=None)
    _warn_of_other_numbers("mix", list(parts.values()))
    source = ConcatenatedSource([part.reader for part in parts.values()], "mix", list(parts))
    order = Mixed(
        tuple(part.order for part in parts.values()),
        tuple(len(part.source) for part in parts.values()),
        tuple(parts),
        _segments(weights, list(parts)),
        seed,
        stop,
        by_step=by == "step",
        version=version,
    )
    if not order.by_step:
        _ = order.size  # raises for a mixture that would not end
    return Dataset(source, order)


def zip(datasets: Any, *others: Any) -> Dataset:
    """Zips datasets: example p is a tree of the examples at position p of each.

    Each dataset keeps its own order, maps and epochs. After `zip`, rows are positions: `shuffle`, `filter`, `split` and
    other verbs move, keep or drop whole zipped examples. `filter`, `split` and similar verbs need rows that are the
    same in every epoch, so shuffle after `zip`, not before it.

    Args:
        datasets: Datasets of equal lengths in a dict, tuple or list, which may be nested. Everything that a
            `Dataloader` accepts is a dataset, except a list of examples: pass `from_source(examples)`.
        others: None; `zip(one, other)` raises an error that says what to pass.

    Raises:
        ArgumentError: When there are no datasets, their lengths differ, or an entry is not a dataset.

    Examples:
        >>> import numpy as np
        >>> from loadax import zip
        >>> pairs = zip({"x": np.arange(4), "y": np.arange(4) ** 2})
        >>> pairs[3]
        {'x': np.int64(3), 'y': np.int64(9)}
        >>> [int(pair["y"]) for pair in pairs.filter(lambda pair: pair["x"] > 1)]
        [4, 9]
    """
    if others or not isinstance(datasets, Mapping | tuple | list):
        raise ArgumentError(f"datasets={shown(datasets)}: pass a dict, tuple or list of datasets: zip((one, other))")
    parts, structure = flatten(datasets, _is_part)
    if not parts:
        raise ArgumentError("zip() got no datasets; pass at least one")
    return zipped(list(map(_part, parts, structure.paths)), structure)


def _is_part(node: Any) -> bool:
    """Whether an entry is one dataset rather than a container of several."""
    one = comes_from(node, "xarray", "Dataset") or comes_from(node, "h5py", "Group")
    splits = comes_from(node, "datasets", "DatasetDict", "IterableDatasetDict")  # refused, with advice
    return one or splits or not isinstance(node, Mapping | tuple | list)


def _part(data: Any, path: str) -> Dataset:
    """The dataset of an entry of `zip`.

    Raises:
        ArgumentError: When it is not a dataset; names its path.
    """
    try:
        return as_dataset(data)
    except ArgumentError as error:
        in_list = re.search(r"\[\d+\]", path) is not None
        hint = "; in zip() a list holds datasets: for a list of examples pass loadax.from_source(examples)"
        raise ArgumentError(f"{path or 'datasets'}: {error}{hint * in_list}") from error


def _listed(datasets: Any, noun: str) -> list[Any]:
    if isinstance(datasets, Dataset):  # it is iterable, but yields examples
        raise ArgumentError(f"datasets={shown(datasets)} is one dataset: pass a list of {noun}")
    return entries("datasets", datasets, noun)


def _segments(weights: Any, names: list[str]) -> tuple[Segment, ...]:
    scheduled = isinstance(weights, Mapping) and bool(weights) and all(type(key) is int for key in weights)
    if not scheduled:
        return (Segment(0, _units(weights, names, "weights")),)
    starts = list(weights)
    if starts[0] != 0 or starts != sorted(set(starts)):
        raise ArgumentError(f"weights are scheduled from the examples {starts}; begin at 0, in ascending order")
    return tuple(Segment(start, _units(entry, names, f"weights[{start}]")) for start, entry in weights.items())


def _warn_of_other_numbers(verb: str, parts: Sequence[Dataset]) -> None:
    """Warns if one number is the name of several categories, as where files of a table are opened apart."""
    first, *others = [part.reader.traits.attributes for part in parts]
    for path, known in first.items():
        own = known.get("classes", [])
        for theirs in (other.get(path, {}).get("classes", []) for other in others):
            if own[: len(theirs)] != theirs[: len(own)]:
                warnings.warn(
                    f"{verb}: parts number the names of leaf {path!r} differently, {shown(own)} and {shown(theirs)}; "
                    f"number them alike, those of tables by classes={{{path!r}: […]}}",
                    stacklevel=3,
                )
                break


def _units(weights: Any, names: list[str], label: str) -> tuple[int, ...]:
    """Weights of one block as integers without a common divisor."""
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ArgumentError(f"{label} are for {sorted(map(str, weights))}, not {names}; pass one for each dataset")
        given = [weights[name] for name in names]
    elif (isinstance(weights, Sequence) and not isinstance(weights, str)) or getattr(weights, "ndim", 0) == 1:
        given = list(weights)
        if len(given) != len(names):
            raise ArgumentError(f"{label} has {len(given)} numbers for {len(names)} datasets; pass one for each")
    else:
        raise ArgumentError(f"{label}={weights!r}: pass a dict of weights by name, or a sequence of them")
    exact = [_fraction(weight, f"{label}[{names[index]!r}]") for index, weight in enumerate(given)]
    if not any(exact):
        raise ArgumentError(f"{label} are all zero; give at least one dataset a positive weight")
    return whole_weights(exact)


def _fraction(value: Any, label: str) -> Fraction:
    """The number as written in decimal: 0.1 is exactly a tenth."""
    remedy = "a number of at least 0"
    if number(label, value, remedy) < 0:
        raise ArgumentError(f"{label}={value!r}: pass {remedy}")
    return Fraction(value) if isinstance(value, int | Fraction) else Fraction(repr(float(value)))
