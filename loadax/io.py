"""Data in and out: `from_*`, `as_dataset`, `write_zarr`."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from loadax.core.arguments import path as checked_path
from loadax.core.tree import flatten, jax_knows
from loadax.dataset import Dataset, Written
from loadax.errors import ArgumentError, SourceError
from loadax.plan.sequential import Sequential
from loadax.protocols import Tree
from loadax.sources.base import as_source


def from_arrays(tree: Tree) -> Dataset:
    """A dataset of arrays in memory, or memory-mapped: one row an entry of their first dimension.

    Args:
        tree: an array, or a pytree of them with equal first dimensions: NumPy arrays, `jax.Array`s, tensors of torch or
            TensorFlow, columns of pandas, polars or Arrow. Arrays that h5py, xarray, zarr or TensorStore have open are
            read by rows, not into memory. Static fields of dataclasses stay what they are.

    Raises:
        SourceError: when a leaf is no array, has no rows, or has nulls, or the leaves' lengths differ; names the leaf.
        LeafTypeError: when a column holds something else than numbers; names it.

    Examples:
        >>> import numpy as np
        >>> len(from_arrays({"image": np.zeros((10, 8, 8), np.uint8), "label": np.arange(10)}))
        10
    """
    from loadax.sources.adapters.known import open_tree

    try:
        return from_source(open_tree(tree))
    except SourceError as error:
        if not isinstance(tree, list):
            raise
        raise SourceError(f"{error}; where this is a list of examples, open it with loadax.from_source") from None


def from_array_record(
    paths: Any,
    *,
    dtype: Any = None,
    decode: Callable[[bytes], Tree] | None = None,
    pad_to: int | Mapping[str, int] | None = None,
    truncate: bool = False,
) -> Dataset:
    """A dataset of the records of ArrayRecord files, one file behind another.

    Examples are `bytes`, for a map to decode: `from_array_record(paths).map(decode)`. With `dtype` they are arrays of
    that dtype, whose lengths must be equal (or a map makes them so, or `pack` makes rows of them); with `dtype` and
    `pad_to` they are `{"data": dtype[pad_to], "length": int32[]}`, with zeros behind the entries of each record.

    Args:
        paths: of a file, of a folder (its files with `array_record` in their names), a glob pattern (both sorted by
            name), or a list of these, taken in its order.
        dtype: of records that are nothing but entries, as they were written.
        decode: a function from a record's bytes to a dict of arrays, some of which differ in length from record to
            record.
        pad_to: how long rows become: an int, beside `dtype`; or a dict of leaves and lengths, beside `decode`: a leaf
            "x" then gets zeros behind its entries, and beside it stands "x_length".
        truncate: whether of a longer record the first entries are kept. Else it is an error.

    Raises:
        ArgumentError: when an argument can't be used, or lacks another one.
        SourceError: when a file is missing, damaged or of another kind, or has no records; names it.
        LeafError: when reading, for records of different lengths without `pad_to`, or longer than it; names the row and
            its file.
        UnsupportedError: when a path is a URL, or `array_record` is not installed.

    Examples:
        >>> import tempfile
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> path = tempfile.mkdtemp() + "/words.array_record"
        >>> writer = ArrayRecordWriter(path, "group_size:1")
        >>> for word in (b"one", b"two", b"three"):
        ...     writer.write(word)
        >>> writer.close()
        >>> from_array_record(path)[2]
        b'three'
        >>> from_array_record(path, dtype="uint8", pad_to=4, truncate=True)[0]
        {'data': array([111, 110, 101,   0], dtype=uint8), 'length': np.int32(3)}
    """
    from loadax.sources.array_record.source import open_array_record

    return from_source(open_array_record(paths, dtype=dtype, decode=decode, pad_to=pad_to, truncate=truncate))


def from_images(
    folder: str | os.PathLike[str],
    size: tuple[int, int] | int | None = None,
    *,
    fit: Literal["crop", "stretch", "pad"] = "crop",
    quality: Literal["high", "fast"] = "high",
    damaged: Literal["error", "accept"] = "error",
) -> Dataset:
    """A dataset of a folder of images: JPEG, PNG, WebP and BMP files, decoded as their rows are asked for.

    Examples are `{"image": uint8[height, width, 3], "label": int32[]}`: red, green and blue, turned upright as EXIF
    says; gray is spread over the three, and what is transparent has the colour that is stored beneath. Each folder in
    `folder` is a class, with all images in it and below; labels number the classes by name, and
    `dataset.source.classes` has the names. Images that lie in `folder` itself are one class, 0, whose name is "". What
    is hidden or has another ending is left out.

    Args:
        folder: on this machine.
        size: (height, width), or one int for squares, that all images get. None: each keeps its own, and a map makes
            them alike.
        fit: how an image of another shape gets it: "crop" keeps as much of the middle as the shape allows, "stretch"
            all of it, and "pad" all of it in its own shape, with black around it. As `PIL.ImageOps.fit`,
            `PIL.Image.resize` and `PIL.ImageOps.pad` do it, bilinear.
        quality: "high": within 40 dB of Pillow. "fast": JPEGs are decoded less exactly and resized without
            antialiasing.
        damaged: "error": a JPEG whose data is cut short or damaged is an error. "accept": it is what could be decoded
            of it. Damage in other formats is always an error, as far as they notice it.

    Raises:
        ArgumentError: when an argument can't be used.
        UnsupportedError: when the folder is a URL, or Pillow, simplejpeg or OpenCV is not installed.
        SourceError: when there is no such folder or no image in it; when reading, for a file that can't be decoded, or
            has another size than the first while `size` is None. Names it.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for animal in ("cat", "dog"):
        ...     (folder / animal).mkdir()
        ...     Image.new("RGB", (60, 40), "teal").save(folder / animal / "1.png")
        >>> animals = from_images(folder, size=32)
        >>> animals[1]["image"].shape, animals.source.classes[animals[1]["label"]]
        ((32, 32, 3), 'dog')
    """
    from loadax.sources.images.folder import open_images

    return from_source(open_images(folder, size, fit=fit, quality=quality, damaged=damaged))


def from_npy(path: Any, *, cache: Any = None, cache_bytes: int = 16 << 30) -> Dataset:
    """A dataset of a `.npy` file, or of a pytree of them: nothing is read until it is asked for.

    Local files are memory-mapped; of remote ones only the bytes of the rows that are asked for are read.

    Args:
        path: or URL (`s3://`, `gs://`, `http(s)://`, `file://`), or a pytree of these.
        cache: a local folder for what is read of remote files, kept for later runs; processes may share it.
        cache_bytes: how much it holds; what was not used for longest goes first.

    Raises:
        SourceError: when a file is missing, cut short, or holds no array of numbers; names it.
    """
    from loadax.sources.npy.source import open_npy

    return from_source(open_npy(path, cache, cache_bytes))


def from_tokens(
    path: Any,
    seq_len: int,
    *,
    dtype: Any = None,
    stride: int | None = None,
    targets: bool = False,
    segment_ids: bool = False,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
) -> Dataset:
    """A dataset of windows of a stream of tokens: row i is the `seq_len + 1` tokens from token `i * stride` on.

    Examples are `{"tokens": dtype[seq_len + 1]}`: a model reads the first `seq_len` and predicts the last `seq_len`.
    The files are one stream, so windows go on from file to file; the end of the stream that is less than a window is
    left out. Local files are memory-mapped; of remote ones only the bytes of the rows that are asked for are read.

    Args:
        path: of a flat `.bin` file, a one-dimensional `.npy` file, or Megatron's `.bin` and `.idx` pair (named by
            either); a folder of these or a glob pattern, taken sorted by name; a URL (`s3://`, `gs://`, `http(s)://`,
            `file://`) of one of these; or a list, taken in its order.
        seq_len: how many tokens a row predicts.
        dtype: of the tokens in a `.bin` file without an `.idx`; the other kinds of files say it themselves.
        stride: from the beginning of a window to that of the next. None: `seq_len`, so that windows overlap by one
            token and each token but the first is predicted once.
        targets: whether examples are `{"inputs": dtype[seq_len], "targets": dtype[seq_len]}` instead, one token apart.
        segment_ids: whether examples have `"segment_ids"` too: for each token (of `tokens`, or of `inputs`) the number
            of its document within the window, from 1, as int32. Needs Megatron's `.idx` files, which say where
            documents begin.
        cache: a local folder for what is read of remote files, kept for later runs; processes may share it.
        cache_bytes: how much it holds; what was not used for longest goes first.

    Raises:
        ArgumentError: when an argument can't be used, or `dtype` is missing.
        SourceError: when a file is missing, cut short, or not what its name says, or dtypes differ; names the file.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.arange(100, dtype=np.uint16).tofile(f"{folder}/corpus.bin")
        ...     data = from_tokens(f"{folder}/corpus.bin", seq_len=8, dtype="uint16")
        ...     len(data), data[1]["tokens"].tolist()
        (12, [8, 9, 10, 11, 12, 13, 14, 15, 16])
    """
    from loadax.sources.tokens.windows import open_tokens

    source = open_tokens(
        path,
        seq_len,
        dtype=dtype,
        stride=stride,
        targets=targets,
        segment_ids=segment_ids,
        cache=cache,
        cache_bytes=cache_bytes,
    )
    return from_source(source)


def from_documents(
    data: Any, offsets: Any = None, *, dtype: Any = None, cache: Any = None, cache_bytes: int = 16 << 30
) -> Dataset:
    """A dataset of documents of any length that lie one behind another: to be made rows of by `Dataset.pack`.

    Their lengths are known without reading them, and of a packed row only its own entries are read.

    Args:
        data: Megatron's `.bin` and `.idx` pair (named by either), or a folder, glob pattern, URL or list of such pairs,
            as in `from_tokens`. Or, with `offsets`: a flat array, in memory or mapped; the path or URL of a flat `.bin`
            or one-dimensional `.npy` file; or a dict of these, whose leaves are equally long (then documents are
            dicts).
        offsets: with which entry each document begins, and behind the last one the end: ints, one more than there are
            documents; or the path of a `.npy` file of them.
        dtype: of the tokens in a `.bin` file without an `.idx`.
        cache: a local folder for what is read of remote files, kept for later runs; processes may share it.
        cache_bytes: how much it holds; what was not used for longest goes first.

    Raises:
        ArgumentError: when an argument can't be used.
        SourceError: when a file is missing, cut short, or not what its name says, or the offsets don't fit.

    Examples:
        >>> import numpy as np
        >>> documents = from_documents(np.arange(10, 20), offsets=[0, 3, 3, 7, 10])
        >>> len(documents), documents[2].tolist()
        (4, [13, 14, 15, 16])
        >>> documents.pack(5)[1]["segment_ids"].tolist()
        [1, 1, 2, 2, 2]
    """
    from loadax.sources.tokens.documents import open_documents

    return from_source(open_documents(data, offsets, dtype=dtype, cache=cache, cache_bytes=cache_bytes))


def from_tensorstore(spec: Any, *, missing: Literal["error", "fill"] = "error") -> Dataset:
    """A dataset of TensorStore arrays: zarr, zarr3, n5 and its other drivers, wherever TensorStore reaches.

    Args:
        spec: a TensorStore spec (a dict with the key `driver`), an open store, or a pytree of these that share their
            first dimension.
        missing: "error": a chunk that is not there is an error that names it. "fill": it reads as the array's fill
            value, mostly zero.

    Raises:
        SourceError: when a store can't be opened, or lengths differ; names the leaf.
    """
    from loadax.sources.zarr.source import TensorStoreSource

    return from_source(TensorStoreSource(spec, missing))


def from_zarr(
    path: Any, variables: Sequence[str] | str | None = None, *, missing: Literal["error", "fill"] = "error"
) -> Dataset:
    """A dataset of a zarr array, or of arrays of a zarr group (then examples are dicts), version 2 or 3.

    Args:
        path: of a folder, a `.zip` file or an OCDBT database; a local path or a URL (`s3://`, `gs://`, `http(s)://`,
            `file://`).
        variables: which arrays of a group; None: all of them.
        missing: "error": a chunk that is not there is an error that names it. "fill": it reads as the array's fill
            value, mostly zero.

    Raises:
        SourceError: when nothing is there, a variable is missing (lists what is there), or loadax did not write the
            store to its end.
    """
    from loadax.sources.zarr.source import open_zarr

    return from_source(open_zarr(path, variables, missing))


def from_source(obj: Any) -> Dataset:
    """A dataset of your own data.

    Args:
        obj: a `Source` (with `read`, `spec` and `__len__`), or any object with `__len__` and `__getitem__`, which is
            called with Python ints. One with `__getitems__` is asked for many rows at once (a list of examples comes
            back). What `as_dataset` knows by its class is opened as there.

    Raises:
        ArgumentError: when it is neither; says what to write.

    Examples:
        >>> from_source([{"x": 1.0}, {"x": 2.0}])[1]
        {'x': np.float64(2.0)}
    """
    found = _dataset_of(obj)
    if found is None:
        from loadax.sources.adapters.refusals import refuse_mapping

        refuse_mapping(obj)
        return _of_objects(obj)
    return found


def as_dataset(data: Any) -> Dataset:
    """A dataset of whatever holds data: what `Dataloader`, `mix` and `concat` do with what they are given.

    | given | becomes |
    |---|---|
    | a `Dataset` | itself |
    | a `Source`, or an object with `__len__` and `__getitem__`: a list, a dataset of torch or Hugging Face | as by
    `from_source` |
    | arrays, or a dict, tuple, dataclass or other mapping of them | as by `from_arrays` |
    | a data frame of pandas or polars, an Arrow `Table` or `RecordBatch` | a dict of its columns, each with its own
    dtype; nulls are an error |
    | an open array of TensorStore, zarr, h5py or xarray | its rows, read when they are asked for |
    | an `xarray.Dataset`, `zarr.Group` or `h5py.Group` | a dict of its arrays, whose first dimensions must be equal |
    | a `grain.MapDataset` | its elements, in Grain's own epochs: shuffled and mapped at random anew in each |

    Anything else is refused with the line that opens it: paths, iterators, dicts of several datasets, sparse matrices.

    Args:
        data: one of these.

    Raises:
        ArgumentError: when it can't be read by rows; says what to write.
        SourceError: when a column has nulls, or the arrays' lengths differ; names it, and says what to write.
        LeafTypeError: when a column holds something else than numbers; the same.

    Examples:
        >>> import numpy as np
        >>> as_dataset({"x": np.arange(3), "y": np.arange(3) ** 2})[2]
        {'x': np.int64(2), 'y': np.int64(4)}
        >>> as_dataset([{"x": 1}, {"x": 2}])[1]
        {'x': np.int64(2)}
    """
    found = _dataset_of(data)
    if found is not None:
        return found
    return from_arrays(data) if _is_tree(data) else _of_objects(data)


def _dataset_of(data: Any) -> Dataset | None:
    """The dataset of what says by its class, or by being a `Source`, what its rows are; else None."""
    if isinstance(data, Dataset):
        return data
    if type(data).__module__ == "loadax.loader.dataloader":  # which this module can't import
        raise ArgumentError("the data is a Dataloader already; pass its dataset: data.dataset")
    from loadax.sources.adapters.known import open_known

    known = open_known(data)
    if known is None and not (hasattr(data, "read") and hasattr(data, "__len__")):
        return None
    source = as_source(data if known is None else known)
    return Dataset(source, Sequential(len(source), source.own_epochs))


def _is_tree(data: Any) -> bool:
    """Whether arrays may hang in it.

    A container, but no list, which is one of rows, nor an object that has rows and that JAX does not know.
    """
    if data is None or isinstance(data, list):
        return False
    has_rows = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return isinstance(data, Mapping | tuple) or jax_knows(data) or (not has_rows and flatten(data)[1].kind is not None)


def _of_objects(data: Any) -> Dataset:
    from loadax.sources.adapters.refusals import refuse_unreadable
    from loadax.sources.objects import ObjectSource

    refuse_unreadable(data)
    source = ObjectSource(data)
    return Dataset(source, Sequential(len(source)))


def write_zarr(
    dataset: Any,
    path: str | os.PathLike[str],
    *,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    compression: str | None = "zstd",
    resume: bool = False,
    overwrite: bool = False,
    shard: tuple[int, int] | None = None,
    progress: bool | None = None,
    workers: int | None = None,
) -> None:
    """Writes a dataset, as epoch 0 meets it, to a zarr3 store that `from_zarr` reads, with a checksum on every chunk.

    An example that is one array becomes the array at `path`; one of several leaves a group with an array for each,
    named by its keys (joined by dots). Memory stays that of a few shards. Until the last part is written nothing opens
    the store.

    Args:
        dataset: a `Dataset`, or what a `Dataloader` takes for one.
        path: of a folder that is not there yet, or a URL.
        chunk_rows: rows that are decoded together. None: at least 4 KiB of them, which any shuffle reads well.
        shard_rows: rows of a file, a multiple of chunk_rows. None: about 128 MiB of them, all arrays together.
        compression: "zstd", "blosc" (better for floats), or None.
        resume: goes on with a store that was not written to its end: what is there is read back, and kept if it is
            whole.
        overwrite: replaces the zarr store that is there, once the new one is whole; until then both take room. Deletes
            nothing but that store: other files in its folder are an error that names them.
        shard: `(i, n)`: this is process i of n that write side by side; the last to be done finishes the store.
        progress: whether to show a bar; None: when stderr is a terminal.
        workers: threads that read rows. None: 4.

    Raises:
        ArgumentError: when a value can't be used, or something stands at `path`.
        LeafTypeError: when a leaf holds something else than numbers; names it.
        SourceError: when the store can't be written to.

    Examples:
        >>> import numpy as np, tempfile
        >>> folder = tempfile.mkdtemp() + "/squares.zarr"
        >>> write_zarr({"x": np.arange(5), "y": np.arange(5) ** 2}, folder)
        >>> from_zarr(folder)[3]
        {'x': np.int64(3), 'y': np.int64(9)}
    """
    from loadax.writing.write import write_zarr as write

    path = checked_path("path", path, "the path or URL of a folder that is not there yet")
    rows = Written(as_dataset(dataset))
    rows.check_elsewhere(path)
    write(
        rows,
        path,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        compression=compression,
        resume=resume,
        overwrite=overwrite,
        shard=shard,
        progress=progress,
        workers=workers,
    )
