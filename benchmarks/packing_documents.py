"""Packs documents in memory as they are read: `python benchmarks/packing_documents.py [--rounds 3] [--json FILE]`.

The same documents, of 20 to 400 tokens, in rows of 1,024 and batches of 16, by `to_stream().pack()` with 16 lanes and
with one, `pack()`, Grain's `ConcatThenSplit`, and the loop of EasyLM's `JsonDataset` without its tokenizer. The batches
of all go onto the device. Or, with `--lines`, from JSON lines of tokens; or of texts, of which a SentencePiece model
makes tokens (`--lines SentencePiece`), or each byte is one, so that hardly more than the loaders' own work is left.

Measurements take turns in one process; a figure is the median of the rounds: processor time for a packed row. They
begin after `--warm-up` steps: a lane reads up to 256 documents ahead, which the first steps pay for.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from time import process_time
from typing import Any

import grain
import jax
import numpy as np
from grain import experimental
from numpy.typing import NDArray
from packing_streams import open_tokenizer, read_texts, train_tokenizer

import loadax

_SEQ_LEN, _BATCH = 1024, 16

Documents = list[NDArray[np.int32]]
TokensOf = Callable[[Any], Any]


def make_documents() -> Documents:
    """Tokens of the documents."""
    generator = np.random.default_rng(0)
    return [generator.integers(1, 30_000, generator.integers(20, 400)).astype(np.int32) for _ in range(6000)]


def write_lines(documents: Documents, folder: Path) -> Path:
    """Writes the documents as JSON lines."""
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps({"tokens": tokens.tolist()}) + "\n" for tokens in documents))
    return path


def read_lines(path: Path, tokens_of: TokensOf) -> Iterator[NDArray[np.int32]]:
    """Documents of the lines, again and again."""
    while True:
        with path.open() as file:
            for line in file:
                yield np.asarray(tokens_of(json.loads(line)), np.int32)


def open_lines(kind: str, folder: Path, most: int | None) -> tuple[Path, TokensOf]:
    """Path of JSON lines, and the tokens of one."""
    if kind == "tokens":
        return write_lines(make_documents(), folder), lambda row: row["tokens"]
    texts = read_texts(most)
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    if kind == "SentencePiece":
        train_tokenizer(folder, texts)
    tokenize = open_tokenizer(folder)  # without a model, each byte is a token
    return path, lambda row: tokenize(row["text"])


def repeated(documents: Documents) -> Iterator[NDArray[np.int32]]:
    """Documents, again and again."""
    while True:
        yield from documents


def grain_batches(documents: Any) -> Iterator[Any]:
    """Batches of Grain."""
    rows = (
        grain.MapDataset.source(documents)
        .repeat()
        .map(lambda tokens: {"tokens": tokens})
        .to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    )
    packed = experimental.ConcatThenSplitIterDataset(rows, length_struct={"tokens": _SEQ_LEN})
    for batch in packed.batch(_BATCH, drop_remainder=True):
        yield jax.device_put(batch)


def easylm_batches(documents: Iterator[NDArray[np.int32]]) -> Iterator[Any]:
    """Batches of EasyLM's loop: tokens and masks of loss gather in lists until they fill a batch."""
    size = _BATCH * _SEQ_LEN
    tokens: list[int] = []
    masks: list[float] = []
    for document in documents:
        tokens.extend(document.tolist())
        masks.extend([1.0] * len(document))
        while len(tokens) > size + 1:
            yield jax.device_put(
                {
                    "input_tokens": np.array(tokens[:size], np.int32).reshape(_BATCH, -1),
                    "target_tokens": np.array(tokens[1 : size + 1], np.int32).reshape(_BATCH, -1),
                    "loss_masks": np.array(masks[1 : size + 1], np.float32).reshape(_BATCH, -1),
                }
            )
            tokens = tokens[size:]
            masks = masks[size:]


def cpu_per_row(batches: Iterator[Any], warm_up: int, steps: int) -> float:
    """Microseconds of processor time for a row."""
    for batch in islice(batches, warm_up):
        jax.block_until_ready(batch)
    began = process_time()
    for batch in islice(batches, steps):
        jax.block_until_ready(batch)
    return (process_time() - began) / steps / _BATCH * 1e6


def main() -> None:
    """Prints a line for each library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="steps of a measurement (default: 200)")
    parser.add_argument("--warm-up", type=int, default=300, help="steps before a measurement (default: 300)")
    parser.add_argument(
        "--lines", nargs="?", const="tokens", choices=("tokens", "bytes", "SentencePiece"), help="read JSON lines"
    )
    parser.add_argument("--documents", type=int, help="number of texts (default: all)")
    parser.add_argument("--json", type=Path, help="file for the medians")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.lines:
            path, tokens_of = open_lines(args.lines, Path(folder), args.documents)
            data = loadax.from_jsonl(path, index=Path(folder) / "index").map(tokens_of)
            runs: dict[str, Callable[[], Any]] = {
                "to_stream(16).pack": lambda: data.to_stream(lanes=16).pack(_SEQ_LEN),
                "to_stream(1).pack": lambda: data.to_stream(lanes=1).pack(_SEQ_LEN),
                "EasyLM": lambda: easylm_batches(read_lines(path, tokens_of)),
            }
        else:
            documents = make_documents()
            data = loadax.from_source(documents)
            runs = {
                "to_stream(16).pack": lambda: data.to_stream(lanes=16).pack(_SEQ_LEN),
                "to_stream(1).pack": lambda: data.to_stream(lanes=1).pack(_SEQ_LEN),
                "pack": lambda: data.pack(_SEQ_LEN),
                "Grain": lambda: grain_batches(documents),
                "EasyLM": lambda: easylm_batches(repeated(documents)),
            }
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(args.rounds):
            for name, make in runs.items():
                made: Any = make()
                if isinstance(made, loadax.Dataset):
                    with iter(loadax.Dataloader(made, _BATCH, num_epochs=None)) as batches:
                        taken[name].append(cpu_per_row(batches, args.warm_up, args.steps))
                else:
                    taken[name].append(cpu_per_row(made, args.warm_up, args.steps))
    medians = {name: statistics.median(figures) for name, figures in taken.items()}
    for name, median in medians.items():
        print(f"{name:<20} {median:7.0f} us of CPU a row of {_SEQ_LEN:,}   {[round(each) for each in taken[name]]}")
    if args.json:
        args.json.write_text(json.dumps({"rounds": args.rounds, "medians": medians}, indent=1))


if __name__ == "__main__":
    main()
