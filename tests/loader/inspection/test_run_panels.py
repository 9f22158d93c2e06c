"""The numbers in the picture of a run equal those of its batches, host by host and step by step."""

import re
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import loadax
from loadax import Buckets, Dataloader, Dataset, from_arrays, from_documents, from_source, mix
from loadax.errors import ArgumentError
from loadax.pictures.panels import Bars, Holders, PackingBars, Panel, Shares
from loadax.plan.mix import Mixed
from loadax.sharding import plan_mesh
from tests.meshes import ZOO, MeshCase
from tests.sources.chunked import ChunkedSource

Kind = TypeVar("Kind", bound=Panel)

WEB, CODE, BATCH = 900, 300, 40


def panel_of(loader: Dataloader, kind: type[Kind], steps: int = 8) -> Kind:
    """The one panel of a kind."""
    shown = chain.from_iterable(loader.explain(steps).panels().values())
    (panel,) = [panel for panel in shown if isinstance(panel, kind)]
    return panel


def interval(text: str) -> set[int]:
    """The numbers of "4 to 7", or of "4"."""
    first, _, last = text.replace(",", "").partition(" to ")
    return {*range(int(first), int(last or first) + 1)}


def loaders(case: MeshCase, partition: Any) -> list[Dataloader]:
    """One for each host."""
    data = from_arrays({"x": np.arange(96 * 16.0).reshape(96, 16)}).shuffle(seed=0)
    meshes = map(case.planned, range(case.processes))
    return [Dataloader(data, 16, mesh=mesh, partition=partition) for mesh in meshes]


@pytest.mark.parametrize("case", ZOO, ids=lambda case: case.name)
@pytest.mark.parametrize("columns", [False, True])
def test_holders_are_the_hosts_that_read_the_rows_and_columns(case: MeshCase, columns: bool) -> None:
    if columns:
        partition = P(case.axes[0], case.axes[-1]) if len(case.axes) > 1 else P(None, case.axes[0])
    else:
        partition = P(case.axes)
    hosts = loaders(case, partition)
    panel = panel_of(hosts[0], Holders)
    assert panel.kind == "host"
    for host, loader in enumerate(hosts):
        shown = {
            (row, column)
            for rows, line in zip(panel.rows, panel.holders, strict=True)
            for names, part in zip(panel.columns, line, strict=True)
            for row in interval(rows)
            for column in (interval(names) if names else range(16))
            if host in part
        }
        (layout,) = loader.phases[0].shard().layouts
        held = {(row, column) for rows, names in layout.boxes for row in range(*rows) for column in range(*names)}
        assert shown == held
        whole = loader.rows(0)
        assert [whole[row] for row in sorted({row for row, _ in shown})] == loader.local_rows(0).tolist()


def test_replicated_parts_name_all_of_their_holders() -> None:
    mesh = plan_mesh({"data": 4, "model": 2}, owners=[[0, 1]] * 4)
    panel = panel_of(Dataloader({"x": np.zeros((8, 4))}, 8, mesh=mesh, partition=P("data")), Holders)
    assert panel.holders == [[(0, 1)]] * 4
    assert panel.note == "each of 2 hosts reads 8 rows, 256 B a step; 2 hosts read each row"
    assert panel.title == "Who holds a batch, by P('data')"
    assert panel.x == "all columns"


def test_a_leaf_that_is_cut_otherwise_is_named() -> None:
    mesh = plan_mesh({"data": 4, "model": 2}, hosts=2)
    leaves = {"x": np.zeros((8, 4)), "y": np.zeros(8)}
    titles = [
        panel_of(Dataloader(leaves, 8, mesh=mesh, partition=partition), Holders).title
        for partition in (P("data", "model"), {"x": P(), "y": P("data")}, {"x": P("model"), "y": P("model")})
    ]
    assert titles == [
        "Who holds ['x'], by P('data', 'model')",
        "Who holds ['y'], by P('data')",
        "Who holds a batch, by P('model')",
    ]


def test_one_host_shows_its_devices() -> None:
    panel = panel_of(Dataloader({"x": np.zeros((8, 4, 2))}, 8, mesh=loadax.sharding.data_parallel()), Holders)
    assert (panel.kind, panel.note) == ("device", "8 devices of one host")
    assert panel.holders == [[(device,)] for device in range(8)]
    alone = Dataloader({"x": np.zeros((8, 4))}, 8, mesh=plan_mesh({"data": 1}, hosts=1))
    assert panel_of(alone, Holders).note == "1 device of one host"


