"""Combines datasets: `concat`, `mix` and `zip`."""

import re
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np

from loadax.composition.concatenated import ConcatenatedSource
from loadax.core.arguments import (
    choice,
    entries,
    index_key,
    integer,
    number,
    shown,
)
from loadax.core.formatting import count_text
from loadax.core.tree import flatten
from loadax.dataset import Dataset, zipped
from loadax.errors import ArgumentError, StreamError
from loadax.io import as_dataset
from loadax.plan.concat import Concatenated
from loadax.plan.even import MOST_SLOTS
from loadax.plan.mix import ENDLESS, EVEN, Mixed, Segment, Stop, whole_weights
from loadax.plan.token_turns import PartTokens
from loadax.reader import DISTINCT, readers_of_parts
from loadax.sources.library import comes_from

_MOST_UNITS = 1 << 16  # sum of the weights of a block of a mixture before version 3
# of a share that is rounded, beyond which there is a warning
_MOST_OFF = Fraction(101, 100)
_MOST_DIGITS = 17  # behind the first one, which tell any float64 from others


def concat(datasets: Sequence[Any], version: int = DISTINCT) -> Dataset:
    """Concatenates datasets. Each part keeps its own order and maps.

    A part's random maps use its own row numbers, and a seed of the part, unless one was given to them.

    Args:
        datasets: The datasets.
        version: As of `zip`.

    Raises:
        ArgumentError: When `datasets` is empty, or an entry is not a dataset.
        LeafError: When their element specs differ.
    """
    parts = [
        as_dataset(dataset)
        for dataset in _listed(datasets, "datasets: concat([one, other])")
    ]
    if not parts:
        raise ArgumentError("concat() got no datasets; pass at least one")
    if any(part.is_stream for part in parts):
        raise StreamError("concat()")
    for index, part in enumerate(parts[:-1]):
        if len(part) >= ENDLESS:
            raise ArgumentError(
                f"concat: part {index} is endless; pass it last, mix() it, or pass "
                "ds.subset_per_epoch(range(n))"
            )
    order = Concatenated(
        tuple(part.order for part in parts), tuple(len(part.source) for part in parts)
    )
    _warn_of_other_numbers("concat", parts)
    return Dataset(
        ConcatenatedSource(
            readers_of_parts([part.reader for part in parts], version)
        ),
        order,
    )


