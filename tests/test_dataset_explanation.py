"""What `Dataset.explain` tells, and the numbers that its picture shows, are those of the data."""

import json
from itertools import chain
from typing import Any

import numpy as np
import pytest

from loadax import Dataset, concat, from_arrays, from_documents, from_source, from_stream, mix
from loadax.errors import ArgumentError, ScheduleError, StreamError
from loadax.pictures.panels import Histogram, PackingBars, Panel, Points, Shares

LENGTHS = np.random.default_rng(0).integers(1, 40, 500)


def documents() -> Dataset:
    return from_documents(np.ones(LENGTHS.sum(), np.uint16), np.cumsum([0, *LENGTHS]))


def mixture(**options: Any) -> Dataset:
    parts = {"web": from_arrays({"x": np.zeros(90)}).shuffle(0), "code": from_arrays({"x": np.ones(30)}).shuffle(1)}
    return mix(parts, {"web": 3, "code": 1}, **options)


def shown(data: Dataset) -> list[Panel]:
    return [*chain.from_iterable(data.explain().panels().values())]


def test_text_of_a_mixture() -> None:
    assert str(mixture().explain()) == (
        "data      mixture of 2\n"
        "order     mix(seed=0, stop='first') 3:1: web = 90 rows, shuffle(0); code = 30 rows, shuffle(1)\n"
        "rows      120 rows an epoch\n"
        "parts     web: 90 rows an epoch\n"
        "          code: 30 rows an epoch\n"
        "promises  each epoch has another order, which follows from the seed\n"
        "          an epoch has a row at most once\n"
        "leaves    ['x'] float64\n"
        "a row     8 B\n"
    )


def test_facts_as_json_and_html() -> None:
    found = from_arrays({"x": np.zeros((6, 4), np.int32), "<y>": np.zeros(6)}).repeat(2).explain()
    facts = json.loads(json.dumps(found.to_dict()))
    assert facts == {
        "data": "arrays in memory",
        "order": ["6 rows", "repeat(2)"],
        "rows": 12,
        "parts": [],
        "promises": ["the same order in every epoch", "an epoch may have a row several times"],
        "leaves": ["['<y>'] float64", "['x'] int32[4]"],
        "row_bytes": 24,
    }
    assert "&lt;y&gt;" in found._repr_html_()
    assert repr(found) == "<DatasetExplanation of arrays in memory; print it, or draw it: .plot()>"


def test_promises_are_kept() -> None:
    shuffled = from_arrays(np.arange(40)).shuffle(seed=0)
    for data in (
        shuffled,
        from_arrays(np.arange(40)).sample(np.ones(40), size=60),
        from_arrays(np.arange(40)),
        shuffled[:7],
    ):
        first, often = data.explain().promises
        epochs = [data.read(range(len(data)), epoch=epoch) for epoch in range(2)]
        assert (epochs[0] == epochs[1]).all() == (first == "the same order in every epoch")
        if often == "an epoch has a row at most once":
            assert len({*epochs[0].tolist()}) == len(data)


def test_parts_of_concatenations_and_endless_mixtures() -> None:
    data = from_arrays(np.arange(6))
    assert concat([data, data[:2]]).explain().parts == (("0", 6), ("1", 2))
    endless = mixture(stop="never").explain()
    assert endless.rows is None
    assert "rows      endless" in str(endless)


def test_rows_of_streams_and_of_mixtures_by_step_are_not_called_endless() -> None:
    stream = from_stream(lambda lane, lanes: iter(range(lane, 20, lanes)), lanes=2)
    assert "rows      known when they are read, of a stream" in str(stream.explain())
    text = str(mix([stream, stream], [1, 1]).explain())
    assert "parts     0: known when they are read, of a stream" in text
    assert "endless" not in text
    data = from_arrays(np.arange(90))
    by_step = str(mix([data, data], {0: [1, 1], 5: [1, 3]}, by="step").explain())
    assert " 1:1, 1:3 from step 5 on: " in by_step
    assert "rows      depend on the batch size, as the weights follow its steps" in by_step
    many = concat([data] * 20).explain()
    assert "          and 4 more\n" in str(many)


def test_streams_have_facts_but_no_picture() -> None:
    stream = from_stream(lambda lane, lanes: iter(range(lane, 80, lanes)), lanes=2).explain()
    assert stream.rows is None
    assert stream.promises == ("rows in the order of the stream's lanes, which states resume",)
    with pytest.raises(StreamError, match=r"explain\(\)\.plot\(\): a stream has no length and no random access"):
        stream.plot()


def test_mixtures_by_step_are_drawn_by_a_loader() -> None:
    weights = {0: {"web": 3, "code": 1}, 5: {"web": 1, "code": 1}}
    parts = {"web": from_arrays(np.zeros(90)), "code": from_arrays(np.ones(30))}
    data = mix(parts, weights, by="step", stop="never").explain()
    assert data.rows is None
    with pytest.raises(ScheduleError, match="depends on the batch size: pass it to a Dataloader as it is"):
        data.plot()


