"""Advice of errors about groups of rows: what follows it keeps groups together."""

import numpy as np
import pytest

from loadax import from_arrays, from_source
from loadax.core.distributed import Process
from loadax.errors import ArgumentError
from loadax.row_index import group_offsets, group_verbs
from tests.advice.registry import Case, follows

LENGTHS = [3, 1, 2]
EPISODES = from_arrays({"episode": np.repeat([4, 2, 7], LENGTHS), "x": np.arange(6)})


@follows("numpy.append(0, numpy.cumsum(lengths))")
def offsets_that_end_early(case: Case) -> None:
    with case.refused(ArgumentError):
        EPISODES.windows(1, within=[0, 3])
    with case.refused(ArgumentError):
        EPISODES.windows(1, within=[0, 3, 2, 6])
    with case.refused(ArgumentError):
        EPISODES.windows(1, within=LENGTHS[0])
    assert len(EPISODES.windows(1, within=np.append(0, np.cumsum(LENGTHS)))) == 6


@follows("pass pad='edge' or pad='zeros' to pad their windows, or short='drop' to have none of them")
def groups_shorter_than_a_window(case: Case) -> None:
    with case.refused(ArgumentError):
        EPISODES.windows(2, within="episode")
    assert len(EPISODES.windows(2, within="episode", pad="edge")) == 6
    assert len(EPISODES.windows(2, within="episode", pad="zeros")) == 6
    assert len(EPISODES.windows(2, within="episode", short="drop")) == 3


@follows("call windows() before the verb that leaves out or reorders rows of a group")
def windows_of_torn_groups(case: Case) -> None:
    with case.refused(ArgumentError):
        EPISODES.filter(lambda row: row["x"] != 1, workers=1).windows(2, within="episode", short="drop")
    windows = EPISODES.windows(2, within="episode", short="drop")
    assert len(windows.filter(lambda rows: 1 not in rows["x"], workers=1)) == 1


@follows("pass pad='edge', or drop() the leaf before windows()")
def zeros_of_texts(case: Case) -> None:
    rows = from_source([{"name": "a", "x": 1}, {"name": "b", "x": 2}])
    with case.refused(ArgumentError):
        rows.windows(2, within=[0, 2], pad="zeros")
    assert rows.windows(2, within=[0, 2], pad="edge")[1]["name"].tolist() == ["b", "b"]
    assert rows.drop("name").windows(2, within=[0, 2], pad="zeros")[1]["x"].tolist() == [2, 0]


@follows("rename() it before windows()")
def a_leaf_with_the_name_of_the_mask(case: Case) -> None:
    rows = EPISODES.rename({"x": "window_mask"})
    with case.refused(ArgumentError):
        rows.windows(2, within="episode", pad="edge")
    assert len(rows.rename({"window_mask": "own"}).windows(2, within="episode", pad="edge")) == 6


@follows("sort the rows first: data.select(numpy.argsort(data.keep(")
def rows_of_a_group_apart(case: Case) -> None:
    data = from_arrays({"episode": np.array([0, 1, 0, 1]), "x": np.arange(4)})
    with case.refused(ArgumentError):
        data.offsets("episode")
    data = data.select(np.argsort(data.keep("episode").read(range(len(data)))["episode"], kind="stable"))
    assert data.windows(2, within="episode").read([0, 1])["x"].tolist() == [[0, 2], [1, 3]]


@follows("data.offsets(…, index=folder), with a folder that they share")
def a_leaf_in_a_run_of_processes(case: Case) -> None:
    with case.patch.context() as patch:
        patch.setattr(group_offsets, "this_process", lambda: Process(0, 2))
        with case.refused(ArgumentError):
            EPISODES.windows(1, within="episode")
        patch.setattr(group_verbs, "this_process", lambda: Process(0, 2))
        with pytest.raises(ArgumentError, match="in each of 2 processes; pass index=, a folder that they share"):
            EPISODES.split(0.5, by="episode")
    first, second = EPISODES.split(0.5, by="episode", index=case.folder / "index")
    assert len(first) + len(second) == 6
    found = EPISODES.offsets("episode", index=case.folder / "index")
    assert len(EPISODES.windows(1, within=found)) == 6


@follows("needs the same order of rows in every epoch; call it before")
def groups_of_a_shuffle(case: Case) -> None:
    with case.refused(ArgumentError):
        EPISODES.shuffle(0).windows(1, within="episode")
    with case.refused(ArgumentError):
        EPISODES.shuffle(0).offsets("episode")
    assert len(EPISODES.windows(1, within="episode").shuffle(0)) == 6
    assert len(EPISODES.offsets("episode")) == 4


@follows("is for windows within groups; pass within= as well, such as within=data.offsets()")
def padding_without_groups(case: Case) -> None:
    with case.refused(ArgumentError):
        EPISODES.windows(2, pad="edge")
    assert len(EPISODES.windows(2, within=EPISODES.offsets(), pad="edge")) == 6


@follows("split(by=) keeps the groups of each part together: call it before shuffle(by=)")
def slice_of_a_shuffle_of_groups(case: Case) -> None:
    with case.refused(ArgumentError):
        EPISODES.shuffle(0, by="episode")[:3]
    first, second = EPISODES.split([1, 2], by="episode")
    assert len(first.shuffle(0, by="episode")) + len(second.shuffle(0, by="episode")) == 6
    assert len(EPISODES.shuffle(0, by="episode").subset_per_epoch(range(3))) == 3


@follows("() after shuffle(by=) of rows that are listed several times can't tell which are kept; call …() before it")
def split_of_repeated_rows_in_groups(case: Case) -> None:
    twice = EPISODES.select([0, 1, 0, 1])
    with case.refused(ArgumentError):
        twice.shuffle(0, by=[0, 2, 4]).split(0.5, contiguous=True)
    first, _ = twice.split(0.5, contiguous=True, allow_shared_rows=True)
    assert len(first.shuffle(0, by=[0, 2])) == 2
