"""Batches of molecules beside jraph, and packing of shifted targets beside plain packing, in turns.

python benchmarks/packed_graphs.py [--graphs 20_000] [--rounds 7] [--json FILE]

- "graphs": random molecules of the sizes of ogbg-molpcba, in batches on the device of 8 times (and of one time) 512
  nodes, 4,096 edges and 64 graphs. "loadax" packs them with `pack`, and its rows become a `GraphsTuple` in a map.
  "jraph" batches them with `jraph.dynamically_batch`, as the flax example ogbg_molpcba does, and stacks 8 of these
  (`pip install jraph`).
- "shift": host batches of 64 packed rows of 2,048 tokens, of `pack(targets="shift")` beside `pack()`, and beside the
  older recipe, `pack(2049)` and a map that cuts inputs and targets.

Each round measures all of them, one after the other; the ratio is the median of the rounds' ratios.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType
from turns import machine

from loadax import Dataloader, Dataset, from_documents, from_source

_NODES, _EDGES, _GRAPHS = 512, 4096, 64

try:
    import jraph  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    jraph = None

Graph = dict[str, Any]
Contestant = Callable[[], Generator[Any, None, None]]
_READ_AHEAD = 12  # batches at the start that are not timed


def molecules(count: int) -> list[Graph]:
    """Random molecules with 26 nodes on average and about as many bonds, in both directions, and self-edges."""
    random = np.random.default_rng(0)
    found = []
    for nodes in np.clip(random.normal(26, 8, count), 4, 120).astype(int).tolist():
        bonds = random.integers(0, nodes, (2, nodes + 2)).astype(np.int32)
        loops = np.arange(nodes, dtype=np.int32)
        found.append(
            {
                "nodes": random.normal(size=(nodes, 9)).astype(np.float32),
                "edges": random.normal(size=(3 * nodes + 4, 3)).astype(np.float32),
                "senders": np.concatenate([bonds[0], bonds[1], loops]),
                "receivers": np.concatenate([bonds[1], bonds[0], loops]),
                "globals": random.normal(size=128).astype(np.float32),
            }
        )
    return found


def graphs_tuple(rows: Graph) -> Any:
    """Packed rows as batches of jraph, where the padding is the graph after the last one."""
    count = len(rows["nodes"])
    padding = rows["documents_segment_ids"].max(axis=1)[:, None]
    first = np.arange(count)[:, None] * (_GRAPHS + 1)
    kept = {name: rows[name] for name in ("nodes", "edges", "senders", "receivers")}
    kept["globals"] = np.concatenate([rows["globals"], np.zeros((count, 1, 128), np.float32)], axis=1)
    for name in ("nodes", "edges"):
        graphs = np.where(rows[f"{name}_segment_ids"], rows[f"{name}_segment_ids"] - 1, padding) + first
        found = np.bincount(graphs.reshape(-1), minlength=count * (_GRAPHS + 1))
        kept[f"n_{name[:-1]}"] = found.reshape(count, -1).astype(np.int32)
    return kept if jraph is None else jraph.GraphsTuple(**kept)


def packed_graphs(data: Dataset) -> Dataset:
    """Packed rows of graphs, whose padding edges join a node of padding."""
    return data.shuffle(seed=0).pack(
        {"nodes": _NODES, ("edges", "senders", "receivers"): _EDGES},
        method="best_fit",
        most_documents=_GRAPHS,
        offsets={"senders": "nodes", "receivers": "nodes"},
        value={"senders": _NODES - 1, "receivers": _NODES - 1},
        add=("segment_ids",),
        progress=False,
    )


def ours(data: Dataset, rows: int) -> Generator[Any, None, None]:
    """Batches of graphs on the device."""
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,), devices=jax.devices()[:1])
    loader = Dataloader(packed_graphs(data).map_batch(graphs_tuple), rows, num_epochs=None, mesh=mesh)
    with iter(loader) as batches:
        yield from batches


def theirs(graphs: list[Graph], rows: int) -> Generator[Any, None, None]:
    """Batches of `jraph.dynamically_batch` on the device."""

    def shuffled() -> Iterator[Any]:
        for epoch in cycle(range(1 << 30)):
            for row in np.random.default_rng(epoch).permutation(len(graphs)).tolist():
                graph = graphs[row]
                sizes = {"n_node": np.array([len(graph["nodes"])]), "n_edge": np.array([len(graph["edges"])])}
                yield jraph.GraphsTuple(**{**graph, "globals": graph["globals"][None]}, **sizes)

    for row in (batches := jraph.dynamically_batch(shuffled(), _NODES, _EDGES, _GRAPHS + 1)):
        stacked = [row, *islice(batches, rows - 1)]
        yield jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *stacked))


def shift(row: Graph) -> Graph:
    """Inputs and targets of a row of one token more."""
    tokens = row.pop("tokens")
    return {name: leaf[:, :-1] for name, leaf in row.items()} | {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def host_batches(data: Dataset) -> Generator[Any, None, None]:
    """Batches of a host, without placing them."""
    one: dict[str, Any] = {"shard_index": 0, "shard_count": 1, "num_epochs": None, "num_workers": 0}
    with Dataloader(data.shuffle(seed=0), 64, **one).host_batches() as batches:
        yield from batches


def packed_tokens() -> dict[str, Contestant]:
    """Host batches of packed rows, by name."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(600) - 0.5, 1, 50_000), 2, 2048).astype(np.int64)
    tokens = np.arange(int(lengths.sum()), dtype=np.uint16)
    data = from_documents(tokens, np.concatenate([[0], np.cumsum(lengths)]))
    options: dict[str, Any] = {"method": "best_fit", "long": "cut", "progress": False}
    rows = {
        "pack": data.pack(2048, **options),
        "shift": data.pack(2048, targets="shift", **options),
        "map": data.pack(2049, **options).map_batch(shift),
    }
    return {name: partial(host_batches, each) for name, each in rows.items()}