def test_uneven_hosts_and_cuts_of_several_dims() -> None:
    mesh = plan_mesh({"a": 2, "b": 2, "c": 2}, owners=[[[0, 0], [0, 0]], [[0, 1], [1, 1]]])
    loader = Dataloader({"x": np.zeros((8, 4, 4))}, 8, mesh=mesh, partition=P("a", "b", "c"))
    panel = panel_of(loader, Holders)
    assert panel.note == "of 2 hosts, one reads up to 8 rows, 640 B a step; 2 hosts read each row"
    assert (panel.x, panel.columns) == ("parts of dims 1, 2", ["0", "1", "2", "3"])
    assert panel.holders[1] == [(0,), (1,), (1,), (1,)]


def test_a_mesh_of_thousands_of_hosts_is_sampled_and_says_so() -> None:
    mesh = plan_mesh({"data": 512, "seq": 64}, hosts=4096)
    panel = panel_of(Dataloader(np.zeros((4096, 64), np.uint8), 4096, mesh=mesh, partition=P("data", "seq")), Holders)
    assert panel.x == "columns (dim 1); 128 of 32,768 parts are shown"
    for rows, line in zip(panel.rows, panel.holders, strict=True):
        for column, part in zip(panel.columns, line, strict=True):
            assert part == ((min(interval(rows)) // 8 * 64 + int(column)) // 8,)


def parts() -> dict[str, Dataset]:
    return {
        "web": from_arrays({"x": np.zeros(WEB, np.int32)}).shuffle(0),
        "code": from_arrays({"x": np.ones(CODE, np.int32)}).shuffle(1),
    }


def mixtures() -> dict[str, Dataloader]:
    weights = {"web": 0.7, "code": 0.3}
    later = {0: weights, 400: {"web": 0.1, "code": 0.9}}
    mixed = mix(parts(), weights)
    return {
        "two epochs": Dataloader(mixed, BATCH, num_epochs=2),
        "padded": Dataloader(mixed, BATCH, num_epochs=2, remainder="pad"),
        "scheduled": Dataloader(mix(parts(), later, stop="never"), BATCH),
        "sizes": Dataloader(mixed, {0: 40, 5: 80, 8: 160}),
        "skipped": Dataloader(mixed, BATCH).skip([1, 2, 9]),
        "longer bins": Dataloader(mixed, 8, num_epochs=2),
        "skipped in longer bins": Dataloader(mixed, 8).skip([5, 40]),
        "behind a verb": Dataloader(mixed.subset_per_epoch(range(500)), BATCH, num_epochs=3),
    }


@pytest.mark.parametrize("name", mixtures())
def test_shares_are_those_of_the_batches(name: str) -> None:
    loader = mixtures()[name]
    panel = panel_of(loader, Shares)
    assert [label.partition(":")[0] for label in panel.shares] == ["web", "code"]
    web, code = (np.array(shares) for shares in panel.shares.values())
    np.testing.assert_allclose(web + code, 1)
    assert panel.edges[0] == 0
    plan = loader.phases[0].plan
    covered = 0
    for index, (first, stop) in enumerate(zip(panel.edges, panel.edges[1:], strict=False)):
        steps = [
            step for step in range(first, stop) if plan.position_of_step(step)[0] == plan.position_of_step(first)[0]
        ]
        if plan.skips.whole_step(steps[-1]) - plan.skips.whole_step(first) > steps[-1] - first:
            steps = [first]
        rows = np.concatenate([loader.rows(step) for step in steps])
        assert code[index] == pytest.approx((rows >= WEB).sum() / (rows >= 0).sum())
        covered += len(steps)
    total = panel.edges[-1]
    which = "the first 20" if name == "scheduled" else f"all {total}"
    several = "" if covered == total else f"{covered} of "
    assert panel.note == f"{several}{which} steps, in {len(panel.edges) - 1} bins"


def test_epochs_of_each_dataset_are_counted() -> None:
    loader = mixtures()["padded"]
    panel = panel_of(loader, Shares)
    rows = np.concatenate([loader.rows(step) for step in range(len(loader))])
    web = ((rows >= 0) & (rows < WEB)).sum()
    code = (rows >= WEB).sum()
    assert [*panel.shares] == [
        f"web: {web / (web + code):.1%}, {web / WEB:.2f} epochs",
        f"code: {code / (web + code):.1%}, {code / CODE:.2f} epochs",
    ]
    assert [*panel_of(mixtures()["scheduled"], Shares).shares] == ["web: 40.0%", "code: 60.0%"]


def test_shares_of_tokens_are_those_of_the_batches() -> None:
    stories = from_source([{"tokens": np.zeros(900, np.int32)}] * 50)
    chats = from_source([{"tokens": np.ones(100, np.int32)}] * 900)
    mixed = mix({"stories": stories, "chats": chats}, [1, 1], by="tokens")
    loader = Dataloader(mixed.map(lambda row: {"n": np.int32(len(row["tokens"]))}), 16, num_epochs=3)
    panel = panel_of(loader, Shares)
    assert panel.title == "Mixture: shares of tokens"
    assert panel.note == f"the first {loader.steps_per_epoch} steps, in {loader.steps_per_epoch} bins"
    for index, shares in enumerate(zip(*panel.shares.values(), strict=True)):
        lengths = np.asarray(loader[index]["n"])
        assert shares[0] == pytest.approx(lengths[lengths == 900].sum() / lengths.sum())


def test_many_small_datasets_are_one_share() -> None:
    many = {f"d{number}": from_arrays(np.arange(1000)) for number in range(10)}
    panel = panel_of(Dataloader(mix(many, [*range(1, 11)]), 88), Shares)
    assert next(iter(panel.shares)).startswith("d3: 7.3%")
    assert [*panel.shares][-1] == "3 others: 10.9%"
    np.testing.assert_allclose(np.sum([*panel.shares.values()], axis=0), 1)


def test_a_run_of_a_million_steps_asks_for_as_much_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    counts = Mixed.counts

    def counted(mixed: Mixed, position: int) -> Any:
        asked.append(position)
        return counts(mixed, position)

    loader = Dataloader(mix(parts(), [7, 3]), 8, num_epochs=10_000)
    monkeypatch.setattr(Mixed, "counts", counted)
    panel = panel_of(loader, Shares)
    assert len(loader) > 1_000_000
    assert len(panel.edges) == 65
    assert len(asked) <= 2 * 64 + 1
    assert re.fullmatch(r"[\d,]+ of all 1,250,000 steps, in 64 bins", panel.note)
    _web, code = panel.shares.values()
    np.testing.assert_allclose(code, 0.3, atol=0.02)


def bucketed(lengths: Any, **options: Any) -> Dataloader:
    tokens = {"tokens": np.ones(lengths.sum(), np.int32)}
    documents = from_documents(tokens, np.cumsum([0, *lengths]))
    return Dataloader(documents.shuffle(0), Buckets("tokens", {8: 16, 32: 8}), **options)


def test_padding_of_buckets_is_that_of_the_batches() -> None:
    lengths = np.concatenate([np.arange(64) % 8 + 1, np.arange(32) % 24 + 9])
    loader = bucketed(lengths)
    panel = panel_of(loader, Bars)
    filled, padding = dict[int, int](), dict[int, int]()
    for step in range(len(loader)):
        batch = loader[step]["tokens"]
        real = int((np.asarray(batch) > 0).sum())
        filled[batch.shape[1]] = filled.get(batch.shape[1], 0) + real
        padding[batch.shape[1]] = padding.get(batch.shape[1], 0) + batch.size - real
    np.testing.assert_allclose(panel.series["rows"], [filled[8], filled[32]])
    np.testing.assert_allclose(panel.series["padding"], [padding[8], padding[32]])
    assert panel.names == ["8: 43.8%\n4 steps of 16", "32: 42.2%\n4 steps of 8"]
    assert panel.note == f"{sum(padding.values()) / (64 * 8 + 32 * 32):.1%} of an epoch is padding"
    assert panel.stacked


def test_shares_in_buckets_are_those_of_the_batches() -> None:
    lengths = np.random.default_rng(0).integers(1, 33, 600)
    tokens = {"tokens": np.ones(lengths.sum(), np.int32)}
    documents = from_documents(tokens, np.cumsum([0, *lengths]))
    mixed = mix({"a": documents.shuffle(0), "b": documents[:200].shuffle(1)}, [3, 1])
    loader = Dataloader(mixed, Buckets("tokens", {8: 16, 32: 8}))
    panel = panel_of(loader, Shares)
    assert panel.note == f"all {len(loader)} steps, in 64 bins"
    for index, (first, stop) in enumerate(zip(panel.edges, panel.edges[1:], strict=False)):
        rows = np.concatenate([loader.rows(step) for step in range(first, stop)])
        assert panel.shares[[*panel.shares][1]][index] == pytest.approx((rows >= 600).mean())


def packed() -> Dataset:
    lengths = np.random.default_rng(0).lognormal(3, 1.2, 1_000).astype(int).clip(1, 64)
    documents = from_documents(np.ones(lengths.sum(), np.uint16), np.cumsum([0, *lengths]))
    return documents.pack(64, method="best_fit")


def test_balance_before_and_after_is_that_of_the_rows() -> None:
    data = packed()
    mesh = plan_mesh({"data": 8}, hosts=2)
    plain = Dataloader(data.shuffle(0), 64, mesh=mesh)
    loader = Dataloader(data.shuffle(0), 64, mesh=mesh, balance="attention")
    panel = panel_of(loader, Bars)
    step = int(re.findall(r"\d+", panel.title)[0])
    for run, label in ((plain, "without balance="), (loader, "with balance=")):
        costs = [
            sum(int((row == part).sum()) ** 2 for part in range(1, row.max() + 1))
            for row in data.read(run.rows(step))["segment_ids"]
        ]
        shares = np.array(costs).reshape(8, 8).sum(axis=1)
        np.testing.assert_allclose(panel.series[label], shares / shares.mean())
    explained = loader.explain().balance
    assert explained is not None
    assert panel.note.startswith(
        f"the most expensive of 8 parts: {explained[2]:.3f} times the mean, {explained[1]:.3f} without"
    )


def test_packed_rows_are_those_of_the_data() -> None:
    data = packed()
    panel = panel_of(Dataloader(data.shuffle(0), 16), PackingBars)
    for row in panel.rows:
        segments = data[int(row.name.removeprefix("row "))]["segment_ids"]
        drawn = np.zeros(64, np.int64)
        for number, (column, length) in enumerate(row.parts, 1):
            drawn[column : column + length] = number
        np.testing.assert_array_equal(drawn, segments)
    filled = (data.read(range(len(data)))["segment_ids"] > 0).mean()
    assert panel.note == f"all {len(data)} rows: {filled:.1%} filled, {1 - filled:.1%} padding"


OWNERS = {
    "in order": [[0, 0], [1, 1], [2, 2], [3, 3]],
    "interleaved": [[0, 1], [2, 3], [0, 1], [2, 3]],
    "same rows on two hosts": [[0, 2], [0, 2], [1, 3], [1, 3]],
}


@pytest.mark.parametrize("owners", OWNERS.values(), ids=OWNERS)
def test_chunks_are_those_of_the_rows_of_each_host(owners: list[list[int]]) -> None:
    data = from_source(ChunkedSource(np.arange(96.0), np.array([0, 1, 5, 30, 31, 90])))
    axes = {"data": 4, "model": 2}
    hosts = [
        Dataloader(data, 16, mesh=plan_mesh(axes, owners=owners, process=host), partition=P("data"))
        for host in range(4)
    ]
    steps = len(hosts[0])
    panel = panel_of(hosts[0], Bars, steps)
    starts = np.array([0, 1, 5, 30, 31, 90])
    met = [
        sum(len({*np.searchsorted(starts, loader.local_rows(step), side="right")}) for step in range(steps)) / steps
        for loader in hosts
    ]
    assert len({*met}) > 1
    assert (panel.names, panel.x) == (["0", "1", "2", "3"], "host (4 of 4)")
    np.testing.assert_allclose(panel.series["chunks"], met)
    assert "each step without caches" in panel.note


def test_chunks_of_a_block_shuffle_stay_open() -> None:
    data = from_source(ChunkedSource(np.zeros((4096, 2), np.float32), 64))
    shuffled = data.shuffle(0, block="chunks", window=2, lanes=8)
    panel = panel_of(Dataloader(shuffled, 32, mesh=plan_mesh({"data": 8}, hosts=8)), Bars)
    assert panel.note == "mean of 8 steps; kept open until used up: 1.00 rows decoded for each used"


def test_a_chain_shows_its_phases() -> None:
    first = Dataloader(mix(parts(), [7, 3]), BATCH, num_epochs=1)
    picture = loadax.chain([first, Dataloader(np.zeros(64, np.int32), 16, num_epochs=1)]).explain().plot()
    assert [axes.get_title("left") for axes in picture.axes] == [
        "Who holds a batch, by P('data')",
        f"From step {len(first)} on: Who holds a batch, by P('data')",
        "Mixture: shares of rows",
    ]


def test_panels_are_chosen_by_name() -> None:
    explained = mixtures()["sizes"].explain()
    assert [axes.get_title("left") for axes in explained.plot("mixture", "mesh").axes] == [
        "Mixture: shares of rows",
        "Who holds a batch, by P('data')",
    ]
    with pytest.raises(ArgumentError, match="panels='buckets': pass those that this order has: 'mesh', 'mixture'"):
        explained.plot("mixture", "buckets")