def mix(
    datasets: Mapping[str, Any] | Sequence[Any],
    weights: Any,
    seed: int = 0,
    stop: Stop = "first",
    by: str = "example",
    version: int = EVEN,
    leaf: str = "tokens",
    index: Any = None,
    key: str | None = None,
) -> Dataset:
    """Mixes datasets in exact proportions, evenly: every run of positions has nearly its share of each.

    A block of positions, as many as the sum of the weights in lowest terms, has exactly its share. A shorter run of n
    positions has n times the share, give or take a few rows.

    Each dataset keeps its own order and maps, and goes through its own epochs, with another shuffle in each if it is
    shuffled: shuffle the datasets, not the mixture. Any position is computed directly, without those before it.

    Args:
        datasets: Datasets with equal element specs, as a dict by name, or as a sequence, with names "0", "1", ….
        weights: Weights of at least 0 in any unit, as a dict by name or a sequence, such as the lengths of the
            datasets, of which an epoch has each row once. Floats mean the decimal that they are written as: 0.7, also
            as float32 or bfloat16, is seven tenths. They are converted to integers: exactly, if their sum in lowest
            terms is at most 2**44, else to a 2**44th of their sum. Or a schedule of weights by the first example that
            they apply to, `{0: …, 1_000_000: …}`. Changing a later entry does not change earlier examples, and each
            dataset continues where it was.
        seed: Seed of the order in which the datasets take turns; by="tokens" does not need it.
        by: Unit of weights and schedule. "example": weights are shares of rows, a schedule counts rows. "step": it
            counts steps, which needs a `Dataloader` directly after `mix`. "tokens": weights are shares of tokens. At
            every row, the tokens of a dataset are within half of one of its rows of `weight * t`, where t is the same
            for all datasets (weighted fair queueing, Demers, Keshav and Shenker, 1989). A schedule counts rows.
        stop: End of an epoch of the mixture. "first": when one dataset is exhausted; "all": when all have been
            exhausted once, while the others start over; "never": the mixture is endless.
        version: Version of the order, for runs that began with an earlier one: a state goes on with its own. 1: what
            `mix` did by default before there was version 3. One of 64 random patterns a block, so that some places of a
            block have more rows of a dataset than others: 5.9 to 15.6 % where its weight is 0.1. 2: these are rotated
            at random, and every place has its share. In both, weights are rounded to a 65,536th of their sum, and
            random maps of different datasets that were given no seed draw equal numbers.
        leaf: Name of the leaf whose length is the number of tokens, where a source does not know it: with by="tokens".
        index: Folder to keep these lengths in, which all rows are read for once.
        key: Identifier of the maps in it, for maps that can't be recognised by their code.

    Raises:
        ArgumentError: When a weight is negative or not a number, all are zero, a name is wrong, or a dataset is empty.
            With by="tokens", also when the rows of a dataset change from epoch to epoch, or have no tokens.
        LeafError: When their element specs differ, or a row has no leaf `leaf`.

    Examples:
        >>> import numpy as np
        >>> from loadax import mix
        >>> web, code = np.arange(100), np.arange(100, 200)
        >>> mixed = mix({"web": web, "code": code}, weights={"web": 3, "code": 1})
        >>> rows = mixed.read(range(8))
        >>> int((rows < 100).sum()), int((rows >= 100).sum())
        (6, 2)
        >>> from loadax import from_source
        >>> long = from_source([{"tokens": np.zeros(90)}] * 10)
        >>> short = from_source([{"tokens": np.ones(10)}] * 100)
        >>> mixed = mix([long, short], weights=[1, 1], by="tokens")
        >>> [len(mixed[row]["tokens"]) for row in range(10)]
        [10, 10, 10, 10, 90, 10, 10, 10, 10, 10]
    """
    if not isinstance(datasets, Mapping):
        datasets = {
            str(index): each
            for index, each in enumerate(
                _listed(datasets, "datasets, or a dict of them")
            )
        }
    named = dict(datasets)
    if not named:
        raise ArgumentError("mix() got no datasets; pass at least one")
    for name in named:
        if not isinstance(name, str):
            raise ArgumentError(
                f"mix: a dataset is named {name!r}; pass a str, since weights by int "
                "are a schedule"
            )
    parts = {name: as_dataset(dataset) for name, dataset in named.items()}
    for name, part in parts.items():
        if not part.order.size:
            raise ArgumentError(f"mix: dataset {name!r} has no rows; leave it out")
    choice("stop", stop, get_args(Stop))
    choice(
        "by",
        by,
        ("example", "step", "tokens"),
        "'example' or 'step', what a schedule counts, or 'tokens'",
    )
    index_key(key, index, "the maps change")
    version = integer("version", version)
    if version not in (1, 2, EVEN):
        raise ArgumentError(
            f"version={version}: pass {EVEN}, or 1 or 2 to go on with a run that "
            "began with it"
        )
    if by == "tokens" and version != EVEN:
        raise ArgumentError(
            f"version={version}: by='tokens' has no earlier versions; leave it out"
        )
    seed = integer("seed", seed, most=None)
    _warn_of_other_numbers("mix", list(parts.values()))
    readers = readers_of_parts(
        [part.reader for part in parts.values()], DISTINCT if version == EVEN else 1
    )
    source = ConcatenatedSource(readers, "mix", list(parts))
    order = Mixed(
        tuple(part.order for part in parts.values()),
        tuple(len(part.source) for part in parts.values()),
        tuple(parts),
        _segments(weights, list(parts), version),
        seed,
        stop,
        by_step=by == "step",
        version=version,
        tokens=_tokens(parts, leaf, index, key) if by == "tokens" else None,
    )
    if not order.by_step:
        _ = order.size  # raises for a mixture that would not end
    return Dataset(source, order)


def _tokens(
    parts: Mapping[str, Dataset], leaf: str, index: Any, key: str | None
) -> tuple[PartTokens, ...]:
    from loadax.token_lengths import part_tokens

    return tuple(
        part_tokens(name, part, leaf, index, key) for name, part in parts.items()
    )


