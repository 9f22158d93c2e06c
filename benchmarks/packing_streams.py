"""Packs text while it is tokenized, beside Grain: `python benchmarks/packing_streams.py [--rounds 5] [--json FILE]`.

The input pipelines of three trainers, as each would be written in loadax and in Grain, on the sources of Python's
standard library, one document for each top-level definition. A SentencePiece model that is trained on them tokenizes
(`pip install sentencepiece`), or each byte is a token:

- "nanodo": shuffled documents, concatenated and split;
- "maxtext": shuffled documents with shifted targets, cut to a row, and packed by first fit;
- "easylm": lines of a file that is read from its beginning, concatenated and split.

"loadax" packs as it tokenizes, `to_stream().pack()` or `from_stream().pack()`. "cache" tokenizes all documents first,
`cache(folder).pack()`, and "cached" is the next program, which finds the tokens there.

Each measurement is a process of its own, and they alternate. "first" is the time from the import of the library to the
first batch on the device, "rows" how many rows a second follow, "CPU" their processor time, and "full" the share of
their entries that are tokens.
"""

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SEQ_LEN, _BATCH = 512, 64
_VOCABULARY = 8000
_PIPELINES = ("nanodo", "maxtext", "easylm")
_LIBRARIES = ("loadax", "cache", "cached", "grain")

Tokenize = Callable[[str], NDArray[np.int32]]