@pytest.mark.parametrize("size", [120, 900])
def test_shares_are_those_of_an_epoch(size: int) -> None:
    parts = {"web": from_arrays(np.zeros(size)).shuffle(0), "code": from_arrays(np.ones(size // 3)).shuffle(1)}
    mixed = mix(parts, {"web": 3, "code": 1})
    for data in (mixed, mixed.subset_per_epoch(range(0, len(mixed), 2))):
        (panel,) = shown(data)
        assert isinstance(panel, Shares)
        rows = data.read(range(len(data)))
        code = [*panel.shares.values()][1]
        bins = zip(panel.edges, panel.edges[1:], strict=False)
        np.testing.assert_allclose(code, [rows[first:stop].mean() for first, stop in bins])
        assert panel.edges[-1] == len(data)
        assert panel.note == f"epoch 0, in {len(code)} bins"


def test_an_endless_mixture_shows_its_beginning() -> None:
    (panel,) = shown(mixture(stop="never"))
    assert isinstance(panel, Shares)
    assert panel.note == "first 1,048,576 positions, in 64 bins"


def test_rows_are_at_the_positions_that_the_data_has_them() -> None:
    data = from_arrays(np.arange(1000)).shuffle(seed=0, block=8, lanes=2)
    (panel,) = shown(data)
    assert isinstance(panel, Points)
    assert panel.note == "200 of 1,000 positions"
    for epoch, rows in enumerate(panel.rows.values()):
        assert data.read(panel.positions, epoch=epoch).tolist() == rows
    (same,) = shown(from_arrays(np.arange(3)))
    assert isinstance(same, Points)
    assert same.rows == {"epoch 0": [0, 1, 2]}


def test_lengths_are_those_of_the_documents() -> None:
    points, counts = shown(documents()[:300])
    assert isinstance(counts, Histogram)
    assert isinstance(points, Points)
    np.testing.assert_array_equal(counts.counts, np.histogram(LENGTHS[:300], counts.edges)[0])
    assert sum(counts.counts) == 300
    assert (
        counts.note
        == f"all 300 documents: {LENGTHS[:300].min()} to {LENGTHS[:300].max()}, median {np.median(LENGTHS[:300]):.0f}"
    )


def test_budgets_of_packed_rows_have_panels() -> None:
    pairs = from_source(
        [{"inputs": np.ones(n, np.int32), "targets": np.ones(1 + n // 2, np.int32)} for n in range(1, 30)]
    )
    data = pairs.pack({"inputs": 40, "targets": 20}, method="first_fit")
    _, inputs, targets = shown(data)
    assert isinstance(inputs, PackingBars)
    assert isinstance(targets, PackingBars)
    assert (inputs.length, targets.length) == (40, 20)
    assert (inputs.x, targets.x) == ("column of inputs", "column of targets")
    for panel, name in ((inputs, "inputs"), (targets, "targets")):
        for row in panel.rows:
            segments = data[int(row.name.removeprefix("row "))][f"{name}_segment_ids"]
            assert sum(length for _, length in row.parts) == (segments > 0).sum()
    rows = data.read(range(len(data)))
    filled = ((rows["inputs_segment_ids"] > 0).sum() + (rows["targets_segment_ids"] > 0).sum()) / (60 * len(data))
    assert f"{filled:.1%} filled" in inputs.note


def test_packed_parts_of_a_mixture_are_named() -> None:
    packed = documents().pack(64, method="best_fit")
    titles = [panel.title for panel in shown(mix({"a": packed, "b": packed[:9]}, [1, 1]))]
    assert titles == ["Mixture: shares of rows", "Documents in packed rows of a", "Documents in packed rows of b"]


def test_an_empty_dataset_is_drawn() -> None:
    assert from_arrays(np.arange(5))[:0].explain().plot().axes[0].get_title("left") == "Row at each position"


def test_panels_are_chosen_by_name() -> None:
    explained = documents().explain()
    assert [axes.get_title("left") for axes in explained.plot("lengths").axes] == ["Lengths of documents"]
    with pytest.raises(ArgumentError, match="panels='mixture': pass those that this order has: 'rows', 'lengths'"):
        explained.plot("mixture")


def test_a_scheduled_endless_mixture_shows_its_schedule() -> None:
    parts = {"web": from_arrays(np.zeros(90)), "code": from_arrays(np.ones(30))}
    later = {0: {"web": 3, "code": 1}, 400: {"web": 1, "code": 3}}
    (panel,) = shown(mix(parts, later, stop="never"))
    assert isinstance(panel, Shares)
    assert panel.edges == [*range(0, 801, 50)]
    assert [*panel.shares.values()][1][7:9] == pytest.approx([0.25, 0.75], abs=0.05)
