"""How well `balance=` balances the rows of a step, and what it costs: `python benchmarks/balance.py`.

Documents are the functions, docstrings and files of Python's standard library; a document has a token for every four
bytes. Where they fill less than two steps, they come several times, in another order. They are shuffled, packed by
`best_fit` and shuffled again, and the steps of 512 rows are cut into equal contiguous parts, as a mesh cuts them.
Printed is what the dearest part costs over the mean of all, averaged over the steps: without `balance=`, with it, and
the least that any arrangement of these rows could have, because a part with the dearest row costs at least that row and
the cheapest ones beside it.

Costs of a row are those of its attention, the sum of its squared segment lengths L, or of a whole model of width d:
24 d² a token and 2 d Σ L², the multiplications of a layer with causal attention. d = 4096 is that of a 7B model. The
last figures are milliseconds of CPU time a step: those that look up the costs, and those that arrange the rows.
"""

import argparse
import ast
import json
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from turns import machine

from loadax import Dataloader, Dataset, from_documents
from loadax.plan.balance import arrangement

KINDS = ("functions", "docstrings", "files")
BATCH, TOKEN, WIDTH = 512, 4, 4096  # rows of a step, bytes of a token, width of a 7B model
CUTS = (2, 4, 8, 16, 32, 64)

Array = Any


def documents(kind: str, most_files: int | None) -> list[int]:
    """Tokens of each document of a kind."""
    library = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    files = [file for file in library if "site-packages" not in file.parts][:most_files]
    return [tokens for file in files for tokens in lengths(file, kind)]


def lengths(file: Path, kind: str) -> Iterator[int]:
    """Tokens of the documents of a file."""
    if kind == "files":
        yield file.stat().st_size // TOKEN
        return
    source = file.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of old escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # a test of the parser
        return
    starts = np.cumsum([0, *(len(line) for line in source.splitlines(keepends=True))])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if kind == "functions" and node.end_lineno is not None:
                yield int(starts[min(node.end_lineno, len(starts) - 1)] - starts[node.lineno - 1]) // TOKEN
            elif kind == "docstrings" and (text := ast.get_docstring(node)):
                yield len(text.encode()) // TOKEN


def packed(tokens: list[int], seq_len: int) -> Dataset:
    """Documents of these lengths, packed and shuffled."""
    kept = np.array([length for length in tokens if length > 0])
    offsets = np.cumsum([0, *kept])
    data = from_documents(np.zeros(offsets[-1], np.uint8), offsets).shuffle(seed=0)
    return data.pack(seq_len, method="best_fit", long="cut").shuffle(seed=1)


def dearest(costs: Array, parts: int) -> float:
    """Cost of the dearest part over the mean of all."""
    sums = costs.reshape(parts, -1).sum(axis=1)
    return float(sums.max() / sums.mean())


def bound(costs: Array, parts: int) -> float:
    """What no arrangement can be below."""
    ascending = np.sort(costs)
    least = ascending[-1] + ascending[: len(costs) // parts - 1].sum()
    return max(1.0, float(least / ascending.sum() * parts))


def compared(data: Dataset, costs: Callable[[Array], Array], most_steps: int) -> dict[str, Any]:
    """Balance at each cut: without `balance=`, with it, and at best; milliseconds of CPU time a step."""
    plain, balanced = Dataloader(data, BATCH), Dataloader(data, BATCH, balance=costs)
    steps = range(min(len(plain), most_steps))
    found: dict[str, list[Any]] = {str(cut): [] for cut in CUTS}
    for step in steps:
        before, after = costs(plain.rows(step)), costs(balanced.rows(step))
        for cut in CUTS:
            found[str(cut)].append((dearest(before, cut), dearest(after, cut), bound(before, cut)))
    rows = [plain.rows(step) for step in steps]
    taken = []
    for _ in range(5):
        began = time.process_time()
        step_costs = [costs(each) for each in rows]
        between = time.process_time()
        for each in step_costs:
            arrangement(each)
        taken.append(np.diff([began, between, time.process_time()]) / len(steps) * 1000)
    costs_ms, arrangement_ms = np.median(taken, axis=0).tolist()
    means = {cut: np.mean(values, axis=0).tolist() for cut, values in found.items()}
    return {"steps": len(steps), "costs_ms": costs_ms, "ms": arrangement_ms, "cuts": means}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seq-lens", type=int, nargs="+", default=[2048, 32_768], help="lengths of a packed row")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS, help="documents")
    parser.add_argument("--steps", type=int, default=40, help="most steps of each (default: 40)")
    parser.add_argument("--files", type=int, help="most files to read (default: all)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the numbers to this file")
    options = parser.parse_args()
    results = []
    for kind in options.kinds:
        tokens = documents(kind, options.files)
        for seq_len in options.seq_lens:
            copies = 1 + 2 * BATCH * seq_len // sum(tokens)
            data = packed(tokens * copies, seq_len)
            squares = data.source.squared_lengths

            def attention(rows: Array, squares: Callable[[Array], Array] = squares) -> Array:
                return squares(rows)

            def model(rows: Array, squares: Callable[[Array], Array] = squares, seq_len: int = seq_len) -> Array:
                return 24 * WIDTH**2 * seq_len + 2 * WIDTH * squares(rows)

            for name, costs in (("attention", attention), ("7B", model)):
                found = compared(data, costs, options.steps)
                results.append({"kind": kind, "seq_len": seq_len, "copies": copies, "costs": name, **found})
                cuts = "  ".join(
                    f"{cut}: {before:.3f} {after:.3f} {least:.3f}"
                    for cut, (before, after, least) in found["cuts"].items()
                )
                print(
                    f"{kind:10} {seq_len:>6} x {copies:<3} {found['steps']:>3} steps  {name:9}  {cuts}  "
                    f"{found['costs_ms']:.2f} + {found['ms']:.2f} ms",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "balance": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
