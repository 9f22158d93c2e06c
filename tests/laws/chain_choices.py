"""Random chains: a source of any kind, then any verbs that have a meaning there; what has none must be refused."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import loadax
from loadax import Dataset, mix
from loadax.errors import LoadaxError, SourceError
from tests.laws import chain_groups as groups, chain_media as media, chain_verbs as verbs
from tests.laws.chain_rows import (
    Stores,
    each_leaf,
    floated,
    form,
    leaves,
    measured,
    named,
    noisy,
    noisy_batch,
    numeric,
    padded,
    paired,
    placeable,
    raised,
    reversed_batch,
    reversed_rows,
    scaled,
    some_rows,
    to_document,
    to_graph,
    to_text,
    tokenized,
    unnamed,
)
from tests.laws.chain_verbs import Chain

MOST = 60  # positions an epoch
EPOCHS = 0, 1, 2  # in which rows must be alike to be called so
FEW_MAPS = 6  # of a chain: numbers grow with each


@dataclass
class Tally:
    """What was tried."""

    sources: Counter[str] = field(default_factory=Counter)
    verbs: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return "\n".join(
            f"{name} ({counter.total()}):\n" + "\n".join(f"{count:8} {what}" for what, count in counter.most_common())
            for name, counter in vars(self).items()
        )

    def refused(self, what: str, call: Callable[[], Any]) -> None:
        """Calls what has no meaning, which must be refused by an error of loadax's that says something."""
        try:
            made = call()
            if isinstance(made, loadax.Dataset) and not made.is_stream:
                len(made)  # packs are planned when they are first needed
        except LoadaxError as error:
            text = re.sub(r"'[^']*'|[\d.]+|\[.*\]", "#", str(error))
            assert len(text) > 20, text
            self.refusals[f"{what}: {text[:70]}"] += 1
        else:
            raise AssertionError(f"{what} has no meaning here, and was not refused")


