"""Files of records in every format, and every verb of records, as chains: for laws that must hold for all of them."""

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import loadax
from loadax import Dataloader
from loadax.sharding import data_parallel
from tests.laws import chain_verbs as verbs
from tests.laws.chain_checks import Run
from tests.laws.chain_rows import Given, Row, scaled
from tests.laws.chain_verbs import Chain, Packing
from tests.loader.oracle import assert_placed
from tests.packing.slow_packing import slowly
from tests.sources.shards.corpora import encoded, write_tar, write_tfrecord

BATCH, EPOCHS, STOP = 8, 2, 3
"""Rows of a batch, epochs of a run, and the step at which it stops and is resumed."""

ROWS: list[Row] = [
    {
        "x": np.int64(row),
        "half": np.float64(row / 2),
        "vector": (np.arange(3) + row / 4).astype(np.float32),
        "tokens": np.arange(row % 5) + 10 * row,
        "targets": np.arange(row % 3) + 1000 * row,
    }
    for row in range(44)
]
FILES = ROWS[:24], ROWS[24:]
LEAF_LENGTHS = {"tokens": 5, "targets": 4}


def write(folder: Path) -> None:
    """Writes two files of each format, of 24 and 20 rows."""
    for kind in ("parquet", "csv", "jsonl"):
        (folder / kind).mkdir(parents=True)
    for number, rows in enumerate(FILES):
        parquet.write_table(table(rows), folder / f"parquet/{number}.parquet", row_group_size=5)
        with (folder / f"csv/{number}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("x", "half"), *((row["x"], row["half"]) for row in rows)])
        lines = [{name: leaf.tolist() for name, leaf in row.items()} for row in rows]
        (folder / f"jsonl/{number}.jsonl").write_text("\n".join(map(json.dumps, lines)))
        files = {f"{row['x']:03}.npy": npy(row["vector"]) for row in rows}
        files |= {f"{row['x']:03}.cls": b"%d" % row["x"] for row in rows}
        write_tar(folder / f"tar/{number}.tar", dict(sorted(files.items())))
        records = [encoded({"x": row["x"].reshape(1), "vector": row["vector"]}) for row in rows]
        write_tfrecord(folder / f"tfrecord/{number}.tfrecord", records)


def table(rows: list[Row]) -> pa.Table:
    """Rows of two columns."""
    vectors = pa.FixedSizeListArray.from_arrays(np.concatenate([row["vector"] for row in rows]), 3)
    return pa.table({"x": [row["x"] for row in rows], "vector": vectors})


def npy(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def given(dataset: loadax.Dataset, *names: str) -> Chain:
    """A dataset with these leaves of the rows."""
    return verbs.opened(Given(repr(dataset), dataset, [{name: row[name] for name in names} for row in ROWS]))


def opened(location: str, index: Path) -> dict[str, Chain]:
    """The files of a folder or a bucket.

    Args:
        location: Path or URL of what `write` wrote.
        index: Folder of the indices of lines and of records, each in a folder of its own.
    """
    examples = loadax.from_webdataset(f"{location}/tar/", decode=True, index=index / "tar")
    features = {"x": "int64", "vector": ("float32", 3)}
    return {
        "from_parquet": given(loadax.from_parquet(f"{location}/parquet/"), "x", "vector"),
        "from_csv": given(loadax.from_csv(f"{location}/csv/"), "x", "half"),
        "from_jsonl": given(
            loadax.from_jsonl(f"{location}/jsonl/", ["x", "tokens"], index=index / "jsonl"), "x", "tokens"
        ),
        "from_webdataset": given(
            examples.map(lambda example: {"x": np.int64(example["cls"]), "vector": example["npy"]}), "x", "vector"
        ),
        "from_tfrecord": given(
            loadax.from_tfrecord(f"{location}/tfrecord/", features=features, index=index / "tfrecord"), "x", "vector"
        ),
        "from_arrow": given(loadax.from_arrow(table(ROWS)), "x", "vector"),
    }


def chains(location: str, index: Path) -> dict[str, Chain]:
    """Every source with a verb behind it, and every verb behind a source."""
    sources = opened(location, index)
    documents = loadax.from_jsonl(f"{location}/jsonl/", ["tokens"], index=index / "jsonl")
    packing = Packing(5, "best_fit", "error", None, value=-1)
    padding = verbs.Padding({"tokens": 3}, -1, True, "right", True)
    return {
        "from_parquet, shuffle by chunks": verbs.shuffle_blocks(sources["from_parquet"], 1, "chunks", 2, 2),
        "from_parquet, map with_index": verbs.map_indexed(
            verbs.shuffle(sources["from_parquet"], 2), indexed, "indexed"
        ),
        "from_csv, select": verbs.shuffle(verbs.select(sources["from_csv"], [*range(40, 4, -1), 7, 7]), 3),
        "from_jsonl, pad": verbs.shuffle(verbs.pad(sources["from_jsonl"], padding), 4),
        "from_jsonl, pack": verbs.shuffle(verbs.pack(given(documents, "tokens"), packing, index / "pack"), 5),
        "from_jsonl, pack by leaf": verbs.shuffle(packed_by_leaf(location, index), 6),
        "from_webdataset, split": verbs.shuffle(verbs.split_counts(sources["from_webdataset"], [24, 20], 7, 0), 7),
        "from_tfrecord, sample": verbs.sample(sources["from_tfrecord"], [row % 3 for row in range(44)], 36, 8),
        "from_arrow, flat_map": verbs.flat_map(verbs.shuffle(sources["from_arrow"], 9), [scaled(1), scaled(2)]),
        "mix": verbs.mixed([sources["from_parquet"], sources["from_tfrecord"]], {0: (3, 1)}, 10, "first", 0, version=2),
    }


def indexed(row: Row, number: int) -> Row:
    return {**row, "row": np.int32(number)}


def packed_by_leaf(location: str, index: Path) -> Chain:
    documents = given(loadax.from_jsonl(f"{location}/jsonl/", list(LEAF_LENGTHS), index=index / "jsonl"), *LEAF_LENGTHS)
    options: dict[str, Any] = {"method": "best_fit", "value": -1, "index": index / "pack"}
    dataset = documents.dataset.pack(LEAF_LENGTHS, **options)
    rows = slowly(documents.values(), LEAF_LENGTHS, "best_fit", len(ROWS), None)
    return verbs.anew(documents, f".pack({LEAF_LENGTHS})", dataset, rows, 1)


def loader_of(chain: Chain) -> Dataloader:
    """A loader over all devices of all processes."""
    return Dataloader(chain.dataset, BATCH, mesh=data_parallel(), num_epochs=EPOCHS)


def begin(chain: Chain) -> Any:
    """Checks the first batches, and which rows this process reads of them; returns the state behind them."""
    run, loader = Run(chain, BATCH, EPOCHS, "drop"), loader_of(chain)
    share = BATCH // jax.process_count()
    own = slice(share * jax.process_index(), share * (jax.process_index() + 1))
    with noted(chain), iter(loader) as batches:
        for step in range(STOP):
            assert_placed(next(batches), run.batch(step))
            assert loader.local_rows(step).tolist() == run.rows(step)[own]
        return batches.get_state()


def save(folder: str) -> None:
    """Begins a run of every chain, and writes their states."""
    states = {name: begin(chain) for name, chain in chains(folder, Path(folder, "index")).items()}
    Path(folder, f"{jax.process_index()}.json").write_text(json.dumps(states))


def finish(chain: Chain, state: Any) -> None:
    """Checks all batches behind a state."""
    run = Run(chain, BATCH, EPOCHS, "drop")
    with noted(chain), loader_of(chain).iterate(state) as batches:
        for step, batch in zip(range(STOP, len(run.steps)), batches, strict=True):
            assert_placed(batch, run.batch(step))


@contextmanager
def noted(chain: Chain) -> Iterator[None]:
    """Says of an error which chain it is about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"the chain: {chain}")
        raise
