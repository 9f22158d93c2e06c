"""`pack` with a length for each leaf, the slow and obvious way."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = dict[str, NDArray[Any]]


def pairs(sizes: list[tuple[int, int]]) -> list[Row]:
    """Documents with entries that tell document, leaf and place."""
    return [
        {"inputs": 1000 * i + np.arange(n), "targets": (1000 * i + 500 + np.arange(m)).astype(np.int32)}
        for i, (n, m) in enumerate(sizes, 1)
    ]


def slowly(
    documents: list[Row],
    seq_lens: dict[str, int],
    method: str,
    window: int,
    most: int | None,
    align: int = 1,
    bos: int | None = None,
) -> list[Row]:
    """The packed rows, one document and one entry at a time."""
    if bos is not None:
        documents = [
            {name: np.append(np.array([bos], leaf.dtype), leaf) for name, leaf in document.items()}
            if any(map(len, document.values()))
            else document
            for document in documents
        ]

    def width(document: Row, name: str) -> int:
        return -(-len(document[name]) // align) * align

    out: list[Row] = []
    for start in range(0, len(documents), window):
        kept = [
            document
            for document in documents[start : start + window]
            if any(map(len, document.values())) and all(len(document[name]) <= seq_lens[name] for name in seq_lens)
        ]
        bins: list[list[int]] = []

        def shares(number: int, kept: list[Row] = kept) -> list[float]:
            return [width(kept[number], name) / seq_lens[name] for name in seq_lens]

        def space(row: list[int], kept: list[Row] = kept) -> dict[str, int]:
            return {name: seq_lens[name] - sum(width(kept[number], name) for number in row) for name in seq_lens}

        for number in sorted(range(len(kept)), key=lambda number: -max(shares(number))):
            fits = [
                row
                for row in bins
                if all(len(kept[number][name]) <= space(row)[name] for name in seq_lens)
                and (most is None or len(row) < most)
            ]
            if not fits:
                bins.append([number])
            elif method == "first_fit":
                fits[0].append(number)
            else:
                least = min(fits, key=lambda row: sum(space(row)[name] / seq_lens[name] for name in seq_lens))
                least.append(number)
        out += [row_of([kept[number] for number in sorted(row)], seq_lens, align) for row in sorted(bins, key=min)]
    return out


def row_of(documents: list[Row], seq_lens: dict[str, int], align: int) -> Row:
    row: Row = {}
    for name, seq_len in seq_lens.items():
        entries: list[tuple[int, int, int]] = []
        for number, document in enumerate(documents, 1):
            entries += [(value, number, position) for position, value in enumerate(document[name].tolist())]
            entries += [(-1, 0, 0)] * (-len(entries) % align)
        entries += [(-1, 0, 0)] * (seq_len - len(entries))
        row[name], row[f"{name}_segment_ids"], row[f"{name}_positions"] = map(np.array, zip(*entries, strict=True))
    return row


def slow_graphs(
    given: list[Row], sizes: dict[str, int], method: str, window: int, most: int, align: int = 1, value: float = 0
) -> list[Row]:
    """Packed graphs: those of one-dimensional stand-ins, put together one graph and one entry at a time.

    `nodes` are the leaf of one budget, `label` and `energy` are one value a graph, and all others are edges;
    `senders` and `receivers` count on.
    """
    stand_ins = [
        {name: np.full(len(graph[name]), number, np.int64) for name in sizes} for number, graph in enumerate(given)
    ]
    rows = []
    for row in slowly(stand_ins, sizes, method, window, most, align):
        segments = {name: row[f"{name}_segment_ids"] for name in sizes}
        which = {
            int(place): int(number)
            for name in sizes
            for number, place in zip(row[name], segments[name], strict=True)
            if place
        }
        found: Row = {
            f"{name}_{added}": row[f"{name}_{added}"].astype(np.int32)
            for name in sizes
            for added in ("segment_ids", "positions")
        }
        for leaf, like in given[0].items():
            budget = {"nodes": "nodes", "label": "", "energy": ""}.get(leaf, "edges")
            size = sizes[budget] if budget else most
            found[leaf] = np.full((size, *np.shape(like)[bool(budget) :]), value, like.dtype)
            for place, number in sorted(which.items()):
                if not budget:
                    found[leaf][place - 1] = given[number][leaf]
                    continue
                begins = {name: int(np.argmax(segments[name] == place)) for name in sizes}
                for entry, item in enumerate(given[number][leaf]):
                    before = begins["nodes"] if leaf in ("senders", "receivers") else 0
                    found[leaf][begins[budget] + entry] = item + before
        found["documents_segment_ids"] = np.array([*sorted(which), *[0] * (most - len(which))], np.int32)
        rows.append(found)
    return rows