@dataclass
class Choices:
    """Chooses chains.

    Args:
        random: what decides.
        stores: files that sources may read.
        folder: for what this chain writes.
        tally: counts what was chosen.
        share_refused: how often a verb without a meaning is tried, where one was drawn.
    """

    random: Random
    stores: Stores
    folder: Path
    tally: Tally
    share_refused: float = 0.1
    written: int = 0

    def chain(self, depth: int = 2, most: int = 7) -> Chain:
        given = some_rows(self.random, self.stores)
        self.tally.sources[given.kind] += 1
        chain = verbs.opened(given)
        if self.random.random() < 0.7:
            chain = self.decode(chain)
        for _ in range(self.random.randint(0, most)):
            chain = self.one_more(chain, depth)
        return chain

    def loadable(self, chain: Chain) -> Chain:
        """The chain, mostly with what a batch needs."""
        if self.random.random() < 0.95 and not (chain.alike(*EPOCHS) and placeable(chain.first)):
            return self._count("map", verbs.map_rows(chain, measured, "measured"))
        return chain

    def one_more(self, chain: Chain, depth: int) -> Chain:
        table: list[tuple[str, Callable[[], Chain]]] = [
            ("slice", lambda: self.slice(chain)),
            ("slice", lambda: self.slice(chain)),
            ("select", lambda: self.select(chain)),
            ("sample", lambda: self.sample(chain)),
            ("shuffle", lambda: self.shuffle(chain)),
            ("shuffle blocks", lambda: self.shuffle_blocks(chain)),
            ("repeat", lambda: self.repeat(chain)),
            ("split", lambda: self.split(chain)),
            ("split_by", lambda: self.split_by(chain)),
            ("filter", lambda: self.filter(chain)),
            ("exclude", lambda: self.exclude(chain)),
            ("windows", lambda: self.windows(chain)),
            ("windows within", lambda: self.windows_within(chain)),
            ("windows within", lambda: self.windows_within(chain)),
            ("split groups", lambda: self.split_offsets(chain)),
            ("shuffle groups", lambda: self.shuffle_groups(chain)),
            ("sample groups", lambda: self.sample_groups(chain)),
            ("pack", lambda: self.pack(chain)),
            ("pack", lambda: self.pack(chain)),
            ("pack", lambda: self.pack_graphs(chain)),
            ("cache", lambda: self.cache(chain)),
            ("map", lambda: self.map(chain)),
            ("map", lambda: self.map(chain)),
            ("map_batch", lambda: self.map_batch(chain)),
            ("decode", lambda: self.decode(chain)),
            ("pad", lambda: self.pad(chain)),
            ("leaves", lambda: self.leaves(chain)),
            ("leaves", lambda: self.leaves(chain)),
            ("flat_map", lambda: self.flat_map(chain)),
            ("flat_map counts", lambda: self.flat_map_counts(chain)),
            ("group", lambda: self.group(chain)),
            ("concat", lambda: self.concat(chain, depth)),
            ("mix", lambda: self.mix(chain, depth)),
            ("zip", lambda: self.zip(chain, depth)),
        ]
        name, choose = self.random.choice(table)
        made = choose()
        return chain if not len(made) and self.random.random() < 0.8 else self._count(name, made, chain)

    def _count(self, name: str, made: Chain, before: Chain | None = None) -> Chain:
        if made is not before:
            self.tally.verbs[name] += 1
        return made

    def _without_meaning(self, chain: Chain, what: str, call: Callable[[], Any]) -> Chain:
        if self.random.random() < self.share_refused:
            self.tally.refused(what, call)
        return chain

    def seed(self) -> int:
        return self.random.choice([0, 1, 2, -1, 12345678901234567890])

    def path(self) -> Path:
        self.written += 1
        return self.folder / str(self.written)

    def index(self) -> Path | None:
        return self.path() if self.random.random() < 0.1 else None

    def slice(self, chain: Chain) -> Chain:
        end = [None, *range(-12, 31)]
        step = self.random.choice([None, None, 1, 2, 3, 7, -1, -2, -5])
        cut = slice(self.random.choice(end), self.random.choice(end), step)
        if chain.varies and self.random.random() < 0.5:
            return self._part(chain, range(*cut.indices(len(chain))), lambda: chain.dataset[cut])
        return verbs.cut(chain, cut.start, cut.stop, cut.step)

    def _part(self, chain: Chain, positions: Sequence[int], make: Callable[[], Dataset]) -> Chain:
        """A part of a shuffle, whose rows are fixed, where other parts would have other rows."""
        if not positions or not chain.splittable:
            return chain
        try:
            part = make()
        except LoadaxError as error:
            # Only these may have rows in common, or blocks.
            if not re.search(r"sample|repeat|select|windows|pack|group|flat_map|concat|zip|shuffle\(.*,", repr(chain)):
                raise
            self.tally.refusals[f"part: {str(error)[:60]}"] += 1
            return chain
        return verbs.fixed_part(chain, positions, part, f"[{positions}]")

    def select(self, chain: Chain) -> Chain:
        size = len(chain)
        rows = [self.random.randrange(-size, size) for _ in range(self.random.randint(0, 12))] if size else []
        if self.random.random() < 0.1:
            return self._without_meaning(chain, "select", lambda: chain.dataset.select([*rows, size]))
        if chain.varies and self.random.random() < 0.5:
            positions = [row % size for row in rows] if size else []
            return self._part(chain, positions, lambda: chain.dataset.select(rows))
        return verbs.select(chain, rows)

    def sample(self, chain: Chain) -> Chain:
        weights = [self.random.randint(0, 3) for _ in range(len(chain))]
        size, seed = self.random.randint(1, 20), self.seed()
        if chain.varies or not any(weights):
            return self._without_meaning(chain, "sample", lambda: chain.dataset.sample(weights, size, seed))
        return verbs.sample(chain, weights, size, seed)

    def shuffle(self, chain: Chain) -> Chain:
        seed = self.seed()
        if chain.mixed:
            return self._without_meaning(chain, "shuffle", lambda: chain.dataset.shuffle(seed))
        return verbs.shuffle(chain, seed)

    def shuffle_blocks(self, chain: Chain) -> Chain:
        block, window, lanes = (self.random.randint(1, 7) for _ in range(3))
        pinned = self.random.random() < 0.5
        if chain.mixed:
            return self._without_meaning(chain, "shuffle", lambda: chain.dataset.shuffle(0, block=block))
        if self.random.random() < 0.5 and verbs.chunk_rows(chain.dataset):
            return verbs.shuffle_blocks(chain, self.seed(), "chunks", window, lanes, pinned)
        if self.random.random() < 0.1 and not verbs.chunk_rows(chain.dataset):
            return self._without_meaning(chain, "shuffle", lambda: chain.dataset.shuffle(0, block="chunks"))
        return verbs.shuffle_blocks(chain, self.seed(), block, window, lanes, pinned)

    def repeat(self, chain: Chain) -> Chain:
        return verbs.repeat(chain, self.random.randint(1, 3)) if len(chain) * 3 <= MOST else chain

    def split(self, chain: Chain) -> Chain:
        fraction, seed, side = self.random.choice([0.1, 0.5, 0.9]), self.seed(), self.random.randint(0, 1)
        if not chain.splittable:
            return self._without_meaning(chain, "split", lambda: chain.dataset.split(fraction, seed))
        rows = len({visit.row for visit in chain.visits(0)})
        if rows > 1 and self.random.random() < 0.5:
            first = self.random.randint(1, rows - 1)
            if self.random.random() < self.share_refused:
                self.tally.refused("split", lambda: chain.dataset.split([first, rows - first + 1]))
            return verbs.split_counts(chain, [first, rows - first], seed, side)
        return verbs.split(chain, fraction, seed, side)

    def split_by(self, chain: Chain) -> Chain:
        fraction, seed, side = self.random.choice([0.3, 0.7]), self.seed(), self.random.randint(0, 1)
        if not chain.splittable or chain.random:
            return self._without_meaning(
                chain, "split_by", lambda: chain.dataset.split_by(verbs.group_of, fraction, seed, workers=1)
            )
        return verbs.split_groups(chain, fraction, seed, side) if self._answers(chain) else chain

    def filter(self, chain: Chain) -> Chain:
        rest = self.random.randint(0, 2)
        if not chain.splittable or chain.random or not verbs.kept(chain, rest):
            fn = verbs.leaves_other_rest(rest)
            return self._without_meaning(chain, "filter", lambda: chain.dataset.filter(fn, workers=1))
        index = self.index()
        if index is not None and self._answers(chain):
            verbs.keep(chain, rest, index)  # what follows is found there
        return verbs.keep(chain, rest, index) if self._answers(chain) else chain

    def _answers(self, chain: Chain) -> bool:
        """Whether each row can be looked at."""
        return chain.one_by_one or chain.alike(*EPOCHS)

    def exclude(self, chain: Chain) -> Chain:
        gone = self.random.sample(range(chain.rows), min(chain.rows, self.random.randint(0, 5)))
        if not chain.splittable or all(visit.row in gone for visit in chain.visits(0)):
            return self._without_meaning(chain, "exclude", lambda: chain.dataset.exclude(gone))
        return verbs.exclude(chain, gone)

    def windows(self, chain: Chain) -> Chain:
        length, stride = self.random.randint(1, 4), self.random.randint(1, 3)
        every = self.random.choice([1, 1, 2, 3])
        lead = self.random.choice([None, None, (1 - length) * every, 0, 1, 2])
        targets = 1 if lead is None else self.random.randint(1, 2)
        chosen = verbs.Windows(length, stride, lead, targets, every, self.random.choice(["avoid", "avoid", "cross"]))
        if chain.runs is None or not verbs.window_begins(chain, chosen):
            return self._without_meaning(chain, "windows", lambda: chain.dataset.windows(**chosen._asdict()))
        return verbs.windows(chain, chosen) if chain.alike(*EPOCHS) else chain

    def offsets(self, chain: Chain) -> list[int]:
        """Offsets of groups of the chain's positions, of which some are empty."""
        cuts = [self.random.randint(0, len(chain)) for _ in range(self.random.randint(0, 6))]
        return [0, *sorted(cuts), len(chain)]

    def windows_within(self, chain: Chain) -> Chain:
        length, stride = self.random.randint(1, 4), self.random.randint(1, 3)
        every = self.random.choice([1, 1, 2, 3])
        lead = self.random.choice([None, None, (1 - length) * every, 0, 1, 2])
        targets = 1 if lead is None else self.random.randint(1, 2)
        shape = verbs.Windows(length, stride, lead, targets, every, self.random.choice(["avoid", "cross"]))
        pad = self.random.choice([None, "edge", "zeros"])
        if chain.varies:
            return self._without_meaning(
                chain, "windows", lambda: chain.dataset.windows(length, within=[0, len(chain)])
            )
        if pad == "zeros" and not all(map(numeric, leaves(chain.first))):
            pad = "edge"
        chosen = groups.Within(shape, groups.together(chain, self.offsets(chain)), pad)
        if not groups.places(chain, chosen):
            options: dict[str, Any] = {"within": chosen.offsets, "pad": pad, "short": "drop"}
            return self._without_meaning(chain, "windows", lambda: chain.dataset.windows(**shape._asdict(), **options))
        taken = isinstance(chain.first, dict) and "window_mask" in chain.first
        return groups.windows(chain, chosen) if chain.alike(*EPOCHS) and not taken else chain

    def split_offsets(self, chain: Chain) -> Chain:
        offsets, fraction = self.offsets(chain), self.random.choice([0.3, 0.7])
        seed, side = self.seed(), self.random.randint(0, 1)
        if not chain.splittable:
            return self._without_meaning(chain, "split", lambda: chain.dataset.split(fraction, seed, by=offsets))
        rows = [visit.row for visit in chain.visits(0)]
        if chain.varies or len({*rows}) < len(rows):
            return chain  # groups are those of positions below shuffles and repeats
        return groups.split(chain, offsets, fraction, seed, side)

    def shuffle_groups(self, chain: Chain) -> Chain:
        offsets, seed = self.offsets(chain), self.seed()
        if chain.varies or chain.mixed:
            return self._without_meaning(chain, "shuffle", lambda: chain.dataset.shuffle(seed, by=offsets))
        return groups.shuffle(chain, offsets, seed)

    def sample_groups(self, chain: Chain) -> Chain:
        offsets, size, seed = self.offsets(chain), self.random.randint(1, 20), self.seed()
        weights = [self.random.randint(0, 3) * (low < high) for low, high in pairwise(offsets)]
        if chain.varies or not any(weights):
            return self._without_meaning(chain, "sample", lambda: chain.dataset.sample(weights, size, seed, by=offsets))
        return groups.sample(chain, offsets, weights, size, seed)

    def pack(self, chain: Chain) -> Chain:
        if not self._documents(chain) and len(chain) and self.random.random() < 0.6:
            chain = verbs.map_rows(chain, to_document, "to_document")
            self.tally.verbs["map"] += 1
        if any(
            isinstance(leaf, dict | tuple | list)
            for leaf in (chain.like.values() if isinstance(chain.like, dict) else ())
        ):
            return chain  # nested documents are not in the oracle
        if isinstance(chain.like, list):
            return chain  # nor are lists of arrays of one shape, which are entries
        ranks = {np.ndim(leaf) > 0 for row in chain.values() for leaf in leaves(row) if numeric(leaf)}
        if len(ranks) > 1:
            return chain  # nor are values of documents, but those of graphs
        method: Any = self.random.choice(["split", "best_fit", "first_fit"])
        long: Any = "error" if method == "split" else self.random.choice(["cut", "drop", "error"])
        window = None if method == "split" else self.random.choice([None, 1, 3, 8])
        seq_len = self.random.randint(1, 12)
        align, most = 1, None
        if method != "split" and self.random.random() < 0.5:
            align = self.random.choice([divisor for divisor in range(1, seq_len + 1) if seq_len % divisor == 0])
            most = self.random.choice([None, 1, 2, 5])
        names = set(chain.like) if isinstance(chain.like, dict) else {"tokens"}
        shift = (
            self.random.random() < 0.4 and ("tokens" in names or len(names) == 1) and not names & {"inputs", "targets"}
        )
        add = [name for name in verbs.SEQUENCES if self.random.random() < 0.8]
        value = self.random.randint(0, 1)
        packing = verbs.Packing(seq_len, method, long, window, align, most, value, "shift" if shift else None, add)
        lengths = [len(leaves(each)[0]) for each in chain.values()] if self._documents(chain) else []
        lengths = [max(0, length - shift) for length in lengths]
        fits = (
            long == "cut"
            or method == "split"
            or (long == "error" and max(lengths, default=0) <= packing[0])
            or long == "drop"
        )
        some = any(length and (long != "drop" or length <= packing[0]) for length in lengths)
        if chain.random or chain.batch_mapped or not some or not fits:
            return self._without_meaning(chain, "pack", lambda: chain.dataset.pack(**packing._asdict(), progress=False))
        index = self.index()
        if index is not None:
            verbs.pack(chain, packing, index)  # what follows is found there
        return verbs.pack(chain, packing, index)

    def pack_graphs(self, chain: Chain) -> Chain:
        if chain.random or chain.batch_mapped or not len(chain):
            return chain
        chain = verbs.map_rows(chain, to_graph, "to_graph")
        self.tally.verbs["map"] += 1
        align = self.random.choice([1, 3])
        sizes = {"nodes": self.random.choice([6, 9]), "edges": self.random.choice([6, 12])}
        method = self.random.choice(["best_fit", "first_fit"])
        return verbs.pack_graphs(chain, sizes, method, self.random.choice([2, 100]), self.random.choice([1, 3]), align)

    def _documents(self, chain: Chain) -> bool:
        """Whether all rows are documents with the same leaves: numbers, or arrays of one shape."""
        rows = chain.values()
        if not rows or not all(isinstance(row, dict | np.ndarray) and placeable(row) and leaves(row) for row in rows):
            return False
        if any(np.ndim(leaf) < 1 or len(leaf) != len(leaves(row)[0]) for row in rows for leaf in leaves(row)):
            return False
        if any(
            isinstance(row, dict)
            and (set(row) & set(verbs.SEQUENCES) or any(isinstance(each, dict | tuple | list) for each in row.values()))
            for row in rows
        ):
            return False  # or what pack() adds has no place; nested ones are not in the oracle
        kinds = {str(each_leaf(lambda leaf: (leaf.dtype, leaf.shape[1:]), row)) for row in rows if len(leaves(row)[0])}
        keys = {str(each_leaf(lambda leaf: 0, row)) for row in rows}
        return len(kinds) <= 1 and len(keys) == 1

    def cache(self, chain: Chain) -> Chain:
        if self.random.random() < 0.5:  # it writes files
            return chain
        path = self.path()
        good = not chain.varies and not chain.random and placeable(chain.first) and len(chain) and chain.alike(*EPOCHS)
        if not good and not chain.alike(*EPOCHS):  # ragged rows are written too; see tests/writing
            return chain
        if not good:
            return self._without_meaning(chain, "cache", lambda: chain.dataset.cache(path, progress=False))
        made = verbs.cached(chain, path)
        if self.random.random() < 0.2:  # found again
            return verbs.cached(chain, path)
        return made

    def map(self, chain: Chain) -> Chain:
        if chain.maps >= FEW_MAPS:
            return chain
        number = self.random.randint(0, 9)
        table: list[Callable[[], Chain]] = [
            lambda: verbs.map_rows(chain, scaled(number), f"scaled({number})", **self.spec(chain, scaled(number))),
            lambda: verbs.map_rows(chain, raised(number), f"raised({number})"),
            lambda: verbs.map_rows(chain, reversed_rows, "reversed_rows"),
            lambda: verbs.map_rows(
                chain, padded(1 + number), f"padded({1 + number})", **self.spec(chain, padded(1 + number))
            ),
            lambda: verbs.map_rows(chain, named, "named"),
            lambda: verbs.map_rows(chain, paired, "paired"),
            lambda: verbs.map_rows(chain, unnamed, "unnamed") if leaves(chain.like) else chain,
            lambda: verbs.map_rows(chain, floated, "floated", **self.spec(chain, floated)),
            lambda: verbs.map_rows(chain, measured, "measured"),
            lambda: verbs.map_rows(chain, to_text, "to_text"),
            lambda: verbs.map_rows(chain, to_document, "to_document"),
            lambda: verbs.map_random(chain, noisy, self.seed()),
            lambda: verbs.map_random(chain, noisy, self.seed()),
            lambda: verbs.map_indexed(chain, lambda row, index: scaled(index % 10)(row), "scaled by its row"),
            lambda: verbs.map_by_epoch(chain, "scaled by its row and epoch"),
        ]
        if isinstance(chain.like, str):
            table += [lambda: verbs.map_rows(chain, tokenized, "tokenized")] * 5
        return self.random.choice(table)() if self._answers(chain) else chain

    def flat_map(self, chain: Chain) -> Chain:
        functions = [scaled(number) for number in range(self.random.randint(1, 3))]
        if len(chain) * len(functions) > MOST or not len(chain) or not self._answers(chain) or chain.maps >= FEW_MAPS:
            return chain
        return verbs.flat_map(chain, functions)

    def flat_map_counts(self, chain: Chain) -> Chain:
        given = self.random.random() < 0.5
        if not len(chain) or not self._answers(chain) or chain.maps >= FEW_MAPS or len(chain) * 2 > MOST:
            return chain
        if chain.varies or (chain.random and not given):
            counts: Any = np.zeros(len(chain), np.int64) if given else verbs.count_of
            return self._without_meaning(chain, "flat_map", lambda: chain.dataset.flat_map(list, counts=counts))
        index = None if given else self.index()
        if index is not None:
            verbs.flat_map_counts(chain, given, index)  # what follows is found there
        return verbs.flat_map_counts(chain, given, index)

    def group(self, chain: Chain) -> Chain:
        given = self.random.random() < 0.4
        if not len(chain) or not self._answers(chain):
            return chain
        budgets = {name: self.random.randint(1, 9) for name in ("a", "b")[: self.random.randint(1, 2)]}
        method: Any = self.random.choice(["best_fit", "first_fit"])
        long: Any = self.random.choice(["error", "drop", "drop"])
        window, most = self.random.choice([None, 1, 3, 8]), self.random.choice([None, 1, 2, 5])
        grouping = verbs.Grouping(budgets, method, long, window, most)
        sizes = [verbs.sizes_of({"row": visit.row} if given else visit.value) for visit in chain.visits(0)]
        fits = [all(each[name] <= most for name, most in budgets.items()) for each in sizes]
        if (
            (chain.varies and given)
            or (chain.random and not given)
            or not any(fits)
            or (long == "error" and not all(fits))
        ):
            return self._without_meaning(chain, "group", lambda: verbs.group(chain, grouping, given))
        index = None if given else self.index()
        if index is not None:
            verbs.group(chain, grouping, given, index)  # what follows is found there
        return verbs.group(chain, grouping, given, index)

    def decode(self, chain: Chain) -> Chain:
        files = self.stores.media
        videos, sounds = files.contents
        table = [(media.decode_video, leaf) for leaf in media.leaves_of(chain, videos)]
        table += [(media.decode_audio, leaf) for leaf in media.leaves_of(chain, sounds)]
        if not table or not self._answers(chain):
            nothing = chain.dataset.decode_video("nothing", frames=1)
            return self._without_meaning(chain, "decode", lambda: nothing[0])
        decode, leaf = self.random.choice(table)
        self.tally.verbs[decode.__name__] += 1
        return decode(chain, files, leaf, self.random, self.seed())

    def pad(self, chain: Chain) -> Chain:
        most, value, truncate = self.random.randint(1, 12), self.random.randint(0, 1), self.random.random() < 0.7
        named = isinstance(chain.like, dict)
        side: Any = self.random.choice(["left", "right"])
        lengths: Any = most
        if named:
            lengths = {name: most for name, leaf in chain.like.items() if isinstance(leaf, np.ndarray) and leaf.ndim}
        rows = [chain.like, *(row for epoch in EPOCHS for row in chain.values(epoch))]
        if not self._answers(chain) or not lengths or len({_leaves_of(row) for row in rows}) > 1:
            return chain
        add_lengths = self.random.random() < 0.6
        if named and add_lengths and any(f"{name}_length" in chain.like for name in lengths):
            return chain
        padding = verbs.Padding(lengths, value, truncate, side, add_lengths)
        columns = [[row[name] for row in rows] for name in lengths] if named else [rows]
        if not all(_alike_but_for_lengths(column) for column in columns):
            return chain
        if len({form(verbs.padded_row(row, padding)) for row in rows}) > 1:
            return chain
        if not truncate and max((len(leaf) for column in columns for leaf in column[1:]), default=0) > most:
            dataset = chain.dataset.pad(*padding)
            return self._without_meaning(
                chain, "pad", lambda: [dataset.read(range(len(chain)), epoch) for epoch in EPOCHS]
            )
        return verbs.pad(chain, padding)

    def leaves(self, chain: Chain) -> Chain:
        """Some leaves, or some under other names: of dicts of dicts, or of a tuple."""
        rows = [chain.like, *(row for epoch in EPOCHS for row in chain.values(epoch))]
        verb: Any = self.random.choice(["rename", "rename", "keep", "drop"])
        if not isinstance(chain.like, dict) or len({tuple(sorted(verbs.dict_paths(row))) for row in rows}) > 1:
            return self._without_meaning(chain, verb, lambda: chain.dataset.keep("nothing")[0])
        paths = verbs.dict_paths(chain.like)
        nodes = sorted({path[:end] for path in paths for end in range(1, len(path) + 1)})
        chosen = self.random.sample(nodes, self.random.randint(1, max(1, len(nodes) - 1)))
        inside = {path for path in paths if any(path[: len(node)] == node for node in chosen)}
        if verb == "rename":
            return self._renamed(chain, paths, chosen[0])
        kept = [path for path in paths if (path in inside) == (verb == "keep")]
        names = {".".join(path): "" for path in chosen}
        if not kept:
            return self._without_meaning(chain, verb, lambda: chain.dataset.drop(*names)[0])
        return verbs.select_leaves(chain, verb, names, {path: path for path in kept})

    def _renamed(self, chain: Chain, paths: list[Any], old: Any) -> Chain:
        new = (*self.random.choice([old[:-1], (), ("deep", "er")]), self.random.choice(["r", "s", "tokens"]))
        moved = {path: (*new, *path[len(old) :]) if path[: len(old)] == old else path for path in paths}
        ends = list(moved.values())
        clash = any(one[: len(other)] == other for at, one in enumerate(ends) for other in ends[:at] + ends[at + 1 :])
        names = {".".join(old): ".".join(new)}
        if clash:
            return self._without_meaning(chain, "rename", lambda: chain.dataset.rename(names)[0])
        return verbs.select_leaves(chain, "rename", names, moved)

    def spec(self, chain: Chain, function: Callable[[Any], Any]) -> dict[str, Any]:
        """What the function returns, where that is one thing, and now and then."""
        if self.random.random() < 0.5:
            return {}
        rows = [function(each_leaf(np.copy, row)) for epoch in EPOCHS for row in chain.values(epoch) if placeable(row)]
        if len({form(row) for row in rows}) != 1 or len(rows) < len(chain):
            return {}
        return {"spec": each_leaf(np.zeros_like, rows[0])}

    def map_batch(self, chain: Chain) -> Chain:
        if chain.maps >= FEW_MAPS:
            return chain
        number = self.random.randint(0, 9)
        function = scaled(number)
        if not chain.alike(*EPOCHS):
            if not chain.alike(0):
                return self._without_meaning(
                    chain, "map_batch", lambda: chain.dataset.map_batch(function).read(range(len(chain)))
                )
            return chain
        kind = self.random.choice(["scaled", "elementwise", "others"])
        if kind == "others":
            table: list[Callable[[], Chain]] = [
                lambda: verbs.map_batch(chain, reversed_batch, reversed_rows, "reversed_batch"),
                lambda: verbs.map_batch_random(chain, noisy_batch, noisy, self.seed()),
                lambda: verbs.map_batch_by_epoch(chain, "scaled by its epoch"),
            ]
            return self.random.choice(table)()
        spec = self.spec(chain, function)
        return verbs.map_batch(
            chain, function, function, f"scaled({number}), {kind}", elementwise=kind == "elementwise", **spec
        )

    def others(self, chain: Chain, depth: int) -> list[Chain]:
        """Chains to be joined with another one: mostly such as go with it."""
        found = [chain]
        for _ in range(self.random.choice([1, 1, 2])):
            if self.random.random() < 0.3:
                found.append(self.one_more(chain, depth - 1))
            else:
                found.append(self.chain(depth - 1, most=3))
        if verbs.joined_differ(found) and self.random.random() < 0.8:
            found = [verbs.map_rows(each, measured, "measured") if self._answers(each) else each for each in found]
        return found

    def concat(self, chain: Chain, depth: int) -> Chain:
        if not depth or len(chain) > MOST // 2:
            return chain
        parts = [part for part in self.others(chain, depth) if len(part) <= MOST // 2]
        if verbs.joined_differ(parts) and not any(part.one_by_one for part in parts):
            return self._without_meaning(chain, "concat", lambda: verbs.join(parts))
        try:
            return verbs.join(parts)
        except SourceError as error:
            if not ("has no rows, and no spec" in str(error) and not all(map(len, parts))):
                raise
            self.tally.refusals["concat: the dataset has no rows, and no spec"] += 1
            return chain

    def mix(self, chain: Chain, depth: int) -> Chain:
        if not depth or len(chain) > MOST // 2:
            return chain
        parts = [part for part in self.others(chain, depth) if len(part) <= MOST // 2]
        stop: Any = self.random.choice(["first", "all", "never"])
        seed = self.seed()
        segments = {0: tuple(self.random.randint(1, 4) for _ in parts)}
        if self.random.random() < 0.3:
            segments[self.random.randint(1, 20)] = (*(self.random.randint(0, 3) for _ in parts[1:]), 1)
            if stop == "all":
                segments[21] = tuple(1 for _ in parts)
        if not all(map(len, parts)) or (verbs.joined_differ(parts) and not any(part.one_by_one for part in parts)):
            return self._without_meaning(chain, "mix", lambda: mix([part.dataset for part in parts], segments[0], seed))
        made = verbs.mixed(parts, segments, seed, stop, self.random.randint(1, 30), self.random.choice([1, 2, 3]))
        return made if len(made) <= MOST else verbs.cut(made, 0, MOST // 2, None)

    def zip(self, chain: Chain, depth: int) -> Chain:
        if not depth:
            return chain
        parts = self.others(chain, depth)
        size = min(map(len, parts))
        makes: list[Callable[[Any], Any]] = [
            lambda values: {f"part_{number}": value for number, value in enumerate(values)},
            tuple,
            lambda values: {"nested": list(values)},
        ]
        make = self.random.choice(makes)
        if max(map(len, parts)) > size and self.random.random() < self.share_refused:
            return self._without_meaning(chain, "zip", lambda: loadax.zip(make([part.dataset for part in parts])))
        if not size:
            return chain
        return verbs.zipped([part if len(part) == size else verbs.cut(part, 0, size, None) for part in parts], make)


def _leaves_of(row: Any) -> str:
    return str(each_leaf(lambda _: 0, row))


def _alike_but_for_lengths(column: list[Any]) -> bool:
    """Whether arrays of numbers differ in their first dimension at most."""
    arrays = all(isinstance(leaf, np.ndarray) and leaf.ndim and numeric(leaf) for leaf in column)
    return arrays and len({(str(leaf.dtype), leaf.shape[1:]) for leaf in column}) == 1
