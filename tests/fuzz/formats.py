"""What is fuzzed: small valid files of each format, how they are read, and which mutations get past their checksums."""

import gzip
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import soundfile
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from pyarrow import parquet as pq

import loadax
from loadax.dataset import Dataset
from loadax.kept.index_folder import Entry, IndexFolder
from tests.fuzz.mutations import Mutate, change_value, mutate_bytes, mutate_json
from tests.sources.shards.corpora import encoded, masked, write_tar, write_tfrecord
from tests.sources.token_corpora import write_pair
from tests.sources.video.videos import write_video

SEED = "seed"
"""Part of the name of every file: an error must contain it."""


class Format(NamedTuple):
    """A parser, and how to fuzz it.

    Args:
        make: Writes valid files to a folder.
        read: Opens and reads them: a dataset, or None where there are no rows.
        files: Pattern of those that are changed.
        mutate: Mutations of the contents of one file.
        forged: Whether half of the cases are indices with wrong values and right checksums.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], Dataset | None]
    files: str
    mutate: Mutate = mutate_bytes
    forged: bool = False


def _arrays() -> dict[str, Any]:
    return {"x": np.arange(30), "y": np.arange(60.0, dtype=np.float32).reshape(30, 2)}


def even(example: Any) -> bool:
    return bool(example["x"] % 2 == 0)


# States and records of masked rows.

_LOADER: list[Any] = []


def _loader() -> Any:
    if not _LOADER:
        data = loadax.from_arrays(_arrays())
        mixed = loadax.mix({"a": data.shuffle(seed=1), "b": data}, weights={"a": 2, "b": 1})
        _LOADER.append(loadax.Dataloader(mixed, batch_size=8, num_epochs=3, remainder="pad"))
    return _LOADER[0]


def _make_state(folder: Path) -> None:
    with _loader().iterate(start=5) as batches:
        (folder / "seed.json").write_text(json.dumps(batches.get_state()))


def _read_state(folder: Path) -> None:
    try:
        state = json.loads((folder / "seed.json").read_bytes())
    except (ValueError, RecursionError):
        return  # not read by loadax
    try:
        _loader().iterate(start=state).close()
    except loadax.errors.StateError as error:
        raise loadax.errors.StateError(f"{SEED}: {error}") from error  # a state has no name


def _make_record(folder: Path) -> None:
    lines = [{"dataset": None, "row": 3, "id": 3, "rows": 30, "step": 1, "error": "x"}, {"id": 7, "rows": 30}]
    (folder / "seed.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _read_record(folder: Path) -> None:
    loadax.Dataloader(loadax.from_arrays(_arrays()), batch_size=8, quarantine=folder / "seed.jsonl")


# Arrays and tokens.


def _make_npy(folder: Path) -> None:
    np.save(folder / "seed.npy", np.arange(24, dtype=np.int32).reshape(8, 3))


def _make_rows(folder: Path) -> None:
    np.save(folder / "seed.npy", np.array([3, 5, 8]))


def _read_array_record(folder: Path) -> Dataset:
    return loadax.from_array_record(folder / "seed.array_record")


def _make_megatron(folder: Path) -> None:
    write_pair(folder / "seed.bin", [[part] for part in np.split(np.arange(14, dtype=np.uint16), [3, 8, 12])])


def _read_megatron(folder: Path) -> Dataset:
    loadax.from_tokens(folder / "seed.bin", 4, segment_ids=True).read([0])
    return loadax.from_documents(folder / "seed.bin")


# Records.


def _png(format_name: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(out, format_name)
    return out.getvalue()


def _npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _make_tar(folder: Path) -> None:
    files: dict[str, bytes] = {}
    for row in range(4):
        long = "d" * 120 + "/" if row == 2 else ""
        files |= {f"{long}{row}.cls": b"%d" % row, f"{long}{row}.txt": b"text" * row, f"{long}{row}.png": _png()}
        files[f"{long}{row}.npy"] = _npy(np.arange(3) + row)
    write_tar(folder / "seed.tar", files)


def _make_gnu_tar(folder: Path) -> None:
    import tarfile

    write_tar(folder / "seed.tar", {"d" * 130 + f"/{row}.cls": b"%d" % row for row in range(3)}, tarfile.GNU_FORMAT)


def _read_tar(folder: Path) -> Dataset:
    return loadax.from_webdataset(folder / "seed.tar", decode=True, progress=False)


def mutate_tar(content: bytes, random: Random) -> bytes:
    """Changes bytes, and then mostly corrects the checksums of headers."""
    changed = bytearray(mutate_bytes(content, random))
    if random.random() < 0.75:
        for at in range(0, len(changed) - 511, 512):
            if changed[at + 257 : at + 262] == b"ustar":
                changed[at + 148 : at + 156] = b" " * 8
                changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def _make_tfrecord(folder: Path) -> None:
    records = [encoded({"id": np.array([row]), "text": [b"t" * row], "w": np.array([0.5, row])}) for row in range(5)]
    write_tfrecord(folder / "seed.tfrecord", records)


def _read_tfrecord(folder: Path) -> Dataset:
    features: dict[str, Any] = {"id": "int64", "text": bytes, "w": ("float32", 2)}
    return loadax.from_tfrecord(folder / "seed.tfrecord", features=features, progress=False)


def mutate_tfrecord(content: bytes, random: Random) -> bytes:
    """Changes bytes of the file, or of a record whose checksums are then right."""
    if random.random() < 0.3:
        return mutate_bytes(content, random)
    records, at = [], 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        records.append(content[at + 12 : at + 12 + length])
        at += 16 + length
    records[random.randrange(len(records))] = mutate_bytes(random.choice(records), random)
    out = b""
    for record in records:
        size = len(record) if random.random() < 0.95 else random.choice((0, 1, 2**31, 2**62, 2**64 - 1, 2**64 - 16))
        header = struct.pack("<Q", size)
        out += header + struct.pack("<I", masked(header)) + record + struct.pack("<I", masked(record))
    return out


def _make_jsonl(folder: Path) -> None:
    rows = [{"i": i, "t": "a" * i, "n": [1.5] * 3, "d": {"s": [{"k": "v"}]}} for i in range(6)]
    (folder / "seed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def mutate_jsonl(content: bytes, random: Random) -> bytes:
    """Changes bytes, or the JSON of a line."""
    lines = content.split(b"\n")
    if random.random() < 0.4:
        return mutate_bytes(content, random)
    index = random.randrange(len(lines))
    lines[index] = mutate_json(lines[index], random)
    return b"\n".join(lines)


def _read_jsonl(folder: Path) -> Dataset:
    return loadax.from_jsonl(folder / "seed.jsonl", progress=False)


def _make_gzip(folder: Path) -> None:
    _make_jsonl(folder)
    (folder / "seed.jsonl.gz").write_bytes(gzip.compress((folder / "seed.jsonl").read_bytes(), mtime=0))


def _make_zstd(folder: Path) -> None:
    _make_jsonl(folder)
    (folder / "seed.jsonl.zst").write_bytes(pa.compress((folder / "seed.jsonl").read_bytes(), "zstd", asbytes=True))


def _read_compressed(folder: Path) -> Dataset:
    (path,) = folder.glob("seed.jsonl.*")
    cache = folder / "cache"
    return loadax.from_jsonl(path, progress=False, cache=cache)


def _make_csv(folder: Path) -> None:
    (folder / "seed.csv").write_text("i,t,f\n" + "".join(f'{i},"a{i}",{i / 2}\n' for i in range(6)))


def _make_long_csv(folder: Path) -> None:
    (folder / "seed.csv").write_text("i,t,f\n" + "".join(f'{i},"a\n""{i}"",",{i / 2}\n' for i in range(6)))


def _make_parquet(folder: Path) -> None:
    table = pa.table(
        {
            "i": np.arange(12),
            "t": [f"t{i}" for i in range(12)],
            "n": [[float(i)] * 3 for i in range(12)],
            "s": [{"a": i} for i in range(12)],
        }
    )
    pq.write_table(table, folder / "seed.parquet", row_group_size=5, write_page_checksum=True)


def _read_parquet(folder: Path) -> Dataset:
    return loadax.from_parquet(folder / "seed.parquet")


def mutate_parquet(content: bytes, random: Random) -> bytes:
    """Changes bytes of the pages; for some damaged footers pyarrow ends the process, see SECURITY.md."""
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return mutate_bytes(content[:end], random)[:end].ljust(end, b"\0") + content[end:]


def _make_array_record(folder: Path) -> None:
    writer = ArrayRecordWriter(str(folder / "seed.array_record"), "group_size:2")
    for row in range(5):
        writer.write(np.arange(4, dtype=np.int32).tobytes() + bytes([row] * 4))
    writer.close()


def _make_images(folder: Path) -> None:
    for name, format_name in {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP"}.items():
        (folder / f"seed.{name}").write_bytes(_png(format_name))


def _read_images(folder: Path) -> Dataset:
    for row in range(4):  # each by itself, also if another one fails
        loadax.from_images(folder, size=(4, 4)).read([row])
    return loadax.from_images(folder)


def _make_audio(folder: Path) -> None:
    soundfile.write(folder / "seed.wav", np.arange(400, dtype=np.int16), 100)


# zarr.


def _make_zarr(folder: Path) -> None:
    loadax.write_zarr(_arrays(), folder / "seed.zarr", progress=False, chunk_rows=8)


def _make_zarr2(folder: Path) -> None:
    group = zarr.open_group(folder / "seed.zarr", mode="w", zarr_format=2)
    group.create_array("x", shape=(30,), chunks=(8,), dtype="i4")[:] = np.arange(30)


def _read_zarr(folder: Path) -> Dataset:
    return loadax.from_zarr(folder / "seed.zarr")


# Indices. Their files have checksums, so a mutation writes valid checksums of wrong values.


def _index_of(folder: Path) -> Path:
    return folder / "seed.index"


def _fixed_times(folder: Path) -> None:
    """An index belongs to the time of its data: with one time it can be kept."""
    for path in folder.iterdir():
        if path.is_file():
            os.utime(path, (0, 0))


def _indexed(make: Callable[[Path], object], read: Callable[[Path], Dataset]) -> tuple[Any, Any]:
    def make_both(folder: Path) -> None:
        make(folder)
        _fixed_times(folder)
        read(folder)

    def read_both(folder: Path) -> Dataset:
        _fixed_times(folder)
        return read(folder)

    return make_both, read_both


def forge_index(content: bytes, random: Random, folder: Path) -> None:
    """Writes an entry of an index with wrong arrays or facts, whose checksums are right."""
    described = json.loads(content)
    (path,) = (path for path in _index_of(folder).glob("*.json") if path.read_bytes() == content)
    identity = described["identity"]
    entry = IndexFolder(_index_of(folder)).get(path.stem, identity, lambda entry: None)
    assert entry is not None
    arrays = {name: np.array(array) for name, array in entry.arrays.items()}
    facts = dict(entry.facts)
    if random.random() < 0.2:
        facts = change_value(facts, random)
    else:
        name = random.choice(sorted(arrays))
        arrays[name] = _changed(arrays[name], random)
        if random.random() < 0.1:
            del arrays[name]
    IndexFolder(_index_of(folder)).put(path.stem, identity, Entry(arrays, facts))


def _changed(array: Any, random: Random) -> Any:  # noqa: PLR0911 - one a kind
    match random.randrange(8):
        case 0:
            return array[: random.randrange(len(array) + 1)]
        case 1:
            return np.concatenate([array, array])
        case 2:
            return array.astype(random.choice(("f8", "u1", "i8", "U3", "M8[s]", "?")))
        case 3:
            return array[:, None]
        case 4:
            return array[::-1].copy()
        case 5:
            return np.full(random.choice((0, len(array))), random.choice((-1, 0, 100))).astype(array.dtype)
        case _:
            if not len(array) or array.dtype.kind not in "iu":
                return array
            changed = array.astype(np.int64)
            low, high = (int(edge) for edge in (np.iinfo(array.dtype).min, np.iinfo(array.dtype).max))
            value = random.choice((-1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), int(changed[0]) + 1))
            changed[random.randrange(len(array))] = min(max(value, low), high, 2**63 - 1)
            return changed.astype(array.dtype)


def _read_filter(folder: Path) -> Dataset:
    return loadax.from_arrays(_arrays()).filter(even, "key", index=_index_of(folder), progress=False)


def _read_split_by(folder: Path) -> Dataset:
    return loadax.from_arrays(_arrays()).split_by("x", 0.5, index=_index_of(folder), progress=False)[0]


def _read_pack(method: Any) -> Callable[[Path], Dataset]:
    documents = [np.arange(1, 2 + number * 7 % 11, dtype=np.int32) for number in range(20)]

    def read(folder: Path) -> Dataset:
        source = loadax.from_source(documents)
        long: Any = {} if method == "split" else {"long": "cut"}
        return source.pack(8, method=method, index=_index_of(folder), progress=False, **long)

    return read


def _read_indexed_tar(folder: Path) -> Dataset:
    return loadax.from_webdataset(folder / "seed.tar", index=_index_of(folder), progress=False)


def _read_indexed_tfrecord(folder: Path) -> Dataset:
    return loadax.from_tfrecord(folder / "seed.tfrecord", index=_index_of(folder), progress=False)


def _read_indexed_jsonl(folder: Path) -> Dataset:
    return loadax.from_jsonl(folder / "seed.jsonl", index=_index_of(folder), progress=False)


def _nothing(folder: Path) -> None:
    pass


FORMATS: dict[str, Format] = {
    "state": Format(_make_state, _read_state, "seed.json", mutate_json),
    "record": Format(_make_record, _read_record, "seed.jsonl", mutate_jsonl),
    "npy": Format(_make_npy, lambda folder: loadax.from_npy(folder / "seed.npy"), "seed.npy"),
    "npy tokens": Format(_make_rows, lambda folder: loadax.from_tokens(folder / "seed.npy", 2), "seed.npy"),
    "megatron": Format(_make_megatron, _read_megatron, "seed.idx"),
    "tar": Format(_make_tar, _read_tar, "seed.tar", mutate_tar),
    "gnu tar": Format(_make_gnu_tar, _read_tar, "seed.tar", mutate_tar),
    "tfrecord": Format(_make_tfrecord, _read_tfrecord, "seed.tfrecord", mutate_tfrecord),
    "jsonl": Format(_make_jsonl, _read_jsonl, "seed.jsonl", mutate_jsonl),
    "jsonl.gz": Format(_make_gzip, _read_compressed, "seed.jsonl.gz"),
    "jsonl.zst": Format(_make_zstd, _read_compressed, "seed.jsonl.zst"),
    "csv": Format(_make_csv, lambda folder: loadax.from_csv(folder / "seed.csv", nulls=0), "seed.csv"),
    "csv of several lines": Format(
        _make_long_csv, lambda folder: loadax.from_csv(folder / "seed.csv", nulls=0), "seed.csv"
    ),
    "parquet": Format(_make_parquet, _read_parquet, "seed.parquet", mutate_parquet),
    "array_record": Format(_make_array_record, _read_array_record, "seed.array_record"),
    "images": Format(_make_images, _read_images, "seed.*"),
    "video": Format(
        lambda folder: write_video(folder / "seed.mkv", 9, keys=4),
        lambda folder: loadax.from_video(folder / "seed.mkv", size=(4, 4)),
        "seed.mkv",
    ),
    "audio": Format(_make_audio, lambda folder: loadax.from_audio(folder / "seed.wav", 1.0), "seed.wav"),
    "zarr metadata": Format(_make_zarr, _read_zarr, "seed.zarr/**/*.json", mutate_json),
    "zarr chunks": Format(_make_zarr, _read_zarr, "seed.zarr/*/c/**/*"),
    "zarr 2 metadata": Format(_make_zarr2, _read_zarr, "seed.zarr/**/.z*", mutate_json),
    **{
        f"{name} index": Format(*_indexed(make, read), "seed.index/*", mutate_json, forged=True)
        for name, make, read in (
            ("filter", _nothing, _read_filter),
            ("split_by", _nothing, _read_split_by),
            ("pack", _nothing, _read_pack("best_fit")),
            ("pack split", _nothing, _read_pack("split")),
            ("tar", _make_tar, _read_indexed_tar),
            ("tfrecord", _make_tfrecord, _read_indexed_tfrecord),
            ("jsonl", _make_jsonl, _read_indexed_jsonl),
        )
    },
}
