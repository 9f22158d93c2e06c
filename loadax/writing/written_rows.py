"""Rows that `write_zarr` writes: a protocol, and the mapped rows of a dataset with the facts that identify them."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, final

import numpy as np

from loadax.core.distributed import this_process
from loadax.core.fingerprint import fingerprint, unrecognised
from loadax.core.formatting import name_of
from loadax.core.former import former
from loadax.core.spec import describe_spec, leaf_arrays, stack
from loadax.core.tree import flatten
from loadax.files.paths import local_path
from loadax.kept.index_folder import INNER
from loadax.plan.fixed_part import describe_first_epoch
from loadax.protocols import ArraySpec, Integers, Order, Tree, Visits
from loadax.reader import Reader
from loadax.seeds import ORDER_VERSION
from loadax.sources.base import Attributes, BaseSource, inner_functions, walk
from loadax.transforms import Examples, Map
from loadax.writing.data_fingerprint import digest_of, identify, sample_size, spread

_SAMPLE = 64  # rows whose contents identify the data of a store


class Rows(Protocol):
    """Rows at positions, with an identity, so that a store is never resumed with different data."""

    @property
    def spec(self) -> Tree:
        """Tree of `ArraySpec`s of one example."""

    @property
    def attributes(self) -> Attributes:
        """Meaning of the numbers of leaves."""

    def __len__(self) -> int: ...

    def read(self, positions: Integers) -> Tree:
        """Reads the examples at `positions` (int64[n]) as a tree of arrays, rows first; called concurrently."""

    def describe(self) -> Any:
        """Everything that determines the rows, as JSON: equal descriptions mean equal rows."""


@final
@dataclass(frozen=True)
class Written:
    """The examples at the positions of an order, as in epoch 0. Implements `Rows`.

    The functions of maps are part of its description, as far as their fingerprints differ.

    Args:
        reader: Reader of the rows.
        order: Order of the rows.
        key: The user's word for what the functions do, in place of their fingerprints; None: there is none.
        known: Examples of a sample, by position: no row is mapped twice.
        stored: Reads examples that were read already, and stored; None: `reader` reads them.
    """

    reader: Reader
    order: Order
    key: str | None = None
    known: dict[int, Tree] = field(default_factory=dict)
    stored: Callable[[Integers], Tree] | None = None

    @property
    def spec(self) -> Tree:
        return self.reader.spec

    @property
    def attributes(self) -> Attributes:
        return self.reader.traits.attributes

    def __len__(self) -> int:
        return self.order.size

    def read(self, positions: Integers) -> Tree:
        if self.stored is not None:
            return self.stored(positions)
        known = np.array(
            [position in self.known for position in positions.tolist()], np.bool_
        )
        if not known.any():
            return self.reader.read_visits(self._visits(positions))
        examples = self.examples(positions[known])
        stacked = stack(
            examples, self.spec, self._visits(positions[known]).rows.tolist()
        )
        if known.all():
            return stacked
        # among the rows to read
        places = np.flatnonzero(known) - np.arange(len(examples))
        leaves, structure = flatten(
            self.reader.read_visits(self._visits(positions[~known]))
        )
        pairs = zip(leaves, flatten(stacked)[0], strict=True)
        return structure.build(
            np.insert(leaf, places, own, axis=0) for leaf, own in pairs
        )

    def examples(self, positions: Integers) -> list[Tree]:
        """Reads the examples at `positions` (int64[n]), whose shapes may differ."""
        wanted = positions.tolist()
        unknown = [position for position in wanted if position not in self.known]
        if unknown:
            examples = self._unprobed.examples(
                self._visits(np.array(unknown, np.int64))
            )
        else:
            examples = []
        read = self.known | dict(zip(unknown, examples, strict=True))
        return [read[position] for position in wanted]

    @cached_property
    def _unprobed(self) -> Reader:
        """The reader, which need not map a row for a spec where rows are not stacked."""
        maps = [
            transform for transform in self.reader.maps if isinstance(transform, Map)
        ]
        if len(maps) < len(self.reader.maps):
            return self.reader
        unstacked = ArraySpec((), np.dtype(object))
        return replace(
            self.reader,
            maps=tuple(replace(transform, spec=unstacked) for transform in maps),
        )

    def sample(self, most: int) -> list[Tree]:
        """Examples at evenly spaced positions, at most `most`, which are kept for `read` and `examples`."""
        positions = spread(len(self), most)
        self.known.update(
            zip(positions.tolist(), self.examples(positions), strict=True)
        )
        return list(self.known.values())

    def row_of(self, position: int) -> int:
        """Row of the source at a position, for messages."""
        return int(self._visits(np.array([position])).rows[0])

    def describe(self) -> Any:
        return self.described(describe_spec(self.spec), self._sample())

    def sample_unmapped(self) -> str:
        """A hash of some rows before the maps."""
        reader = replace(self.reader, maps=())
        positions = spread(
            len(self), sample_size(reader.source, reader.source_row_bytes, _SAMPLE)
        )
        rows = reader.examples(self._visits(positions))
        return digest_of(leaf for row in rows for leaf in leaf_arrays(row))

    def described(self, examples: Any, sample: str) -> dict[str, Any]:
        """Same as `describe`, with this description of the examples, and this hash of some rows."""
        functions = _told(transform.function for transform in self.reader.maps)
        inner = _told(inner_functions(self.reader.source))
        return {
            "order version": ORDER_VERSION,
            "order": describe_first_epoch(self.order),
            "maps": self.reader.describe(),
            "examples": examples,
            "functions": functions if self.key is None else ["key", self.key],
            **({INNER: inner} if inner and self.key is None else {}),
            "sample": sample,
            **identify(self.reader.source),
        }

    def _visits(self, positions: Integers) -> Visits:
        return self.order.visits(np.zeros_like(positions), positions)

    def _sample(self) -> str:
        """A hash of some rows before the maps and of one row after them.

        It changes with the data and with the result of a map.
        """
        positions = spread(
            len(self),
            sample_size(self.reader.source, self.reader.source_row_bytes, _SAMPLE),
        )
        read = self.reader.read_source(self._visits(positions))
        if isinstance(read, Examples):
            before = read.items
        else:
            before = [read]
        trees = (*before, self.read(positions[len(positions) // 2 :][:1]))
        return digest_of(leaf for tree in trees for leaf in leaf_arrays(tree))


def recipe_of(
    reader: Reader, order: Order, key: str | None, *arguments: Any
) -> str | None:
    """A digest of everything that determines the examples at the positions of an order, without mapping a row.

    Rows are read only of sources that have neither local files nor arrays in memory to tell their data by.

    Args:
        reader: Reader of the rows.
        order: Order of the rows.
        key: The user's word for what all functions do; None: their fingerprints.
        arguments: What else the result depends on.

    Returns:
        None if a function's changes can't be detected, or if it is inside of a source.
    """
    functions = [transform.function for transform in reader.maps]
    if key is None and (
        unrecognised(functions) is not None or reader.source.traits.num_maps
    ):
        return None
    if key is None:
        known = [fingerprint(function).digest for function in functions]
    else:
        known = ["key", key]
    told = all(
        _is_told(source) for source in walk(reader.source) if not source.children
    )
    if told:
        sample = None
    else:
        sample = Written(reader, order).sample_unmapped()
    described = [ORDER_VERSION, describe_first_epoch(order), reader.describe()]
    facts = [known, described, sample, identify(reader.source), arguments]
    texts = [json.dumps(each, default=repr) for each in (former(facts), facts)]
    digests = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
    return "+".join(dict.fromkeys(digests))


def _told(functions: Iterable[Callable[..., Any]]) -> list[str]:
    return [
        f"{name_of(function).split(' ')[0]} {fingerprint(function).digest}"
        for function in functions
    ]


def _is_told(source: BaseSource) -> bool:
    """Whether `identify` tells the data of a source by its local files, or its arrays in memory."""
    addresses = source.addresses
    if addresses and this_process().count == 1:
        return all(
            local_path(address.partition("|")[0]) is not None for address in addresses
        )
    return next(iter(source.held(1)), None) is not None
