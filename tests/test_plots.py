"""Figures show the figures of the plan, and what can't be drawn is refused."""

import sys
from typing import Any

import numpy as np
import pytest

import loadax
from loadax import Dataloader, from_arrays, from_source, mix, plots
from loadax.errors import ArgumentError, UnsupportedError

DATA = from_arrays(np.arange(1000))
_wrong: Any = 3


def axes_of(figure: Any) -> list[Any]:
    return list(figure.axes)


def stairs(figure: Any) -> list[Any]:
    return [patch.get_data() for patch in figure.axes[0].patches]


def test_mixture_shows_drawn_shares() -> None:
    schedule: Any = {0: {"a": 3, "b": 1}, 100: {"a": 1, "b": 3}}
    data = mix({"a": DATA, "b": DATA}, schedule, stop="never")
    figure = plots.mixture(data, 10)
    a, b = stairs(figure)
    assert (a.edges[-1], figure.axes[0].get_xlabel()) == (20.0, "step of 10 rows")
    assert (a.values[:100].mean(), a.values[100:].mean()) == pytest.approx((0.75, 0.25))
    assert b.values.tolist() == pytest.approx([1.0] * 200)
    first = data.order.visits(np.zeros(200, np.int64), np.arange(200)).rows < len(DATA)
    assert a.values.tolist() == first.tolist()


def test_a_mixture_by_step_and_of_an_epoch() -> None:
    schedule: Any = {0: [1, 0], 5: [0, 1]}
    by_step = mix([DATA, DATA], schedule, by="step", stop="never")
    with pytest.raises(ArgumentError, match="scheduled by step; pass batch_size="):
        plots.mixture(by_step)
    first = stairs(plots.mixture(by_step, 8))[0]
    assert (first.edges[-1], first.values.sum() * np.diff(first.edges)[0]) == (10.0, 5.0)
    even = mix([DATA, DATA], [1, 1], stop="first")
    (values, edges, _), _ = stairs(plots.mixture(even))
    assert edges[-1] == len(even)
    assert np.allclose(values, 0.5)
    assert stairs(plots.mixture(even, positions=40))[0].edges[-1] == 40


def test_packed_rows() -> None:
    data = from_source([np.arange(3), np.arange(4), np.arange(1), np.arange(2)]).pack(4, method="first_fit")
    figure = plots.packing(data.shuffle(seed=0))
    fill = [np.count_nonzero(row["segment_ids"]) / 4 for row in data]
    documents = [row["segment_ids"].max() for row in data]
    left, right = axes_of(figure)
    assert left.get_title() == f"{np.mean(fill):.1%} of all entries are documents"
    assert right.get_title() == f"{np.mean(documents):.1f} documents in a row"
    assert sum(bar.get_height() for bar in left.patches) == len(data)


def test_rows_packed_by_leaf_may_have_a_leaf_of_that_name() -> None:
    documents = [{"x": np.arange(size), "segment_ids": np.arange(2 * size)} for size in (3, 4, 1, 2)]
    data = from_source(documents).pack({"x": 4, "segment_ids": 8}, method="first_fit")
    left, _ = axes_of(plots.packing(data))
    assert left.get_title() == "83.3% of all entries are documents"  # 10 + 20 entries in three rows of 12


def test_a_shuffle() -> None:
    data = DATA.shuffle(seed=3)
    points = axes_of(plots.shuffle(data, epoch=2))[0].lines[0]
    positions = points.get_xdata().astype(int)
    assert points.get_ydata().tolist() == data.read(positions, epoch=2).tolist()
    straight = axes_of(plots.shuffle(DATA))[1]
    assert straight.patches[0].get_height() == pytest.approx(40)  # all neighbours are in the first of 40 bins
    assert len(axes_of(plots.shuffle(DATA[:2]))[0].lines[0].get_xdata()) == 1


def test_waits() -> None:
    with Dataloader(DATA, 8).iterate() as batches:
        with pytest.raises(ArgumentError, match="no batch was handed out yet; take some first"):
            plots.waits(batches)
        for _ in range(5):
            next(batches)
        above, below = axes_of(plots.waits(batches))
        assert len(above.collections[0].get_segments()) == 5
        assert len(below.lines[0].get_xdata()) == 5


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.mixture(DATA), "is not a mixture; pass what loadax.mix returned, before other verbs"),
        (lambda: plots.mixture(mix([DATA, DATA], [1, 1])[:9]), "is not a mixture"),
        (lambda: plots.packing(DATA), "is not packed; pass what Dataset.pack returned"),
        (lambda: plots.shuffle(DATA[:1]), "has 1 positions; pass a dataset of two or more"),
        (lambda: plots.shuffle(_wrong), "data=3 is not a Dataset; pass one, such as loadax.as_dataset"),
        (lambda: plots.waits(_wrong), r"batches=3: pass an iterator of a Dataloader: loader.iterate\(\)"),
    ],
)
def test_what_can_not_be_drawn(draw: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        draw()


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    figure: Any = plots.shuffle(loadax.from_arrays(np.arange(10)))
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"loadax\.plots needs matplotlib"):
        loadax.plots.shuffle(DATA)
