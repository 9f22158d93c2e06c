"""Speed of `flat_map(counts=)` and `group`: overlapping chunks of audio beside a torch DataLoader, graphs beside jraph.

python benchmarks/examples_of_rows.py [--rounds 7] [--json FILE]

The chunks are the same in both loaders, from the same file, by the same functions, with two workers each; so are the
graphs, of which jraph batches as many as fit, one after the other, and `group` plans the batches. The ratios are those
of loadax, by round: more than 1 is faster. Contestants that are not installed are left out.
"""

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadax

RATE, LENGTH, STRIDE = 16_000, 30 * 16_000, 25 * 16_000
BATCH = 16
BUDGETS = {"nodes": 320, "edges": 720}
GRAPHS = 16  # of a batch, at most

Audio = NDArray[np.int16]


def count_of(samples: int) -> int:
    """Chunks of a recording; the last one is padded."""
    return 1 + max(0, -(-(samples - LENGTH) // STRIDE))


def chunk_at(audio: Audio, number: int) -> Audio:
    """A chunk of a recording."""
    chunk = audio[number * STRIDE : number * STRIDE + LENGTH]
    return chunk if len(chunk) == LENGTH else np.pad(chunk, (0, LENGTH - len(chunk)))


def features(chunk: Audio) -> NDArray[np.float32]:
    """Spectrogram of each 20 ms, in 80 bands."""
    frames = chunk.reshape(-1, RATE // 50).astype(np.float32)
    power = np.abs(np.fft.rfft(frames)[:, :160]) ** 2
    return np.log10(power.reshape(-1, 80, 2).sum(axis=2) + 1)


def write_recordings(path: Path, count: int) -> NDArray[np.int64]:
    """Writes noise of 10 s to 4 minutes a recording; returns where they end."""
    random = np.random.default_rng(0)
    ends = np.cumsum([0, *random.integers(10 * RATE, 240 * RATE, count)])
    flat = np.lib.format.open_memmap(path, "w+", np.int16, (int(ends[-1]),))
    for low, high in pairwise(ends.tolist()):
        flat[low:high] = random.integers(-(1 << 12), 1 << 12, high - low, np.int16)
    flat.flush()
    return ends


def audio_contestants(path: Path, ends: NDArray[np.int64]) -> dict[str, Callable[[], Iterable[Any]]]:
    """Loaders of the features of chunks."""
    lengths = np.diff(ends)
    counts = np.array([count_of(length) for length in lengths.tolist()])
    recordings = loadax.from_documents(np.load(path, mmap_mode="r"), ends)
    chunks = recordings.flat_map(
        lambda audio: [chunk_at(audio, number) for number in range(count_of(len(audio)))], counts=counts
    )
    loader = loadax.Dataloader(chunks.map(features), BATCH, num_workers=2)
    contestants: dict[str, Callable[[], Iterable[Any]]] = {"loadax": loader.iterate}
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        listed = [(row, number) for row, count in enumerate(counts.tolist()) for number in range(count)]
        flat = np.load(path, mmap_mode="r")

        class Chunks(torch.utils.data.Dataset):  # type: ignore[misc]
            def __len__(self) -> int:
                return len(listed)

            def __getitem__(self, index: int) -> Audio:
                row, number = listed[index]
                return chunk_at(flat[ends[row] : ends[row + 1]], number)

        def collate(found: list[Audio]) -> Any:
            return torch.from_numpy(np.stack([features(chunk) for chunk in found]))

        other = torch.utils.data.DataLoader(
            Chunks(), BATCH, num_workers=2, collate_fn=collate, drop_last=True, persistent_workers=True
        )
        contestants["torch"] = lambda: other
    return contestants


def molecules(count: int) -> list[dict[str, Any]]:
    """Graphs of the sizes of ogbg-molpcba: 26 nodes and 56 edges on average."""
    random = np.random.default_rng(1)
    graphs = []
    for nodes in np.clip(random.normal(26, 8, count), 4, 80).astype(int).tolist():
        edges = int(2.15 * nodes)
        ends = random.integers(0, nodes, (2, edges), np.int32)
        graphs.append(
            {
                "nodes": random.normal(size=(nodes, 9)).astype(np.float32),
                "edges": random.normal(size=(edges, 3)).astype(np.float32),
                "senders": ends[0],
                "receivers": ends[1],
                "label": random.integers(0, 2, 128).astype(np.float32),
            }
        )
    return graphs


def batch_of_graphs(graphs: list[dict[str, Any]]) -> dict[str, Any]:
    """Graphs as one, padded to the budgets; what is left over belongs to one more graph, as jraph has it."""
    nodes = np.array([len(graph["nodes"]) for graph in graphs])
    edges = np.array([len(graph["edges"]) for graph in graphs])
    offsets = np.repeat(np.cumsum(nodes) - nodes, edges).astype(np.int32)
    most_nodes, most_edges = BUDGETS["nodes"] + 1, BUDGETS["edges"]

    def joined(name: str, size: int, fill: int = 0, add: Any = 0) -> Any:
        values = np.concatenate([graph[name] for graph in graphs]) + add
        out = np.full((size, *values.shape[1:]), fill, values.dtype)
        out[: len(values)] = values
        return out

    def counted(values: Any, size: int) -> Any:
        return np.pad(np.append(values, size - values.sum()), (0, GRAPHS - len(values))).astype(np.int32)

    labels = np.zeros((GRAPHS + 1, 128), np.float32)
    labels[: len(graphs)] = [graph["label"] for graph in graphs]
    return {
        "nodes": joined("nodes", most_nodes),
        "edges": joined("edges", most_edges),
        "senders": joined("senders", most_edges, int(nodes.sum()), offsets),
        "receivers": joined("receivers", most_edges, int(nodes.sum()), offsets),
        "n_node": counted(nodes, most_nodes),
        "n_edge": counted(edges, most_edges),
        "labels": labels,
    }


def graph_contestants(graphs: list[dict[str, Any]]) -> dict[str, Callable[[], Iterable[Any]]]:
    """Loaders of batches of graphs."""
    sizes = {name: np.array([len(graph[name]) for graph in graphs]) for name in BUDGETS}
    grouped = loadax.from_source(graphs).group(BUDGETS, sizes, most_rows=GRAPHS)
    loader = loadax.Dataloader(grouped.shuffle(0).map(batch_of_graphs), 1)
    contestants: dict[str, Callable[[], Iterable[Any]]] = {"loadax": loader.iterate}
    if importlib.util.find_spec("jraph"):
        import jax
        import jraph  # type: ignore[import-not-found]

        tuples = [
            jraph.GraphsTuple(
                graph["nodes"],
                graph["edges"],
                graph["receivers"],
                graph["senders"],
                graph["label"][None],
                np.array([len(graph["nodes"])]),
                np.array([len(graph["edges"])]),
            )
            for graph in graphs
        ]

        def batches() -> Iterable[Any]:
            order = np.random.default_rng(0).permutation(len(tuples))
            shuffled = (tuples[row] for row in order)
            most = BUDGETS["nodes"] + 1, BUDGETS["edges"], GRAPHS + 1
            return map(jax.device_put, jraph.dynamically_batch(shuffled, *most))

        contestants["jraph"] = batches
    return contestants


def compare(contestants: dict[str, Callable[[], Iterable[Any]]], items: int, rounds: int) -> dict[str, Any]:
    """Items a second of each contestant, and the median of the ratios of the first one, by round."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name in [*contestants][:: 1 if turn % 2 else -1]:
            began = time.perf_counter()
            for batch in contestants[name]():
                _ = batch
            if turn:  # the first round warms up
                rates[name].append(items / (time.perf_counter() - began))
    first, *others = rates
    report: dict[str, Any] = {name: round(median(each)) for name, each in rates.items()}
    for other in others:
        ratios = [ours / theirs for ours, theirs in zip(rates[first], rates[other], strict=True)]
        report[f"ratio to {other}"] = [round(value, 2) for value in (median(ratios), min(ratios), max(ratios))]
    return report


def main() -> None:
    """Runs both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["audio", "graphs"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--recordings", type=int, default=40)
    parser.add_argument("--graphs", type=int, default=12_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    if arguments.only != "graphs":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "audio.npy"
            ends = write_recordings(path, arguments.recordings)
            chunks = sum(count_of(length) for length in np.diff(ends).tolist())
            report["chunks of audio a second"] = compare(audio_contestants(path, ends), chunks, arguments.rounds)
    if arguments.only != "audio":
        graphs = molecules(arguments.graphs)
        report["graphs a second"] = compare(graph_contestants(graphs), len(graphs), arguments.rounds)
    print(json.dumps(report, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
