"""Files that are cut short, of another kind, or no files: refused by name, never waited for, never other rows."""

import gzip
import os
import pickle
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadax.errors import LoadaxError, SourceError
from loadax.files import compression
from tests.formats.samples import COMPRESSED, SAMPLES, Sample, every
from tests.sources.advice import follow

REWRITTEN = {
    "parquet": replace(SAMPLES["parquet"], options={"memory_bytes": 0}),
    **{name: SAMPLES[name] for name in ("jsonl", "webdataset", "tfrecord")},
}
NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6]


def told(error: LoadaxError) -> str:
    """All that a user reads of an error."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


@every({**SAMPLES, **COMPRESSED})
def test_file_cut_anywhere_is_named_and_gives_no_other_rows(sample: Sample, tmp_path: Path) -> None:
    path = sample.file(tmp_path / f"a{sample.ending}", NUMBERS)
    for file in files_of(path):
        whole = file.read_bytes()
        for size in sorted({0, 1, len(whole) // 3, len(whole) - 9, *range(0, len(whole), 1 + len(whole) // 12)}):
            file.unlink()
            file.write_bytes(whole[: max(size, 0)])
            try:
                numbers = sample.numbers(path, tmp_path / "kept")
            except LoadaxError as error:
                assert str(path) in told(error)  # noqa: PT017 - some cuts leave a file of fewer rows
                if sample.compress is not None and size > 8:  # beyond the first bytes, which tell the compression
                    assert re.search("the file can't be decompressed: .*; copy it again", str(error))  # noqa: PT017
                    assert not list(tmp_path.glob("kept/loadax-decompressed/*"))
            else:
                assert numbers == (NUMBERS[: len(numbers)] if sample.prefix else NUMBERS)
        file.write_bytes(whole)
    assert sample.numbers(path, tmp_path / "kept") == NUMBERS


@every({name: sample for name, sample in SAMPLES.items() if name != "images"})  # each is opened when it is read
@pytest.mark.parametrize("change", ["cut", "replaced", "removed"])
def test_file_that_changes_after_it_was_opened_gives_no_other_rows(change: str, sample: Sample, tmp_path: Path) -> None:
    path = sample.file(tmp_path / f"a{sample.ending}", NUMBERS)
    data = sample.open(path)
    expected = repr(data.read([0, 1, 7]))
    other = sample.file(tmp_path / "other" / path.name, NUMBERS[::-1])
    for file in files_of(path):
        if change == "cut":
            os.truncate(file, file.stat().st_size // 4)
        elif change == "replaced":
            (other / file.relative_to(path)).rename(file)
        else:
            file.unlink()
    try:
        read = repr(data.read([0, 1, 7]))
    except LoadaxError as error:
        assert str(path) in told(error)  # noqa: PT017 - files that are mapped or in memory stay as they were
    else:
        assert read == expected


@every(REWRITTEN)
def test_file_rewritten_in_place_after_it_was_opened_is_refused(sample: Sample, tmp_path: Path) -> None:
    """By one of the same size, at another time; here, and where a process has received the dataset."""
    path = sample.file(tmp_path / f"a{sample.ending}", NUMBERS)
    source = sample.open(path).source
    copy = pickle.loads(pickle.dumps(source))
    source.read(np.array([0]))
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    for opened in (source, copy):
        with pytest.raises(SourceError, match=rf"{path}: the file has changed since it was opened; data must not chan"):
            opened.read(np.array([7]))


@pytest.fixture(params=["pipe", "socket", "device"])
def special(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], Path]]:
    """Makes something that is no regular file."""
    with socket.socket(socket.AF_UNIX) as server:

        def make(path: Path) -> Path:
            match request.param:
                case "pipe":
                    os.mkfifo(path)
                case "socket":
                    server.bind(str(path))
                case _:
                    path.symlink_to("/dev/zero")
            return path

        yield make


@every()
def test_special_file_is_refused_at_once(sample: Sample, special: Callable[[Path], Path], tmp_path: Path) -> None:
    path = special(tmp_path / f"a{sample.ending}")
    for paths in (path, [path], tmp_path)[: 3 if sample.together else 1]:
        with pytest.raises(LoadaxError) as caught:
            sample.open(paths)
        assert str(path) in str(caught.value)


def recognised() -> list[tuple[Sample, Sample]]:
    """Pairs of a file's format and another function; from_tokens reads the bytes of any text."""
    text = ("jsonl", "csv", "tfrecord")
    return [
        (SAMPLES[name], opener)
        for name in ("parquet", "jsonl", "csv", "webdataset", "tfrecord", "npy")
        for opener in SAMPLES.values()
        if opener.function != SAMPLES[name].function
        and not (opener.function == "from_tokens" and (name in text or ".npy" in (opener.ending, SAMPLES[name].ending)))
    ]


@pytest.mark.parametrize(("sample", "opener"), recognised(), ids=lambda each: f"{each.function}{each.ending}")
def test_another_function_names_the_one_that_opens_the_file(sample: Sample, opener: Sample, tmp_path: Path) -> None:
    path = sample.file(tmp_path / f"a{sample.ending}", NUMBERS)
    with pytest.raises(SourceError, match=rf"{path.name}.*open it with loadax\.{sample.function}\(") as caught:
        opener.open(path)
    assert [len(dataset) for dataset in follow(caught.value)] == [len(NUMBERS)]


@every(COMPRESSED)
def test_compression_is_recognised_under_any_name(sample: Sample, tmp_path: Path) -> None:
    path = sample.file(tmp_path / f"a{sample.ending}", NUMBERS)
    for name in (path.stem, "a.txt", f"A{sample.ending.upper()}"):
        shutil.copy(path, tmp_path / name)
        assert sample.numbers(tmp_path / name, tmp_path / "kept") == NUMBERS
    content = path.read_bytes()
    path.write_bytes(content + content)  # joined by cat
    assert len(sample.open(path, tmp_path / "kept")) >= 2 * len(NUMBERS)
    sample.write(path, NUMBERS)  # not compressed
    assert sample.numbers(path, tmp_path / "kept") == NUMBERS


@every(COMPRESSED | {name: replace(COMPRESSED[name], compress=gzip.compress) for name in ("jsonl.gz", "csv.gz")})
def test_file_that_decompresses_to_too_much_is_refused(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MOST", 1 << 10)
    path = sample.file(tmp_path / f"a{sample.ending}", [1] * 50_000)
    with pytest.raises(SourceError, match=rf"a{sample.ending}: its .* more than 200 times as many.*decompress it your"):
        sample.open(path, tmp_path / "kept")
    kept = tmp_path / "kept" / "loadax-decompressed"
    assert not kept.is_dir() or not list(kept.iterdir())