def rates(contestants: Mapping[str, Contestant], batches: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of wall and of processor time of `batches`, by contestant and round."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(-1, rounds):
        order = list(contestants) if number % 2 else list(contestants)[::-1]
        for name in order:
            running = contestants[name]()
            for _ in range(_READ_AHEAD):  # read while nobody looks
                jax.block_until_ready(next(running))
            began, worked = perf_counter(), process_time()
            for _ in range(batches):
                jax.block_until_ready(next(running))
            if number >= 0:
                taken[name].append((perf_counter() - began, process_time() - worked))
            running.close()
    return taken


def main() -> None:
    """Prints rates and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=480, help="batches of one row that a round times")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    arguments = parser.parse_args()
    given = molecules(arguments.graphs)
    data = from_source(given)
    began = perf_counter()
    packed = packed_graphs(data)
    print(f"{packed.source!r}: planned in {perf_counter() - began:.1f} s")
    kinds: list[tuple[str, dict[str, Contestant], int]] = [
        (f"{rows} x graphs", {"loadax": partial(ours, data, rows)}, max(1, arguments.batches // rows))
        for rows in (8, 1)
    ]
    if jraph is None:
        print("jraph is not installed, so there is nothing beside loadax: pip install jraph")
    else:
        for rows, (_, contestants, _) in zip((8, 1), kinds, strict=True):
            contestants["jraph"] = partial(theirs, given, rows)
        filled = [int((np.asarray(batch.n_node) > 0).sum()) - 1 for batch in islice(theirs(given, 1), 200)]
        print(f"graphs a batch: loadax {len(given) / len(packed):.2f}, jraph {np.mean(filled):.2f}")
    figures: dict[str, Any] = {"machine": machine()}
    for kind, contestants, batches in (*kinds, ("shift", packed_tokens(), max(1, arguments.batches // 8))):
        taken = rates(contestants, batches, arguments.rounds)
        for name, seconds in taken.items():
            other = next(iter(taken)) if kind == "shift" else [*taken][-1]
            wall, cpu = (
                statistics.median(theirs[field] / own[field] for own, theirs in zip(seconds, taken[other], strict=True))
                for field in (0, 1)
            )
            rate = batches / statistics.median(wall for wall, _ in seconds)
            figures[f"{kind} {name}"] = {"batches_per_second": rate, "ratio": wall, "cpu_ratio": cpu}
            print(f"{kind} {name:<7} {rate:>8.0f} batches/s, {wall:.2f} of {other}, by processor time {cpu:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