def zip(datasets: Any, *others: Any, version: int = DISTINCT) -> Dataset:
    """Zips datasets: example p is a tree of the examples at position p of each.

    Each dataset keeps its own order, maps and epochs. After `zip`, rows are positions: `shuffle`, `filter`, `split` and
    other verbs move, keep or drop whole zipped examples. `filter`, `split` and similar verbs need rows that are the
    same in every epoch, so shuffle after `zip`, not before it.

    Args:
        datasets: Datasets of equal lengths in a dict, tuple or list, which may be nested. Everything that a
            `Dataloader` accepts is a dataset, except a list of examples: pass `from_source(examples)`.
        others: None; `zip(one, other)` raises an error that says what to pass.
        version: 1, for a run that began with it: random maps of different parts that were given no seed draw equal
            numbers, as before there was version 2.

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
        raise ArgumentError(
            f"datasets={shown(datasets)}: pass a dict, tuple or list of datasets: "
            "zip((one, other))"
        )
    parts, structure = flatten(datasets, _is_part)
    if not parts:
        raise ArgumentError("zip() got no datasets; pass at least one")
    return zipped(list(map(_part, parts, structure.paths)), structure, version)


def _is_part(node: Any) -> bool:
    """Whether an entry is one dataset rather than a container of several."""
    one = comes_from(node, "xarray", "Dataset") or comes_from(node, "h5py", "Group")
    # refused, with advice
    splits = comes_from(node, "datasets", "DatasetDict", "IterableDatasetDict")
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
        hint = (
            "; in zip() a list holds datasets: for a list of examples pass "
            "loadax.from_source(examples)"
        )
        raise ArgumentError(
            f"{path or 'datasets'}: {error}{hint * in_list}"
        ) from error


def _listed(datasets: Any, noun: str) -> list[Any]:
    if isinstance(datasets, Dataset):  # it is iterable, but yields examples
        raise ArgumentError(
            f"datasets={shown(datasets)} is one dataset: pass a list of {noun}"
        )
    return entries("datasets", datasets, noun)


def _segments(weights: Any, names: list[str], version: int) -> tuple[Segment, ...]:
    scheduled = (
        isinstance(weights, Mapping)
        and bool(weights)
        and all(type(key) is int for key in weights)
    )
    if not scheduled:
        return (Segment(0, whole_units(weights, names, "weights", version)),)
    starts = list(weights)
    if starts[0] != 0 or starts != sorted(set(starts)):
        raise ArgumentError(
            f"weights are scheduled from the examples {starts}; begin at 0, in "
            "ascending order"
        )
    return tuple(
        Segment(start, whole_units(entry, names, f"weights[{start}]", version))
        for start, entry in weights.items()
    )


def _warn_of_other_numbers(verb: str, parts: Sequence[Dataset]) -> None:
    """Warns if one number is the name of several categories, as where files of a table are opened apart."""
    first, *others = [part.reader.traits.attributes for part in parts]
    for path, known in first.items():
        own = known.get("classes", [])
        for theirs in (other.get(path, {}).get("classes", []) for other in others):
            if own[: len(theirs)] != theirs[: len(own)]:
                warnings.warn(
                    f"{verb}: parts number the names of leaf {path!r} differently, "
                    f"{shown(own)} and {shown(theirs)}; number them alike, those of "
                    f"tables by classes={{{path!r}: […]}}",
                    stacklevel=3,
                )
                break


def whole_units(
    weights: Any, names: list[str], label: str, version: int
) -> tuple[int, ...]:
    """Weights of one block as integers without a common divisor.

    Args:
        weights: Weights by name, or a sequence of them, that a user passes.
        names: Names of the datasets.
        label: Name of the argument, for errors.
        version: Version of the mixture.

    Raises:
        ArgumentError: When a weight or a name is wrong.
    """
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ArgumentError(
                f"{label} are for {sorted(map(str, weights))}, not {names}; pass one "
                "for each dataset"
            )
        given = [weights[name] for name in names]
    elif (isinstance(weights, Sequence) and not isinstance(weights, str)) or getattr(
        weights, "ndim", 0
    ) == 1:
        given = list(weights)
        if len(given) != len(names):
            raise ArgumentError(
                f"{label} has {count_text(len(given), 'number')} for "
                f"{count_text(len(names), 'dataset')}; pass one for each"
            )
    else:
        raise ArgumentError(
            f"{label}={weights!r}: pass a dict of weights by name, or a sequence of "
            "them"
        )
    exact = [
        _fraction(weight, f"{label}[{names[index]!r}]", version)
        for index, weight in enumerate(given)
    ]
    if not any(exact):
        raise ArgumentError(
            f"{label} are all zero; give at least one dataset a positive weight"
        )
    if version == EVEN:
        most = MOST_SLOTS
    else:
        most = _MOST_UNITS
    units = whole_weights(exact, most)
    if sum(units) >= most:
        _warn_of_rounding(units, exact, names, label, version)
    return units


def _warn_of_rounding(
    units: Sequence[int],
    exact: Sequence[Fraction],
    names: Sequence[str],
    label: str,
    version: int,
) -> None:
    """Warns if a dataset is drawn noticeably more or less often than its weight says."""
    per_unit = sum(exact) / sum(units)
    times = {
        name: units[part] * per_unit / exact[part]
        for part, name in enumerate(names)
        if exact[part]
    }
    worst = max(times, key=lambda name: max(times[name], 1 / times[name]))
    if 1 / _MOST_OFF <= times[worst] <= _MOST_OFF:
        return
    if version < EVEN:
        remedy = f"a new run can pass version={EVEN}"
    else:
        remedy = "leave out datasets of such tiny weights"
    warnings.warn(
        f"mix: {label} in lowest terms have a larger sum than {sum(units):,}, to "
        f"which they are rounded, so dataset {worst!r} is drawn "
        f"{float(times[worst]):.3g} times as often as its weight says; {remedy}",
        stacklevel=5,
    )


def _fraction(value: Any, label: str, version: int) -> Fraction:
    """The number as written in decimal: 0.1 is exactly a tenth, in any floating-point type."""
    remedy = "a number of at least 0"
    exact = number(label, value, remedy)
    if exact < 0:
        raise ArgumentError(f"{label}={value!r}: pass {remedy}")
    if isinstance(value, int | Fraction):
        return Fraction(value)
    kind = getattr(getattr(value, "dtype", None), "type", float)
    if version < EVEN or issubclass(kind, np.float64 | float):
        return Fraction(repr(exact))
    if issubclass(kind, np.integer):
        return Fraction(int(value))
    # The decimal with the fewest digits that this type reads as the value
    for digits in range(1, _MOST_DIGITS):
        decimal = f"{exact:.{digits}e}"
        if kind(float(decimal)) == value:
            return Fraction(decimal)
    return Fraction(repr(exact))