def read_texts(most: int | None) -> list[str]:
    """Texts of the standard library, one for each top-level definition."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    texts = [text for path in files for text in path.read_text("utf-8", "ignore").split("\n\n\n") if len(text) > 100]
    return texts[:most]


def write_corpus(folder: Path, most: int | None, vocabulary: int) -> str:
    """Writes the documents as JSON lines, and trains the tokenizer. Returns the name of the tokenizer."""
    texts = read_texts(most)
    (folder / "documents.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    return train_tokenizer(folder, texts, vocabulary)


def train_tokenizer(folder: Path, texts: list[str], vocabulary: int = _VOCABULARY) -> str:
    """Trains a tokenizer for `open_tokenizer`. Returns its name."""
    try:
        import sentencepiece
    except ImportError:
        return "bytes"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts[::10]),
        model_prefix=str(folder / "tokens"),
        vocab_size=vocabulary,
        model_type="bpe",
        minloglevel=2,
    )
    return "SentencePiece"


def open_tokenizer(folder: Path) -> Tokenize:
    """The tokenizer of the corpus."""
    if not (folder / "tokens.model").exists():
        return lambda text: np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokens.model"))
    return lambda text: np.array(model.encode(text), np.int32)


def shifted(tokens: NDArray[np.int32]) -> dict[str, NDArray[np.int32]]:
    """Inputs and targets of one row at most, as MaxText has them."""
    return {"inputs": tokens[:-1][:_SEQ_LEN], "targets": tokens[1:][:_SEQ_LEN]}


def lines(path: Path, first: int = 0, step: int = 1) -> Iterator[str]:
    """Documents of a file."""
    with path.open() as file:
        for number, line in enumerate(file):
            if number % step == first:
                yield json.loads(line)


def cached_batches(pipeline: str, folder: Path, *, overwrite: bool) -> Iterator[Any]:
    """Batches of loadax, whose documents are tokenized once and kept."""
    import loadax

    tokenize = open_tokenizer(folder)
    documents = loadax.from_source(list(lines(folder / "documents.jsonl"))).map(tokenize)
    documents = documents.map(shifted) if pipeline == "maxtext" else documents
    tokens = documents.cache(folder / f"tokens-{pipeline}", key=pipeline, overwrite=overwrite, progress=False)
    if pipeline == "maxtext":
        rows = tokens.shuffle(seed=0).pack(_SEQ_LEN, method="first_fit", targets="given")
    else:
        rows = (tokens if pipeline == "easylm" else tokens.shuffle(seed=0)).pack(_SEQ_LEN)
    return iter(loadax.Dataloader(rows, _BATCH, num_epochs=None))


def loadax_batches(pipeline: str, folder: Path) -> Iterator[Any]:
    """Batches of loadax."""
    import loadax

    path, tokenize = folder / "documents.jsonl", open_tokenizer(folder)
    if pipeline == "easylm":
        # As many lanes as would be files of a corpus.
        stream = loadax.from_stream(lambda lane, lanes: lines(path, lane, lanes), lanes=8).map(tokenize).pack(_SEQ_LEN)
    else:
        documents = loadax.from_source(list(lines(path))).map(tokenize).shuffle(seed=0)
        if pipeline == "nanodo":
            stream = documents.to_stream(lanes=_BATCH).pack(_SEQ_LEN)
        else:
            stream = documents.map(shifted).to_stream(lanes=_BATCH).pack(_SEQ_LEN, method="first_fit", targets="given")
    return iter(loadax.Dataloader(stream, _BATCH, num_epochs=None))


def _endless(grain: Any, path: Path) -> Any:
    """Documents of a file as an `IterDataset` of Grain, again and again, without states."""

    class Lines(grain.DatasetIterator):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._lines = chain.from_iterable(lines(path) for _ in count())

        def __next__(self) -> str:
            return next(self._lines)

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    return type("LinesDataset", (grain.IterDataset,), {"__iter__": lambda _: Lines()})()


def grain_batches(pipeline: str, folder: Path) -> Iterator[Any]:
    """Batches of Grain."""
    import grain
    import jax
    from grain import experimental

    path, tokenize = folder / "documents.jsonl", open_tokenizer(folder)

    if pipeline == "easylm":
        rows = _endless(grain, path).map(tokenize)
    else:
        rows = grain.MapDataset.source(list(lines(path))).shuffle(seed=0).repeat().map(tokenize).to_iter_dataset()
    if pipeline == "maxtext":
        packed = experimental.FirstFitPackIterDataset(
            rows.map(shifted), length_struct={"inputs": _SEQ_LEN, "targets": _SEQ_LEN}, num_packing_bins=_BATCH
        )
    else:
        packed = experimental.ConcatThenSplitIterDataset(
            rows.map(lambda tokens: {"tokens": tokens}), length_struct={"tokens": _SEQ_LEN}
        )
    for batch in packed.batch(_BATCH, drop_remainder=True):
        yield jax.device_put(batch)


def measure(library: str, pipeline: str, folder: Path, seconds: float) -> dict[str, float]:
    """One measurement, in this process."""
    import jax

    jax.devices()
    began = perf_counter()
    if library.startswith("cache"):
        batches = cached_batches(pipeline, folder, overwrite=library == "cache")
    else:
        batches = (loadax_batches if library == "loadax" else grain_batches)(pipeline, folder)
    jax.block_until_ready(next(batches))
    first = perf_counter() - began
    for _ in range(4):
        next(batches)
    began, cpu, steps, filled = perf_counter(), process_time(), 0, 0
    while perf_counter() < began + seconds:
        batch = jax.block_until_ready(next(batches))
        steps += 1
        ids = [leaf for name, leaf in batch.items() if name.endswith("segment_ids")]
        filled += int((np.asarray(ids[0]) > 0).sum()) if ids else _BATCH * _SEQ_LEN
    rows, took, cpu = steps * _BATCH, perf_counter() - began, process_time() - cpu
    return {"first": first, "rows": rows / took, "cpu": 1e3 * cpu / rows, "full": filled / (rows * _SEQ_LEN)}


def main() -> None:
    """Prints a line for each pipeline and library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement (default: 5)")
    parser.add_argument("--only", nargs="+", choices=_PIPELINES, default=_PIPELINES, help="pipelines (default: all)")
    parser.add_argument("--documents", type=int, help="number of documents (default: all)")
    parser.add_argument(
        "--vocabulary", type=int, default=_VOCABULARY, help=f"of the tokenizer (default: {_VOCABULARY})"
    )
    parser.add_argument("--json", type=Path, help="file for the medians")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        library, pipeline, folder = args.measure
        print(json.dumps(measure(library, pipeline, Path(folder), args.seconds)))
        return
    taken: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_corpus(Path(folder), args.documents, args.vocabulary)
        for _ in range(args.rounds):
            for pipeline in args.only:
                for library in _LIBRARIES:
                    command = [sys.executable, __file__, "--seconds", str(args.seconds)]
                    done = subprocess.run(
                        [*command, "--measure", library, pipeline, folder], capture_output=True, text=True, check=True
                    )
                    taken.setdefault(f"{pipeline} {library}", []).append(json.loads(done.stdout))
    medians = {
        name: {field: statistics.median(each[field] for each in found) for field in found[0]}
        for name, found in taken.items()
    }
    print(f"tokens: {tokenizer}; rows of {_SEQ_LEN}, batches of {_BATCH}; medians of {args.rounds} rounds")
    print(f"{'':<16} {'first':>8} {'rows/s':>8} {'CPU a row':>10} {'full':>7}")
    for name, median in medians.items():
        first, rows, cpu, full = median.values()
        print(f"{name:<16} {first:>6.2f} s {rows:>8.0f} {cpu:>7.2f} ms {full:>7.1%}")
    if args.json:
        args.json.write_text(json.dumps({"tokenizer": tokenizer, "rounds": args.rounds, "medians": medians}, indent=1))


if __name__ == "__main__":
    main()
