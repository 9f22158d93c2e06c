"""Advice of errors about splits, and about parts of a shuffle: what follows it shares no row."""

import grain
import numpy as np

import loadax
from loadax import Dataloader, Dataset, from_arrays, from_source
from loadax.errors import ArgumentError, StateError
from loadax.testing import disjoint
from tests.advice.registry import Case, follows

DATA = from_arrays({"x": np.arange(60)})
OTHER = from_arrays({"x": np.arange(30)})
DOCUMENTS = from_source([np.arange(1 + number % 5) for number in range(30)])


def apart(one: Dataset, other: Dataset) -> None:
    disjoint(one, other, epochs=3)


@follows("take a part of each dataset before mix(): mix({name: ds[:n], …}, weights)")
def slice_of_a_mixture(case: Case) -> None:
    mixed = loadax.mix({"a": DATA, "b": OTHER}, [1, 1])
    with case.refused(ArgumentError):
        mixed[:9]
    apart(
        loadax.mix({"a": DATA[:9].shuffle(0), "b": OTHER[:5]}, [1, 1]),
        loadax.mix({"a": DATA[9:], "b": OTHER[5:]}, [1, 1]),
    )
    assert len(mixed.subset_per_epoch(range(9))) == 9


@follows("take a part of the rows before sample(): ds[:n].sample(weights[:n])")
def slice_of_a_sample(case: Case) -> None:
    weights = np.arange(1, 61)
    with case.refused(ArgumentError):
        DATA.sample(weights)[:9]
    apart(DATA[:9].sample(weights[:9]), DATA[9:].sample(weights[9:]))


@follows("take the part before rows are repeated, and shuffle it: ds[:n].repeat(times).shuffle(seed)")
def slice_of_repeated_rows(case: Case) -> None:
    with case.refused(ArgumentError):
        DATA.shuffle(0).repeat(2)[:9]
    apart(DATA[:9].repeat(2).shuffle(0), DATA[9:].repeat(2).shuffle(0))
    shuffled = DATA.shuffle(0)
    apart(shuffled[:9].repeat(2).shuffle(0), shuffled[9:])


@follows("split() keeps the blocks of each part: ds.split([…, …]); or take the part before shuffle()")
def slice_of_a_block_shuffle(case: Case) -> None:
    blocks = DATA.shuffle(0, block=4, window=2, lanes=2)
    with case.refused(ArgumentError):
        blocks[:9]
    apart(*blocks.split([9, 51]))
    apart(DATA[:9].shuffle(0, block=4), DATA[9:].shuffle(0, block=4))


@follows("cut it: ds.subset_per_epoch(range(n))")
def zip_of_what_never_ends(case: Case) -> None:
    endless = loadax.mix({"a": DATA, "b": DATA}, [1, 1], stop="never")
    with case.refused(ArgumentError):
        DATA.zip(endless)
    assert len(DATA.zip(endless.subset_per_epoch(range(60)))) == 60
    assert len(endless.subset_per_epoch(range(60)).flat_map(lambda row: [row] * 4, fan_out=4)) == 240


@follows("never ends; check its parts, or ….subset_per_epoch(range(n))")
def disjoint_of_what_never_ends(case: Case) -> None:
    endless = loadax.mix([DATA[:9], DATA[9:20]], [1, 1], stop="never")
    with case.refused(ArgumentError):
        disjoint(endless, DATA[20:])
    apart(endless.subset_per_epoch(range(50)), DATA[20:])


@follows("shuffle with loadax: .shuffle(seed)")
def disjoint_of_a_source_that_shuffles(case: Case) -> None:
    rows = grain.MapDataset.source([{"x": np.int64(row)} for row in range(20)])
    shuffled = loadax.from_grain(rows.seed(0).shuffle().repeat(None))
    with case.refused(ArgumentError):
        disjoint(shuffled, shuffled)
    part = loadax.from_grain(rows).shuffle(0)
    apart(part[:9], part[9:])


@follows("; …; to split all the same, pass allow_shared_rows=True")
def splits_of_rows_that_are_made_of_the_same(case: Case) -> None:
    with case.refused(ArgumentError):
        DATA.windows(4).split(0.5)
    one, other = DATA.split(0.5, contiguous=True)
    apart(one.windows(4), other.windows(4))
    with case.refused(ArgumentError):
        DATA.windows(4).split(0.5, contiguous=True)
    apart(*DATA.windows(4).split(0.5, contiguous=True, gap=3))
    with case.refused(ArgumentError):
        DOCUMENTS.pack(4).split(0.5)
    one, other = DOCUMENTS.split(0.5)
    apart(one.pack(4), other.pack(4))
    with case.refused(ArgumentError):
        DATA.flat_map(lambda row: [row] * 2, 2).split(0.5)
    one, other = DATA.split(0.5)
    apart(one.flat_map(lambda row: [row] * 2, 2), other.flat_map(lambda row: [row] * 2, 2))
    with case.refused(ArgumentError):
        loadax.concat([DATA, DATA]).split(0.5)
    apart(loadax.concat([one, one]), loadax.concat([other, other]))
    assert len(DATA.windows(4).split(0.5, allow_shared_rows=True)) == 2


@follows("so that two parts share rows; …, and shuffle each; or, …")
def slices_of_shuffled_windows(case: Case) -> None:
    with case.refused(ArgumentError):
        DATA.windows(4).shuffle(0)[:9]
    one, other = DATA.split(0.5, contiguous=True)
    apart(one.windows(4).shuffle(0), other.windows(4).shuffle(0))
    assert len(DATA.windows(4).shuffle(0).subset_per_epoch(range(9))) == 9


@follows("to go on as before, pass … in its place")
def state_of_a_slice_of_a_shuffle(case: Case) -> None:
    before = DATA.shuffle(0).subset_per_epoch(range(16))
    with iter(Dataloader(before, 8, num_epochs=2)) as batches:
        next(batches)
        state = batches.get_state()
    with case.refused(StateError):
        Dataloader(DATA.shuffle(0)[:16], 8, num_epochs=2).iterate(state)
    with Dataloader(before, 8, num_epochs=2).iterate(state) as batches:
        assert batches.step == 1
