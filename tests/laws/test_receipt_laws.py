"""Law: a receipt says what counting the batches by hand says, for any chain of verbs."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

from loadax import Buckets, Dataloader
from loadax.loader.receipts.receipt import Receipt
from loadax.packing.packed import PackedSource
from loadax.sources.base import BaseSource, all_parts
from tests.laws.chain_checks import Run, _ragged_leaf, bucketed_steps
from tests.laws.chain_choices import EPOCHS, Choices, Tally
from tests.laws.chain_rows import Stores, form, placeable
from tests.laws.chain_verbs import Chain, Visit
from tests.limits import examples

RUNS = 200  # in the profile "fresh"
ENOUGH = 150  # runs that are sure to have every verb

pytestmark = pytest.mark.filterwarnings("ignore:split\\(")  # chains of few rows have empty parts


def test_receipts_of_random_chains_are_counted_by_hand(tmp_path: Path) -> None:
    stores = Stores(tmp_path)
    tally = Counter[str]()
    seed = 0
    while tally["chains"] < examples(RUNS):
        random = Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        choices = Choices(random, stores, folder, Tally(), share_refused=0)
        chain = choices.chain(depth=1, most=5)
        try:
            for loader, steps, gone in [*runs(choices.loadable(chain), random), *bucketed(chain, random)]:
                check(loader, steps, gone, random)
                tally["chains"] += 1
                tally["skipped"] += bool(loader.phases[0].plan.skips.count)
                tally["bucketed"] += bool(loader.phases[0].plan.buckets)
                tally["quarantined"] += len(gone) > 0
                tally.update({verb for verb in ("mix", "concat", "pack", "filter", "sample") if verb in repr(chain)})
        except Exception as error:
            error.add_note(f"seed {seed}: {chain}")
            raise
        seed += 1
    verbs = {"skipped", "bucketed", "quarantined", "mix", "concat", "pack", "filter", "sample"}
    assert tally["chains"] < ENOUGH or min(tally[verb] for verb in verbs) >= 5, tally


def runs(chain: Chain, random: Random) -> Iterator[tuple[Dataloader, list[list[Visit]], list[int]]]:
    """A loader of the chain without some steps, its steps by hand, and rows in quarantine."""
    named = type(chain.first) is dict and "mask" not in chain.first
    remainder: Literal["drop", "pad"] = random.choice(["drop", "pad"]) if named else "drop"
    batch_size = random.randint(1, max(1, min(10, len(chain))))
    forms = {form(value) for epoch in EPOCHS for value in chain.values(epoch)}
    if not len(chain) or len(forms) > 1 or chain.differs or not placeable(chain.first):
        return
    num_epochs = random.randint(1, 3)
    run = Run(chain, batch_size, num_epochs, remainder)
    gone: list[int] = []
    if named and random.random() < 0.3:
        gone = sorted(random.sample(range(chain.rows), min(3, chain.rows)))
    loader = Dataloader(chain.dataset, batch_size, num_epochs=num_epochs, remainder=remainder, quarantine=gone or None)
    steps = run.steps
    if len(steps) > 2 and random.random() < 0.5:
        start = random.randrange(len(steps) - 1)
        skipped = range(start, min(len(steps) - 1, start + random.randint(1, 4)))
        loader = loader.skip(skipped)
        steps = [batch for number, batch in enumerate(steps) if number not in skipped]
    yield loader, steps, gone


def bucketed(chain: Chain, random: Random) -> Iterator[tuple[Dataloader, list[list[Visit]], list[int]]]:
    """The same of a loader with buckets, where rows have a leaf of different lengths."""
    name = _ragged_leaf(chain)
    if name is None:
        return
    sizes = {length: random.randint(1, 4) for length in sorted(random.sample(range(1, 9), 2))}
    remainder: Literal["drop", "pad"] = random.choice(["drop", "pad"])
    steps = bucketed_steps(chain, name, sizes, remainder)
    if steps:
        buckets = Buckets(name, sizes, long="drop")
        loader = Dataloader(chain.dataset, buckets, num_epochs=2, remainder=remainder)
        yield loader, [batch for _, batch in steps], []


def check(loader: Dataloader, steps: list[list[Visit]], gone: list[int], random: Random) -> None:
    assert len(loader) == len(steps)
    step = random.randint(0, len(steps))
    receipt = loader.receipt(step)
    visits = [visit for batch in steps[:step] for visit in batch]
    source = loader.dataset.source
    parts = [part for part in all_parts(source) if all(child.first_row is None for child in part[1].children)]
    parts = [part for part in parts if len(part[1])]
    assert [one.name for one in receipt.sources] == [name for name, _, _ in parts]
    for one, (name, part, first) in zip(receipt.sources, parts, strict=True):
        own = [visit for visit in visits if first <= visit.row < first + len(part)]
        rows = [visit.row - first for visit in own if visit.row not in gone]
        assert (one.rows, one.distinct) == (len(rows), len({*rows}))
        assert one.epochs == len({visit.epoch for visit in own})
        assert one.tokens == tokens_of(part, rows)
        if own:
            check_seen(receipt, name, first, steps[:step], random.choice(own).row, gone)
    assert receipt.rows == sum(visit.row not in gone for visit in visits)
    assert len(receipt.to_json()) < 4096


def check_seen(receipt: Receipt, name: str, first: int, steps: list[list[Visit]], row: int, gone: list[int]) -> None:
    seen = [number for number, batch in enumerate(steps) for visit in batch if visit.row == row and row not in gone]
    assert receipt.saw(name, row - first) == seen


def tokens_of(source: BaseSource, rows: list[int]) -> int | None:
    """Tokens of rows, read one by one where they are packed."""
    if isinstance(source, PackedSource):
        return sum(entries(source, row) for row in rows)
    if source.row_tokens:
        return source.row_tokens * len(rows)
    lengths: list[Any] = [source.tokens(np.array([row])) for row in [0, *rows]]
    if lengths[0] is None:
        return None
    return int(sum(length[0] for length in lengths[1:]))


def entries(source: PackedSource, row: int) -> int:
    packed = source.read(np.array([row]))
    ids = [leaf for name, leaf in packed.items() if name.endswith("segment_ids") and name != "documents_segment_ids"]
    if ids:
        return sum(int((np.asarray(leaf) > 0).sum()) for leaf in ids)
    return sum(part.length for part in source.documents(row))
