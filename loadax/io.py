"""Opening and writing data: `from_*`, `as_dataset`, `write_zarr`."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal

from loadax.core.arguments import (
    flag,
    integer,
    optional_flag,
    path as checked_path,
    refuse_given,
    text,
)
from loadax.core.formatting import type_text
from loadax.core.tree import flatten, jax_knows
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, SourceError, StreamError
from loadax.protocols import Engine, Tree


def _takes_one_tree(function: Callable[[Tree], Dataset]) -> Callable[[Tree], Dataset]:
    """Decorates `from_arrays`, which users call with several arrays, as other libraries have it.

    Raises:
        ArgumentError: For more arguments, or none; says what to write.
    """

    @wraps(function)
    def checked(*trees: Tree, **named: Tree) -> Dataset:
        if len(trees) == 1 and not named:
            return function(*trees)
        if not trees and [*named] == ["tree"]:
            return function(named["tree"])
        raise ArgumentError(
            "from_arrays() takes one tree of arrays, not several arguments or none: "
            "from_arrays((x, y)), or from_arrays({'x': x, 'y': y})"
        )

    return checked


@_takes_one_tree
def from_arrays(tree: Tree) -> Dataset:
    """Makes a dataset of arrays in memory or memory-mapped arrays. Rows are entries of their first dimension.

    Args:
        tree: Array, or pytree of arrays with equal first dimensions: NumPy arrays, `jax.Array`s, tensors of torch or
            TensorFlow, columns of pandas, polars or Arrow. Open arrays of h5py, xarray, zarr or TensorStore are read
            row by row, not loaded into memory. Static fields of dataclasses are kept.

    Raises:
        ArgumentError: If several arrays are given, which make one tree: `from_arrays((x, y))`.
        SourceError: If a leaf is not an array, has no rows or has nulls, or the leaves differ in length. Names the
            leaf.
        LeafTypeError: If a column is not numeric. Names it.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_arrays
        >>> len(from_arrays({"image": np.zeros((10, 8, 8), np.uint8), "label": np.arange(10)}))
        10
    """
    from loadax.sources.libraries.array_tree import open_tree

    try:
        return Dataset(open_tree(tree))
    except SourceError as error:
        if not isinstance(tree, list):
            raise
        raise SourceError(
            f"{error}; if this is a list of examples, open it with loadax.from_source"
        ) from None


def from_array_record(paths: Any, *, dtype: Any = None, index: Any = None) -> Dataset:
    """Opens the records of ArrayRecord files, in the order of the files.

    Examples are `bytes`, to be decoded by a map: `from_array_record(paths).map(decode)`. With `dtype`, examples are
    arrays of that dtype; they must have equal lengths, unless `pad` pads them, `pack` packs them or a map crops them.

    Args:
        paths: File, folder (its files with `array_record` in their names), or glob pattern (both sorted by name), or a
            list of these, in its order; paths or URLs. Files at URLs are read by the byte ranges of their chunks, whose
            hashes are not compared, so that damaged bytes may be read as other records without an error. They can't
            have been written with `transpose:true`.
        dtype: Dtype of records that are flat arrays without a header.
        index: Local folder that keeps what opening asks of remote storage, written on the first open and compared on
            all others: what is known of a file of another size, time of change or ETag is asked again. None: nothing
            is kept.

    Raises:
        ArgumentError: If an argument can't be used.
        SourceError: If a file is missing, damaged, of another kind, or has no records. Names it.
        LeafError: On reading records of different lengths. Names the row and its file.
        UnsupportedError: If `array_record` is not installed; for compressed files at URLs, `pyarrow`.

    Examples:
        >>> import tempfile
        >>> from array_record.python.array_record_module import ArrayRecordWriter
        >>> from loadax import from_array_record
        >>> path = tempfile.mkdtemp() + "/words.array_record"
        >>> writer = ArrayRecordWriter(path, "group_size:1")
        >>> for word in (b"one", b"two", b"three"):
        ...     writer.write(word)
        >>> writer.close()
        >>> from_array_record(path)[2]
        b'three'
        >>> from_array_record(path, dtype="uint8").pad(4, truncate=True)[0]
        {'data': array([111, 110, 101,   0], dtype=uint8), 'length': np.int32(3)}
    """
    from loadax.sources.array_record.format import FORMAT
    from loadax.sources.open_files import open_files

    return Dataset(open_files(FORMAT, paths, dtype=dtype, index=index))


def from_arrow(
    data: Any,
    columns: Sequence[str] | str | None = None,
    *,
    nulls: Any = None,
    classes: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Opens a table in memory, of pyarrow, polars, pandas or DuckDB, or with Arrow's C stream interface.

    Examples are dicts of the columns. Numbers, bools and lists of a fixed length are arrays of their own dtypes; lists
    of any length are arrays for `pack`, or for a map. Structs are dicts. Texts and bytes are `str` and `bytes`, for a
    map. Categories (dictionaries of texts) are int32, and `dataset.source.classes` has their names. Times are ints that
    count their units, and `dataset.source.units` has their types. Most columns are read in place; a table of many small
    record batches is copied once.

    Args:
        data: `pyarrow.Table`, `RecordBatch`, `RecordBatchReader` (read to its end) or array of structs; data frame of
            polars or pandas (without its index); relation of DuckDB; or any object with `__arrow_c_stream__`.
        columns: Names of the columns to read. None: all.
        nulls: Value in place of nulls, for all columns, or a dict of values by column ("column.member" in structs). In
            a list of numbers it replaces entries, and a list that is null becomes empty. None: a null is an error.
        classes: Names of categories by column ("column.member" in structs), so that several datasets number them alike.
            Texts of these columns become categories too; another name is an error. None: in the order in which they
            are found.

    Raises:
        ArgumentError: If the data is not a table, or an argument can't be used. Says what to write.
        SourceError: If a column has nulls. Names it and the first row, and says what to write.
        LeafTypeError: If a column has a type without an array, such as decimals. Names it, and says what to write.
        UnsupportedError: If pyarrow is not installed.

    Examples:
        >>> import pyarrow as pa
        >>> from loadax import from_arrow
        >>> table = pa.table({"x": [1, 2, None], "tokens": [[7], [8, 9], []]})
        >>> from_arrow(table, nulls={"x": -1})[2]
        {'tokens': array([], dtype=int64), 'x': np.int64(-1)}
    """
    from loadax.sources.library import require

    require("a table", {"pyarrow": "pyarrow"}, "parquet")
    from loadax.sources.libraries.unsupported import refuse_known
    from loadax.sources.tables.arrow.table import open_arrow

    refuse_known(data)
    return Dataset(open_arrow(data, columns, nulls, classes))


def from_audio(
    paths: Any,
    seconds: float,
    *,
    overlap: float = 0,
    rate: int | None = None,
    channels: Literal["mono"] | int | None = None,
    tail: Literal["drop", "pad"] = "drop",
    damaged: Literal["error", "accept"] = "error",
    index: Any = None,
    memory_bytes: int = 256 << 20,
    progress: bool | None = None,
) -> Dataset:
    """Opens clips of audio files, which are decoded when their rows are read.

    A clip is `{"audio": float32[samples, channels], "file": int32[], "time": float32[]}`: samples from -1 to 1, the
    number of its file in `dataset.source.files`, and the seconds there at which it begins. Clips stay in their file.

    WAV, AIFF and FLAC files are read by seeking. Ogg and MP3, in which a seek gives other samples, and M4A, AAC and the
    sound of videos, which PyAV reads, are decoded as a whole and kept in memory: `shuffle(seed, block="chunks")` then
    decodes each once an epoch.

    Args:
        paths: Local path of a file, folder (its audio files), or glob pattern (both sorted by name), or a list of
            these, in its order.
        seconds: Length of a clip.
        overlap: Seconds that a clip shares with the next one of its file.
        rate: Samples a second that files are converted to. None: that of the first file, which all must have.
        channels: "mono": the mean of a file's channels, and clips are float32[samples]; or the number of channels that
            all files must have. None: that of the first file.
        tail: What happens with the end of a file that is shorter than a clip. "drop": it is no row. "pad": it is
            followed by zeros, and rows have the leaf `"length"`, int32[], the number of the file's samples.
        damaged: "error": a file that is cut short or can't be read is an error. "accept": files have the samples that
            are there. Damage that only decoding shows is an error when its rows are read.
        index: Local folder of the index, written on the first open and checked on all others: another size, place or
            time of change of a file makes it again. None: no index is kept.
        memory_bytes: Memory for files that are decoded as a whole in bytes, of each process.
        progress: Whether to show a progress bar while the files are indexed. None: if stderr is a terminal.

    Raises:
        ArgumentError: If an argument can't be used.
        SourceError: If a file is missing, damaged or not audio, has another rate or number of channels, or none has a
            clip; on reading, if a clip can't be decoded. Names the file.
        UnsupportedError: If soundfile, or PyAV for a file that needs it, is not installed, or a path is a URL.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> import soundfile
        >>> from loadax import from_audio
        >>> path = tempfile.mkdtemp() + "/tone.wav"
        >>> soundfile.write(path, np.sin(np.arange(24000) / 10), 8000)
        >>> clips = from_audio(path, 1.0, overlap=0.5, channels="mono")
        >>> len(clips), clips[1]["audio"].shape, clips[1]["time"]
        (5, (8000,), np.float32(0.5))
        >>> from_audio(path, 2.0, rate=16000, tail="pad")[1]["length"]
        np.int32(16000)
    """
    from loadax.sources.audio.format import FORMAT

    given = seconds, overlap, rate, channels, tail, damaged, memory_bytes
    return _open_in_groups(FORMAT, paths, index, progress, *given)


def from_csv(
    paths: Any,
    columns: Sequence[str] | str | None = None,
    *,
    dtypes: Mapping[str, Any] | None = None,
    nulls: Any = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    delimiter: str | None = None,
    quote: str | None = '"',
) -> Dataset:
    r"""Reads CSV files into memory, in the order of the files. Columns become leaves as in `from_arrow`.

    The first line of each file names the columns. In a column of numbers, an empty entry, `NA`, `NaN` and `null` are
    nulls. In a file of one column, a blank line is an empty entry. Compressed files (gzip, bzip2, xz, Zstandard) and
    UTF-16 are recognised by their first bytes.

    Args:
        paths: File, folder (its files ending in `.csv` or `.tsv`, also with `.gz`, `.bz2`, `.xz` or `.zst`), or glob
            pattern (both sorted by name), URL of one of these, or a list of these, in its order.
        columns: Names of the columns to read. None: all.
        dtypes: Dtypes by column: numbers, bools, or `str`. Others are inferred from the first rows of each file.
        nulls: Value in place of nulls, see `from_arrow`. None: a null is an error.
        classes: Names of categories by column, see `from_arrow`; other texts stay texts.
        delimiter: Character between entries. None: a tab in `.tsv` files, else a comma; an error if other ones fit.
        quote: Character around entries that contain delimiters or line breaks. None: quotes are part of the entries,
            as in many TSV files.

    Raises:
        ArgumentError: If an argument can't be used.
        SourceError: If a file is missing or empty, a line is damaged or has an entry of another type, columns differ
            from those of the first file, or a column has nulls. Names the file and the row.
        UnsupportedError: If pyarrow is not installed.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from loadax import from_csv
        >>> path = Path(tempfile.mkdtemp()) / "flowers.csv"
        >>> _ = path.write_text("length,species\n1.5,setosa\n4.0,virginica\n")
        >>> from_csv(path)[1]
        {'length': np.float64(4.0), 'species': 'virginica'}
    """
    from loadax.sources.open_files import open_files
    from loadax.sources.tables.text.format import CSV

    return Dataset(
        open_files(CSV, paths, columns, dtypes, nulls, classes, delimiter, quote)
    )


def from_jsonl(
    paths: Any,
    columns: Sequence[str] | str | None = None,
    *,
    dtypes: Mapping[str, Any] | None = None,
    nulls: Any = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    index: Any = None,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
    progress: bool | None = None,
) -> Dataset:
    r"""Opens files of JSON lines: row i is the object in line i that is not blank, in the order of the files.

    Columns become leaves as in `from_arrow`; texts that look like times stay texts. Opening finds the beginnings of all
    lines; rows are parsed when they are read, many in one call. Data that fits in memory is read faster as a table:
    `from_arrow(pyarrow.json.read_json(path))`.

    Args:
        paths: File, folder (its files ending in `.jsonl` or `.ndjson`, also with `.gz`, `.bz2`, `.xz` or `.zst`), or
            glob pattern (both sorted by name), URL of one of these, or a list of these, in its order.
        columns: Names of the columns to read. None: all of the first 1,024 rows, and of 1,024 evenly spaced ones.
        dtypes: Dtypes of numbers or bools by column; of a list, that of its entries. Others are inferred from the same
            rows.
        nulls: Value in place of nulls and missing entries, see `from_arrow`. None: they are an error.
        classes: Names of categories by column, see `from_arrow`; other texts stay texts.
        index: Local folder of the index of lines and types, written on the first open and checked on all others:
            another size, place, time of change or ETag of a file makes it again. None: no index is kept.
        cache: Local folder that caches bytes of remote files across runs, and the content of compressed files, which
            are decompressed once. Processes may share it.
        cache_bytes: Size limit of the cache of remote bytes. Once it is full, it keeps what it has for the next
            epoch; see the guide "Object storage".
        progress: Whether to show progress bars of decompression and indexing. None: if stderr is a terminal.

    Raises:
        ArgumentError: If an argument can't be used, a file is compressed and `cache` is None, or remote files have no
            index in a run of several processes.
        SourceError: If a file is missing, or has no lines; on reading, if a line is not JSON, has a value of another
            type, or has nulls. Names the file and the line.
        UnsupportedError: If pyarrow is not installed.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from loadax import from_jsonl
        >>> path = Path(tempfile.mkdtemp()) / "corpus.jsonl"
        >>> _ = path.write_text('{"tokens": [1, 2, 3]}\n{"tokens": [4]}\n')
        >>> from_jsonl(path, dtypes={"tokens": "uint16"}).pack(4)[0]["tokens"]
        array([1, 2, 3, 4], dtype=uint16)
    """
    from loadax.sources.format import RecordOptions
    from loadax.sources.open_files import open_files
    from loadax.sources.tables.text.format import JSONL

    options = RecordOptions(index, cache, cache_bytes, progress)
    return Dataset(
        open_files(
            JSONL, paths, options, columns, dtypes, nulls, classes, index=index
        )
    )


def from_grain(
    data: Any,
    *,
    index: str | os.PathLike[str] | None = None,
    key: str | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Opens a `grain.MapDataset` with Grain's own epochs: row r of epoch e is its element `r + e * len`.

    Grain's shuffles and random maps give what they give in Grain. After `.repeat()` without an end, an epoch has the
    rows before it, and `num_epochs=` of the `Dataloader` repeats it. If a filter of Grain drops rows, every row is
    checked once, now, and a list of the kept ones stays in memory, as with `Dataset.filter`.

    Args:
        data: `grain.MapDataset`, or a data source of Grain: an object with `__len__` and `__getitem__`. If it has
            `__getitems__`, that is called with many rows.
        index: Local folder that keeps the list of kept rows for later runs, see `Dataset.filter`. A run of several
            processes needs an existing one: make it by the same call in one process.
        key: Identifier of the data and its functions in the index, which it needs; change it when they change.
        progress: Whether to show a progress bar. None: if stderr is a terminal.

    Raises:
        ArgumentError: If it can only be iterated over, makes batches, has no known epoch, or drops other rows in every
            epoch. Says what to write.

    Examples:
        >>> import grain
        >>> from loadax import from_grain
        >>> data = from_grain(grain.MapDataset.range(6).filter(lambda x: x % 2 == 0).map(lambda x: {"x": x}).repeat())
        >>> len(data), data[1]
        (3, {'x': np.int64(2)})
    """
    from loadax.row_index.build import scan_options
    from loadax.row_index.verbs import filter_rows
    from loadax.sources.libraries.grain_map import (
        is_grain,
        is_there,
        open_grain,
        refuse_grain,
    )

    presence = None
    if is_grain(data):
        source, presence = open_grain(data)
        dataset = Dataset(source)
    else:
        refuse_grain(data)
        dataset = from_source(data)
    if presence is None:
        refuse_given(
            "the rows that a filter of Grain keeps, and the data has no filter",
            index=index,
            key=key,
        )
        return dataset
    if index is not None and key is None:
        raise ArgumentError(
            f"index={index!r} needs key=, a text that you change with the data and "
            "its functions"
        )
    options = scan_options(index, None, None, progress)
    if key is not None:
        text("key", key, "a str that you change with the data and its functions")
    remedy = (
        "check what the .filter of the Grain dataset returns for one element before "
        "it: fn(base[0])"
    )
    present = Dataset(presence, dataset.order).reader
    return Dataset(
        dataset.source,
        filter_rows(dataset.order, present, is_there, key, options, remedy),
    )


def from_huggingface(
    data: Any, columns: Sequence[str] | str | None = None, *, lanes: int | None = None
) -> Dataset:
    """Opens a Hugging Face dataset, map-style or streamed. Reads its columns through Arrow, with its indices mapping.

    Examples are dicts of the columns, whatever the dataset's format. Numbers and lists of a fixed length are arrays of
    their own dtypes. Lists of any length are arrays for `pack`, or for a map. Class labels are ints, and
    `dataset.source.classes` has their names. Texts and images are what Hugging Face returns for one row, for a map.

    A `datasets.IterableDataset` is read as a stream, see `from_stream`: in several lanes, each of which reads some of
    its shards one after another. Where a verb counts or mixes rows of the whole stream, such as `take`, `skip` and
    `interleave_datasets`, it is one lane, so that its rows are those of `for row in data`. Where Hugging Face can't
    tell where it is, as behind `shuffle(buffer_size=…)`, a resumed run reads and skips the epoch's rows before its
    step.

    Args:
        data: `datasets.Dataset`, or `datasets.IterableDataset`.
        columns: Names of the columns to read. None: all, or those of `with_format(columns=…)`.
        lanes: Number of lanes of a stream, at most that of its shards. It is part of the order, so never change it
            during a run. Best a divisor of the batch size, and a multiple of the number of processes. None: the
            shards, or 8 to 16 of more than 16 of them, such that lanes have equally many.

    Raises:
        ArgumentError: If a column does not exist, or the data are several splits, have a transform of their own, or
            batches as rows. Says what to write.
        SourceError: If columns of numbers have nulls. Names them, says how many, and what to write; of a stream, when
            such a row is read.

    Examples:
        >>> import datasets
        >>> from loadax import from_huggingface
        >>> data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
        >>> from_huggingface(data)[1]
        {'label': np.int64(1), 'text': 'b'}
        >>> from_huggingface(data.select([1, 0]), columns=["label"])[0]
        {'label': np.int64(1)}
        >>> from_huggingface(data.to_iterable_dataset(num_shards=2), lanes=2)
        Dataset(a stream of 2 lanes from a Hugging Face IterableDataset)
    """
    from loadax.sources.libraries.unsupported import refuse_known
    from loadax.sources.library import comes_from

    if comes_from(data, "datasets", "IterableDataset"):
        from loadax.sources.tables.huggingface.iterable_datasets import (
            open_huggingface_stream,
        )

        return _stream(open_huggingface_stream(data, columns, lanes))
    from loadax.sources.tables.huggingface.open import open_huggingface

    refuse_given("a stream, and the data is a map-style dataset", lanes=lanes)
    # the opener knows how names of Hugging Face datasets are loaded
    if not isinstance(data, str | os.PathLike):
        refuse_known(data)
    return Dataset(open_huggingface(data, columns))


def from_images(
    folder: str | os.PathLike[str],
    size: tuple[int, int] | int | None = None,
    *,
    fit: Literal["crop", "stretch", "pad"] = "crop",
    quality: Literal["high", "fast"] = "high",
    damaged: Literal["error", "accept"] = "error",
    crop: Any = None,
    index: Any = None,
) -> Dataset:
    """Opens a folder of JPEG, PNG, WebP and BMP images, which are decoded when their rows are read.

    Examples are `{"image": uint8[height, width, 3], "label": int32[]}`: RGB, with the EXIF orientation applied.
    Grayscale is repeated over the three channels, and the alpha channel is dropped. Every folder in `folder` is a class
    with all images in it and its subfolders. Labels number the classes by name, and `dataset.source.classes` has the
    names. Images directly in `folder` are one class, 0, whose name is "". Hidden files and files with other extensions
    are ignored.

    Args:
        folder: Local folder, or URL of a folder in a bucket, whose images are read as many at once as a batch has.
        size: (height, width) that images are resized to, or one int for squares. None: original sizes, which a map must
            make equal.
        fit: How to handle another aspect ratio: "crop" crops the centre, "stretch" distorts, "pad" adds black borders.
            Like `PIL.ImageOps.fit`, `PIL.Image.resize` and `PIL.ImageOps.pad`, bilinear.
        quality: "high": PSNR of at least 40 dB against Pillow. "fast": approximate JPEG decoding, and resizing without
            antialiasing.
        damaged: "error": a truncated or damaged JPEG is an error. "accept": it is decoded as far as possible. Damage in
            other formats is always an error, if their decoder detects it.
        crop: The part of each upright image that is decoded and resized: (top, left, height, width) in pixels; a
            number in (0, 1], the share of both sides that is kept around the centre; or a `RandomCrop`, drawn for each
            row in each epoch, which is stretched to `size`. None: all of it. Large JPEGs are decoded at a half, a
            quarter or an eighth of their size, by how much larger the part is than `size`.
        index: Local folder that keeps what opening asks of remote storage, written on the first open and compared on
            all others: what is known of a file of another size, time of change or ETag is asked again. None: nothing
            is kept.

    Raises:
        ArgumentError: If an argument can't be used.
        UnsupportedError: If Pillow, simplejpeg or OpenCV is not installed.
        SourceError: If the folder does not exist, can't be listed or has no images; on reading, if a file can't be
            decoded, or differs in size from the first one while `size` is None. Names it.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from loadax import from_images
        >>> folder = Path(tempfile.mkdtemp())
        >>> for animal in ("cat", "dog"):
        ...     (folder / animal).mkdir()
        ...     Image.new("RGB", (60, 40), "teal").save(folder / animal / "1.png")
        >>> animals = from_images(folder, size=32)
        >>> animals[1]["image"].shape, animals.source.classes[animals[1]["label"]]
        ((32, 32, 3), 'dog')
    """
    from loadax.sources.images.crop import RandomCrop
    from loadax.sources.images.format import FORMAT
    from loadax.sources.open_files import open_files

    images = size, fit, quality, damaged, crop
    dataset = Dataset(open_files(FORMAT, folder, *images, index=index))
    if not isinstance(crop, RandomCrop):
        return dataset
    return dataset.decode_images(
        "image", size, fit=fit, quality=quality, damaged=damaged, crop=crop
    )


def from_lerobot(
    folder: Any,
    *,
    cameras: Sequence[str] | None = None,
    size: tuple[int, int] | int | None = None,
    fit: Literal["crop", "stretch", "pad"] = "crop",
    damaged: Literal["error", "accept"] = "error",
    index: Any = None,
    memory_bytes: int = 256 << 20,
    progress: bool | None = None,
) -> Dataset:
    """Opens a folder of a LeRobot dataset of version 3: Parquet and video files of a robot's episodes.

    A row is a frame: a dict of the dataset's features under their own names, such as `"observation.state"` and
    `"action"`, with `"timestamp"` (seconds since the begin of the episode), `"frame_index"`, `"episode_index"` and
    `"task_index"`. Cameras, videos and pictures in Parquet alike, are decoded into uint8[height, width, 3]. Features of
    text are left out.

    Groups are episodes, which `windows` don't leave; `offsets()` has them. `dataset.source.tasks` are the texts of the
    tasks: `tasks[row["task_index"]]`. `dataset.source.stats` are the statistics of `meta/stats.json`:
    `stats["action"]["mean"]`.

    No video is decoded for cameras that `drop` or `keep` leave out. Where all cameras have the same groups of pictures
    and all frames are rows, these are the chunks of the data, as of `from_video`.

    Args:
        folder: Local path of the folder that has `meta`, `data` and `videos`.
        cameras: Names of the cameras to open; videos of others may be absent. None: all.
        size: (height, width) that frames are resized to, or one int for squares. None: the size of each camera.
        fit: How to handle another aspect ratio, as in `from_images`.
        damaged: As in `from_video`.
        index: Local folder of the indices of the videos, as in `from_video`. None: no index is kept.
        memory_bytes: Memory for decoded groups of pictures in bytes, of each process, for all cameras together.
        progress: Whether to show a progress bar while videos are indexed. None: if stderr is a terminal.

    Raises:
        ArgumentError: If an argument can't be used.
        SourceError: If the folder is not a LeRobot dataset, or of an earlier version, or a file is missing or damaged,
            or has other rows or frames than the table of episodes says. Names the file.
        UnsupportedError: If pyarrow, or PyAV for cameras, or OpenCV for `size`, is not installed.

    Examples:
        Two episodes of three and two frames, without cameras:

        >>> import json, tempfile
        >>> from pathlib import Path
        >>> import pyarrow as pa
        >>> from pyarrow import parquet
        >>> from loadax import from_lerobot
        >>> folder = Path(tempfile.mkdtemp())
        >>> def write(name, **columns):
        ...     (folder / name).parent.mkdir(parents=True, exist_ok=True)
        ...     parquet.write_table(pa.table(columns), folder / name)
        >>> files = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        >>> features = {"action": {"dtype": "float32", "shape": [2]}}
        >>> info = {"codebase_version": "v3.0", "features": features, "data_path": "data/" + files}
        >>> write("data/chunk-000/file-000.parquet", action=[[0.0, n] for n in range(5)])
        >>> write("meta/tasks.parquet", task=["fold the towel"], task_index=[0])
        >>> place = {"data/chunk_index": [0, 0], "data/file_index": [0, 0]}
        >>> rows = {"dataset_from_index": [0, 3], "dataset_to_index": [3, 5]}
        >>> write("meta/episodes/chunk-000/file-000.parquet", **rows, **place)
        >>> _ = (folder / "meta/info.json").write_text(json.dumps(info))
        >>> frames = from_lerobot(folder)
        >>> len(frames), frames.offsets(), frames[4]["action"]
        (5, array([0, 3, 5]), array([0., 4.], dtype=float32))
    """
    from loadax.sources.lerobot.format import FORMAT

    data = _open_in_groups(
        FORMAT, folder, index, progress, cameras, size, fit, damaged, memory_bytes
    )
    source: Any = data.source
    for name in source.pictures:
        data = data.decode_images(name, size, fit=fit, damaged=damaged)
    return data


def from_npy(
    path: Any, *, index: Any = None, cache: Any = None, cache_bytes: int = 16 << 30
) -> Dataset:
    """Opens `.npy` files, or a pytree of them, without loading them.

    Local files are memory-mapped. From remote files only the bytes of requested rows are read. A folder or a pattern
    stands for the rows of its files, sorted by name, one file after another: `from_npy("parts/*.npy")`.

    Args:
        path: Path, folder, glob pattern or URL (`s3://`, `gs://`, `http(s)://`, `file://`), or a pytree of these.
        index: Local folder that keeps what opening asks of remote storage, written on the first open and compared on
            all others: what is known of a file of another size, time of change or ETag is asked again. None: nothing
            is kept.
        cache: Local folder that caches bytes of remote files across runs. Processes may share it.
        cache_bytes: Size limit of the cache in bytes. Once it is full, it keeps what it has for the next
            epoch; see the guide "Object storage".

    Raises:
        SourceError: If a file is missing, truncated, or not a numeric array, or the files of a folder or pattern have
            rows of different dtypes or shapes. Names it.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from loadax import from_npy
        >>> folder = tempfile.mkdtemp()
        >>> for number in range(3):
        ...     np.save(f"{folder}/{number}.npy", np.full((2, 4), number))
        >>> from_npy(folder).read(range(6))[:, 0]
        array([0, 0, 1, 1, 2, 2])
    """
    from loadax.sources.npy.format import FORMAT
    from loadax.sources.open_files import open_files

    return Dataset(open_files(FORMAT, path, cache, cache_bytes, index=index))


def from_objects(paths: Any) -> Dataset:
    """Opens files of any kind, one a row: `{"path": str, "bytes": bytes}`, for a map to decode.

    Each file is read whole, remote ones by one request. The map makes arrays of it: in batches there are no strings.

    Args:
        paths: File, folder (its files), glob pattern (both sorted by name) or URL, or a list of these, in its order.

    Raises:
        ArgumentError: If there are no paths.
        SourceError: If a folder or pattern has no files; on reading, if a file is missing. Names it.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from loadax import from_objects
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a", "b"):
        ...     written = (folder / f"{name}.raw").write_bytes(name.encode() * 3)
        >>> def decode(row):
        ...     return np.frombuffer(row["bytes"], np.uint8)
        >>> from_objects(folder).map(decode)[1]
        array([98, 98, 98], dtype=uint8)
    """
    from loadax.sources.objects.format import FORMAT
    from loadax.sources.open_files import open_files

    return Dataset(open_files(FORMAT, paths))


def from_tokens(
    path: Any,
    seq_len: int,
    *,
    dtype: Any = None,
    stride: int | None = None,
    targets: bool = False,
    segment_ids: bool = False,
    index: Any = None,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
) -> Dataset:
    """Opens a stream of tokens as windows: row i is the `seq_len + 1` tokens from token `i * stride` on.

    Examples are `{"tokens": dtype[seq_len + 1]}`: the first `seq_len` tokens are a model's inputs, the last `seq_len`
    its targets. All files form one stream, so windows may cross files. An incomplete window at the end is dropped.
    Local files are memory-mapped. From remote files only the bytes of requested rows are read.

    Args:
        path: Flat `.bin` file, also with the header of llm.c or lit-gpt, one-dimensional `.npy` file, or Megatron's or
            fairseq's `.bin` and `.idx` pair (name either one); a folder of these or a glob pattern, sorted by name; a
            URL (`s3://`, `gs://`, `http(s)://`, `file://`) of one of these; or a list, in its order.
        seq_len: Number of target tokens in a row.
        dtype: Dtype of the tokens in a flat file. Other formats state it. With it, `.npy` files without a header are
            flat files.
        stride: Tokens between the starts of consecutive windows. None: `seq_len`, so windows overlap by one token, and
            each token but the first is a target once.
        targets: Whether examples are `{"inputs": dtype[seq_len], "targets": dtype[seq_len]}` instead, shifted by one
            token.
        segment_ids: Whether to add `"segment_ids"`: int32, the number of each token's document within the window, from
            1, with the shape of `tokens` or `inputs`. Needs Megatron's `.idx` files, which have the document
            boundaries.
        index: Local folder that keeps what opening asks of remote storage, written on the first open and compared on
            all others: what is known of a file of another size, time of change or ETag is asked again. None: nothing
            is kept.
        cache: Local folder that caches bytes of remote files across runs. Processes may share it.
        cache_bytes: Size limit of the cache in bytes. Once it is full, it keeps what it has for the next
            epoch; see the guide "Object storage".

    Raises:
        ArgumentError: If an argument can't be used, or `dtype` is missing.
        SourceError: If a file is missing, truncated or of another format, or dtypes differ. Names the file.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from loadax import from_tokens
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.arange(100, dtype=np.uint16).tofile(f"{folder}/corpus.bin")
        ...     data = from_tokens(f"{folder}/corpus.bin", seq_len=8, dtype="uint16")
        ...     len(data), data[1]["tokens"].tolist()
        (12, [8, 9, 10, 11, 12, 13, 14, 15, 16])
    """
    from loadax.sources.open_files import open_files
    from loadax.sources.tokens.format import FORMAT

    return Dataset(
        open_files(
            FORMAT,
            path,
            seq_len,
            dtype,
            stride,
            targets,
            segment_ids,
            cache,
            cache_bytes,
            index=index,
        )
    )


def from_documents(
    data: Any,
    offsets: Any = None,
    *,
    dtype: Any = None,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
) -> Dataset:
    """Opens concatenated documents of any length, for `Dataset.pack` to make rows of.

    Their lengths are known without reading them. Reading a packed row only reads its own entries.

    Args:
        data: Megatron's `.bin` and `.idx` pair (name either one), or a folder, glob pattern, URL or list of such pairs,
            as in `from_tokens`. With `offsets`: a flat array, in memory or memory-mapped; the path or URL of a flat
            `.bin` or one-dimensional `.npy` file; or a dict of these with equal lengths (then documents are dicts).
        offsets: First entry of each document, and then the total length: one int more than there are documents, or the
            path of a `.npy` file of them.
        dtype: Dtype of the tokens in a `.bin` file without an `.idx` file.
        cache: Local folder that caches bytes of remote files across runs. Processes may share it.
        cache_bytes: Size limit of the cache in bytes. Once it is full, it keeps what it has for the next
            epoch; see the guide "Object storage".

    Raises:
        ArgumentError: If an argument can't be used.
        SourceError: If a file is missing, truncated or of another format, or the offsets don't fit.

    Examples:
        >>> import numpy as np
        >>> from loadax import from_documents
        >>> documents = from_documents(np.arange(10, 20), offsets=[0, 3, 3, 7, 10])
        >>> len(documents), documents[2].tolist()
        (4, [13, 14, 15, 16])
        >>> documents.pack(5)[1]["segment_ids"].tolist()
        [1, 1, 2, 2, 2]
    """
    from loadax.sources.tokens.token_documents import open_documents

    return Dataset(open_documents(data, offsets, dtype, cache, cache_bytes))


def from_tfrecord(
    paths: Any,
    *,
    index: Any = None,
    features: Mapping[str, Any] | None = None,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
    progress: bool | None = None,
) -> Dataset:
    """Opens the records of TFRecord files, in the order of the files, without TensorFlow.

    Examples are `bytes`, to be decoded by a map, or dicts of the `features` of `tf.train.Example`s. The checksum of
    each record is checked when it is read. Files must not be compressed. They have no index of their own, so that
    opening them reads the size of every record, and of remote files everything: pass `index` to do so once.

    Args:
        paths: Path or URL of a file, folder (its files with `.tfrecord` in their names), or glob pattern (both sorted
            by name), or a list of these, in its order.
        index: Local folder of the index, written on the first open and checked on all others: another size, place, time
            of change or ETag of a file makes it again. None: no index is kept.
        features: Features to parse, by name. Each is `bytes`; a dtype, for one number; or `(dtype, shape)`, for an
            array. The shape is an int, a tuple, or None for flat arrays of any length, which a map must make equal or
            `pack` packs.
        cache: Local folder for a cache of remote blocks. None: no cache.
        cache_bytes: Maximum size of the cache in bytes.
        progress: Whether to show a progress bar while the files are indexed. None: if stderr is a terminal.

    Raises:
        ArgumentError: If an argument can't be used, or remote files have no index in a run of several processes.
        SourceError: If a file is missing, cut short, damaged, compressed, or has no records; on reading, if a record is
            damaged or has no such feature. Names the file and the byte.
        LeafError: On reading, if a feature is missing, or of another kind or length. Names the row and its file.
        UnsupportedError: If google-crc32c is not installed, or `features` are given and protobuf is not.

    Examples:
        >>> import struct, tempfile
        >>> from loadax import from_tfrecord
        >>> from loadax.sources.shards.crc import masked_crc32c
        >>> path = tempfile.mkdtemp() + "/words.tfrecord"
        >>> with open(path, "wb") as file:
        ...     for word in (b"one", b"two", b"three"):
        ...         size = struct.pack("<Q", len(word))
        ...         for part in (size, word):
        ...             _ = file.write(part + struct.pack("<I", masked_crc32c(part)))
        >>> from_tfrecord(path)[2]
        b'three'
    """
    from loadax.sources.format import RecordOptions
    from loadax.sources.open_files import open_files
    from loadax.sources.shards.format import TFRECORD

    options = RecordOptions(index, cache, cache_bytes, progress)
    return Dataset(open_files(TFRECORD, paths, options, features, index=index))


def from_video(
    paths: Any,
    *,
    frames: int | None = None,
    stride: int | None = None,
    fps: float | None = None,
    size: tuple[int, int] | int | None = None,
    fit: Literal["crop", "stretch", "pad"] = "crop",
    damaged: Literal["error", "accept"] = "error",
    index: Any = None,
    memory_bytes: int = 256 << 20,
    progress: bool | None = None,
) -> Dataset:
    """Opens the frames of video files, or clips of them, which are decoded when their rows are read.

    A frame is `{"frame": int32[], "image": uint8[height, width, 3], "time": float32[], "video": int32[]}`: its number
    in its file, RGB, seconds since the first frame, and the number of the file in `dataset.source.videos`. A clip has
    these of `frames` consecutive rows, along a new first dimension. Neither clips nor `windows` cross from one video to
    the next.

    Groups of pictures, which begin with a keyframe, are decoded whole and are the chunks of the data:
    `shuffle(seed, block="chunks")` and reading in order decode each once an epoch. Opening reads the times of all
    frames, but decodes none: pass `index` to do so once.

    Args:
        paths: Local path of a file, folder (its videos), or glob pattern (both sorted by name), or a list of these, in
            its order.
        frames: Number of frames of a clip. None: each frame is a row.
        stride: Frames from the begin of one clip to the begin of the next. None: `frames`.
        fps: Rows a second: the frames that are on display at these times. Some may be left out, or be several rows.
            None: all frames, each once.
        size: (height, width) that frames are resized to, or one int for squares. None: the size of the first frame,
            which all must have.
        fit: How to handle another aspect ratio, as in `from_images`.
        damaged: "error": a file that is cut short or can't be read is an error now, and a damaged frame when it is
            read, as are those after it that may depend on it. "accept": files have the frames that are there, and
            frames are what the decoder makes of them.
        index: Local folder of the index, written on the first open and checked on all others: another size, place or
            time of change of a file makes it again. None: no index is kept.
        memory_bytes: Memory for decoded groups of pictures in bytes, of each process.
        progress: Whether to show a progress bar while the files are indexed. None: if stderr is a terminal.

    Raises:
        ArgumentError: If an argument can't be used.
        SourceError: If a file is missing, damaged or not a video, or no video has a clip's frames; on reading, if a
            frame can't be decoded, or differs in size from the first one while `size` is None. Names the file.
        UnsupportedError: If PyAV, or OpenCV for `size`, is not installed, or a path is a URL.

    Examples:
        >>> import tempfile
        >>> import av
        >>> import numpy as np
        >>> from loadax import from_video
        >>> path = tempfile.mkdtemp() + "/gray.mp4"
        >>> with av.open(path, "w") as file:
        ...     stream = file.add_stream("mpeg4", rate=10)
        ...     stream.width = stream.height = 32
        ...     for number in range(12):
        ...         frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 20 * number, np.uint8))
        ...         file.mux(stream.encode(frame))
        ...     file.mux(stream.encode())
        >>> len(from_video(path)), from_video(path)[5]["time"]
        (12, np.float32(0.5))
        >>> clips = from_video(path, frames=4, fps=5)
        >>> len(clips), clips[0]["image"].shape, clips[0]["frame"]
        (1, (4, 32, 32, 3), array([0, 2, 4, 6], dtype=int32))
    """
    from loadax.sources.video.format import FORMAT

    rows = _open_in_groups(
        FORMAT, paths, index, progress, fps, size, fit, damaged, memory_bytes
    )
    if frames is None:
        if stride is not None:
            raise ArgumentError(
                f"stride={stride!r} is for clips; pass frames= as well, or every "
                "n-th frame is dataset[::n]"
            )
        return rows
    length = integer("frames", frames, 1)
    if stride is None:
        stride = length
    return rows.windows(length, stride)


def from_webdataset(
    paths: Any,
    *,
    index: Any = None,
    columns: Sequence[str] | str | None = None,
    decode: bool = False,
    size: tuple[int, int] | int | None = None,
    fit: Literal["crop", "stretch", "pad"] = "crop",
    quality: Literal["high", "fast"] = "high",
    damaged: Literal["error", "accept"] = "error",
    cache: Any = None,
    cache_bytes: int = 16 << 30,
    progress: bool | None = None,
) -> Dataset:
    """Opens the examples of WebDataset's tar files, in the order of the files and of their members.

    An example is a dict of consecutive files whose names are equal up to the first dot, by the rest of their names in
    lower case: `00/0001.jpg` and `00/0001.cls` are `{"jpg": …, "cls": …}`. All examples must have the same extensions.
    Values are `bytes`, to be decoded by a map, or with `decode` what `from_images` makes of images, an int32 for `cls`,
    a string for `txt` and an array for `npy`. Tar files must not be compressed. They have no index of their own, so
    that opening them reads the header of every member, and of remote files almost everything: pass `index` to do so
    once.

    Args:
        paths: Path or URL of a file, folder (its `.tar` files), or glob pattern (both sorted by name), or a list of
            these, in its order.
        index: Local folder of the index, written on the first open and checked on all others: another size, place, time
            of change or ETag of a file makes it again. None: no index is kept.
        columns: Extensions to read; others are neither read nor required. `"__key__"` adds the name of the example
            without extension. None: all extensions.
        decode: Whether to decode files by their extensions.
        size: (height, width) that decoded images are resized to, or one int for squares. None: original sizes, which a
            map must make equal.
        fit: How to handle another aspect ratio; see `from_images`.
        quality: "high" or "fast"; see `from_images`.
        damaged: What to do about a truncated or damaged JPEG; see `from_images`.
        cache: Local folder for a cache of remote blocks. None: no cache.
        cache_bytes: Maximum size of the cache in bytes.
        progress: Whether to show a progress bar while the files are indexed. None: if stderr is a terminal.

    Raises:
        ArgumentError: If an argument can't be used, or remote files have no index in a run of several processes.
        SourceError: If a file is missing, cut short, damaged, compressed, has no examples, or one lacks an extension
            that others have; on reading, if a file can't be decoded. Names the file and the byte.
        LeafError: On reading examples of different shapes. Names the row.
        UnsupportedError: If images are decoded, and Pillow, simplejpeg or OpenCV is not installed.

    Examples:
        >>> import io, tarfile, tempfile
        >>> from loadax import from_webdataset
        >>> path = tempfile.mkdtemp() + "/00000.tar"
        >>> with tarfile.open(path, "w") as shard:
        ...     for name, content in {"0.txt": b"meow", "0.cls": b"3", "1.txt": b"woof", "1.cls": b"5"}.items():
        ...         member = tarfile.TarInfo(name)
        ...         member.size = len(content)
        ...         shard.addfile(member, io.BytesIO(content))
        >>> from_webdataset(path)[1]
        {'cls': b'5', 'txt': b'woof'}
        >>> from_webdataset(path, columns="cls", decode=True)[1]
        {'cls': np.int32(5)}
    """
    from loadax.sources.format import RecordOptions
    from loadax.sources.open_files import open_files
    from loadax.sources.shards.format import WEBDATASET

    images = (size, fit, quality, damaged)
    options = RecordOptions(index, cache, cache_bytes, progress)
    return Dataset(
        open_files(WEBDATASET, paths, options, columns, decode, images, index=index)
    )


def from_tensorstore(
    spec: Any, *, missing: Literal["error", "fill"] = "error"
) -> Dataset:
    """Opens arrays through TensorStore: zarr, zarr3, n5 and its other drivers, on any storage that it supports.

    Args:
        spec: TensorStore spec (a dict with the key `driver`), an open store, or a pytree of these with equal first
            dimensions.
        missing: "error": a missing chunk is an error that names it. "fill": it reads as the array's fill value, usually
            zero.

    Raises:
        SourceError: If a store can't be opened, or lengths differ. Names the leaf.
    """
    from loadax.sources.zarr.source import TensorStoreSource

    return Dataset(TensorStoreSource(spec, missing))


def from_zarr(
    path: Any,
    variables: Sequence[str] | str | None = None,
    *,
    missing: Literal["error", "fill"] = "error",
    index: Any = None,
) -> Dataset:
    """Opens a zarr array, or arrays of a zarr group (then examples are dicts), of version 2 or 3.

    Args:
        path: Folder, `.zip` file or OCDBT database, as a local path or a URL (`s3://`, `gs://`, `http(s)://`,
            `file://`).
        variables: Arrays of a group to read. None: all of them.
        missing: "error": a missing chunk is an error that names it. "fill": it reads as the array's fill value, usually
            zero.
        index: Local folder that keeps what opening asks of remote storage, written on the first open and compared on
            all others: what is known of a file of another size, time of change or ETag is asked again. None: nothing
            is kept.

    Raises:
        SourceError: If nothing exists at `path`, a variable is missing (lists those that exist), or loadax did not
            finish writing the store.
    """
    from loadax.sources.open_files import open_files
    from loadax.sources.zarr.format import FORMAT

    return Dataset(open_files(FORMAT, path, variables, missing, index=index))


def from_sparse(
    data: Any,
    matrix: str = "X",
    *,
    obs: Sequence[str] | Mapping[str, Any] = (),
    dense: bool = False,
    nulls: int | None = None,
) -> Dataset:
    """Opens the rows of a sparse matrix, such as cells by genes, without making it dense.

    Examples are dicts of the row's `indices` (int32, its columns) and `values`, of any length, as the matrix has them:
    in any order, and a column more than once, which counts as the sum. `pack_sparse` makes batches of them that the
    devices make dense. `shuffle(seed, block="chunks")` decodes each chunk of a file once an epoch.

    Args:
        data: CSR matrix of `scipy.sparse`, in memory or of memory-mapped arrays. `AnnData`, in memory or backed, or its
            `CSRDataset`. Group of h5py or zarr in AnnData's encoding: that of a `csr_matrix`, or of all of an AnnData.
            Or the path of an `.h5ad` or HDF5 file, of a zarr folder, or of a `.npz` file of `scipy.sparse.save_npz`,
            which is read into memory.
        matrix: Matrix of an AnnData: "X", "layers/counts", "raw/X". A matrix that is dense is read with `dense=True`.
        obs: Columns of the table `obs` of an AnnData that become leaves; categories are their codes, and
            `dataset.source.classes` has their names. Or a dict of arrays with one entry a row.
        dense: Whether an example has `x`, an array of all columns, in place of `indices` and `values`.
        nulls: Code in place of missing categories. None: they are an error.

    Raises:
        ArgumentError: If an argument can't be used, or the matrix is in another form, such as CSC. Says what to write.
        SourceError: If a file or matrix is missing or damaged, or a column of `obs` has nulls. On reading a row with an
            entry out of range: names the row.
        LeafTypeError: If a column of `obs` is neither numeric nor of categories. Names it.
        UnsupportedError: If h5py or zarr is not installed, for files of theirs.

    Examples:
        >>> import numpy as np
        >>> import scipy.sparse
        >>> from loadax import from_sparse
        >>> matrix = scipy.sparse.csr_array(np.array([[0, 5, 0], [0, 0, 0], [7, 0, 1]], np.float32))
        >>> cells = from_sparse(matrix, obs={"label": np.array([3, 1, 2])})
        >>> cells[2]
        {'indices': array([0, 2], dtype=int32), 'values': array([7., 1.], dtype=float32), 'label': np.int64(2)}
        >>> from_sparse(matrix, dense=True).read([0, 1])["x"].tolist()
        [[0.0, 5.0, 0.0], [0.0, 0.0, 0.0]]
    """
    from loadax.sources.sparse.open import open_sparse

    return Dataset(open_sparse(data, matrix, obs, flag("dense", dense), nulls))


def from_parquet(
    paths: Any,
    columns: Sequence[str] | str | None = None,
    *,
    nulls: Any = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    memory_bytes: int = 1 << 30,
    index: Any = None,
    cache: Any = None,
    cache_bytes: int = 16 << 30,
) -> Dataset:
    """Opens Parquet files, in the order of the files. Columns become leaves as in `from_arrow`; others are not read.

    A row group is decoded whole. `shuffle(seed, block="chunks")` decodes each row group once an epoch. A full shuffle
    needs row groups that fit into `memory_bytes`; other data is best written again by `loadax convert`.

    Args:
        paths: File, folder (its files ending in `.parquet` or `.pq`), or glob pattern (both sorted by name), URL
            (`s3://`, `gs://`, `az://`, `http(s)://`, `file://`) of one of these, or a list of these, in its order.
        columns: Names of the columns to read. None: all, which must be the same in all files. The names of folders such
            as `year=2026/` below the given ones are columns too, in place of those of their name in files.
        nulls: Value in place of nulls, see `from_arrow`. None: a null is an error.
        classes: Names of categories by column, see `from_arrow`. None: in the order in which they are found.
        memory_bytes: Memory in bytes for decoded row groups, in each process that reads; the least recently used ones
            are dropped first. A block shuffle keeps those that it has open in any case.
        index: Local folder that keeps what opening asks of remote storage, written on the first open and compared on
            all others: what is known of a file of another size, time of change or ETag is asked again. None: nothing
            is kept.
        cache: Local folder that caches bytes of remote files across runs. Processes may share it.
        cache_bytes: Size limit of the cache in bytes. Once it is full, it keeps what it has for the next
            epoch; see the guide "Object storage".

    Raises:
        ArgumentError: If an argument can't be used.
        SourceError: If a file is missing, damaged, encrypted or not Parquet, its columns differ from those of the first
            file, or a column has nulls (at the latest when their row group is read) or a name that is not in `classes`.
            Names the file, the column and the row.
        LeafTypeError: If a column has a type without an array, such as decimals. Names it, and says what to write.
        UnsupportedError: If pyarrow is not installed.

    Examples:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> from pyarrow import parquet
        >>> from loadax import from_parquet
        >>> path = tempfile.mkdtemp() + "/squares.parquet"
        >>> table = pa.table({"x": range(100), "y": [x**2 for x in range(100)]})
        >>> parquet.write_table(table, path, row_group_size=10)
        >>> data = from_parquet(path)
        >>> len(data), data[7]
        (100, {'x': np.int64(7), 'y': np.int64(49)})
    """
    from loadax.sources.open_files import open_files
    from loadax.sources.tables.parquet.format import FORMAT

    return Dataset(
        open_files(
            FORMAT,
            paths,
            columns,
            nulls,
            classes,
            memory_bytes,
            cache,
            cache_bytes,
            index=index,
        )
    )


def _open_in_groups(
    one: Any, paths: Any, index: Any, progress: bool | None, *arguments: Any
) -> Dataset:
    """Opens files that are indexed, and whose rows windows don't join."""
    from loadax.plan.sequential import Sequential
    from loadax.sources.format import RecordOptions
    from loadax.sources.open_files import open_files

    options = RecordOptions(index=index, progress=progress)
    source = open_files(one, paths, options, *arguments)
    return Dataset(source, Sequential(len(source), groups=source.groups))


def from_source(obj: Any, *, thread_safe: bool | None = None) -> Dataset:
    """Makes a dataset of your own data.

    Threads read several rows at once, except from an object that holds an open file, a connection, a cursor or an
    iterator: it is called by one thread at a time, with a warning from the `Dataloader`.

    Args:
        obj: `Source` (with `read`, `spec` and `__len__`), or any object with `__len__` and `__getitem__`, which is
            called with Python ints. If it has `__getitems__`, that is called with many rows and returns a list of
            examples. Types that `as_dataset` recognises are opened as it does.
        thread_safe: Whether several threads may call it at once. None: unless it holds such a handle, also within other
            objects, closures and globals of its functions, or opens one when rows are read.

    Raises:
        ArgumentError: If it is neither. Says what to write.

    Examples:
        >>> from loadax import from_source
        >>> from_source([{"x": 1.0}, {"x": 2.0}])[1]
        {'x': np.float64(2.0)}
    """
    from loadax.sources.adapt import ObjectSource, UserSource
    from loadax.sources.libraries.unsupported import refuse_mapping

    dataset = _recognise(obj)
    if dataset is None:
        refuse_mapping(obj)
        dataset = _from_objects(obj)
    if optional_flag("thread_safe", thread_safe) is None:
        return dataset
    if not isinstance(dataset.source, ObjectSource | UserSource) or isinstance(
        obj, Dataset
    ):
        raise ArgumentError(
            f"thread_safe={thread_safe}: {type_text(obj)} is read by loadax itself, "
            "on several threads; leave it out"
        )
    return Dataset(dataset.source.when_called(thread_safe), dataset.order)


def from_stream(
    open_lane: Callable[[int, int], Iterable[Any]],
    lanes: int = 128,
    *,
    spec: Any = None,
    batched: bool = False,
) -> Dataset:
    """Reads a stream: rows that can only be iterated over, from a fixed number of lanes.

    Every step takes its rows from the lanes in turn, so batches depend on the lanes alone. A process whose rows of a
    batch are contiguous opens only its own lanes, which are about lanes / processes. Runs resume on another number of
    processes: a lane whose iterator has `get_state` and `set_state`, or `state_dict` and `load_state_dict`, continues
    from its state, and others are read again from their first row. States must be JSON. A state may be some rows before
    the step, so setting it must really go back; the rows between are read and skipped. A queue that gives each row once
    loses rows on a resume: those that were read ahead, and those that are skipped.

    Threads read several lanes at the same time, each one in order, so lanes must not share what only one thread may
    use. With `num_workers=1`, the `Dataloader` reads one lane at a time.

    Rows can be mapped, packed, mixed, and shuffled in a buffer, but not selected or read at a position. A stream ends
    when its lanes end, as `remainder` of the `Dataloader` says; "drop": before the first batch that is not full. With
    `num_epochs=None`, every lane is opened again at its end.

    Args:
        open_lane: Function of a lane, from 0, and the number of lanes. Returns an iterable of the lane's rows, which
            must be the same each time, with new arrays for every row. If it has an argument `epoch`, it gets the number
            of times that the lane was opened before in this run, for another order in each epoch.
        lanes: Number of lanes, such as the number of files. It is part of the order, so never change it during a run.
            Best a divisor of the batch size, and a multiple of the number of processes.
        spec: Pytree of objects with `shape` and `dtype`, for one row. None: every process reads a row of lane 0, which
            the first run that opens this lane continues. Pass it for a live generator, which then loses no row within
            a run.
        batched: Whether lanes yield blocks of rows: trees of arrays with equal first dimensions, of any length, whose
            entries are rows. Faster than cutting blocks in the lane.

    Raises:
        ArgumentError: If an argument can't be used.

    Examples:
        >>> import numpy as np
        >>> from loadax import Dataloader, from_stream
        >>> def open_lane(lane, lanes):
        ...     for row in range(lane, 1000, lanes):
        ...         yield {"x": np.float32(row)}
        >>> loader = Dataloader(from_stream(open_lane, lanes=8), batch_size=16)
        >>> [int(x) for x in next(iter(loader))["x"][:4]]
        [0, 8, 4, 12]
    """
    from loadax.sources.libraries.streams import open_stream

    return _stream(open_stream(open_lane, lanes, spec, batched))


def _stream(source: Any) -> Dataset:
    from loadax.plan.stream import StreamOrder

    return Dataset(source, StreamOrder(source.lanes))


def as_dataset(data: Any) -> Dataset:
    """Makes a dataset of any data that loadax recognises. `Dataloader`, `mix` and `concat` apply it to their arguments.

    | given | becomes |
    |---|---|
    | `Dataset` | itself |
    | `Source`, or an object with `__len__` and `__getitem__`: a list, a dataset of torch | `from_source` |
    | map-style Hugging Face dataset | `from_huggingface` |
    | arrays, or a dict, tuple, dataclass or other mapping of them | `from_arrays` |
    | data frame of pandas or polars, `Table` or `RecordBatch` of Arrow, relation of DuckDB | `from_arrow` |
    | open array of TensorStore, zarr, h5py or xarray | its rows, read on request |
    | `xarray.Dataset`, `zarr.Group` or `h5py.Group` | dict of its arrays, which must have equal first dimensions |
    | CSR matrix of SciPy, `AnnData`, or a group that is one | `from_sparse`, dense if the matrix is |
    | `grain.MapDataset` | `from_grain` |
    | `IterableDataset` of Hugging Face or torch, `grain.IterDataset`, generator function | a stream: `from_stream` |

    Anything else raises an error that says how to open it: paths, iterators, dicts of several datasets, sparse
    matrices of other forms.

    Args:
        data: Any of these.

    Raises:
        ArgumentError: If it has no random access to rows. Says what to write.
        SourceError: If a column has nulls, or the arrays differ in length. Names it, and says what to write.
        LeafTypeError: If a column is not numeric. Names it, and says what to write.

    Examples:
        >>> import numpy as np
        >>> from loadax import as_dataset
        >>> as_dataset({"x": np.arange(3), "y": np.arange(3) ** 2})[2]
        {'x': np.int64(2), 'y': np.int64(4)}
        >>> as_dataset([{"x": 1}, {"x": 2}])[1]
        {'x': np.int64(2)}
    """
    dataset = _recognise(data)
    if dataset is not None:
        return dataset
    if _is_tree(data):
        return from_arrays(data)
    return _from_objects(data)


def _recognise(data: Any) -> Dataset | None:
    """The dataset of an object that has a known class or is a `Source`, else None."""
    if isinstance(data, Dataset):
        return data
    # which this module can't import
    if type(data).__module__ == "loadax.loader.dataloader":
        raise ArgumentError(
            "data is already a Dataloader; pass its dataset: data.dataset"
        )
    if type(data).__module__ in ("loadax.loader.iterator", "loadax.loader.epoch"):
        raise ArgumentError(
            f"data is {type_text(data)} of a Dataloader; pass the loader's dataset: "
            "loader.dataset"
        )
    from loadax.sources.adapt import as_source, is_source
    from loadax.sources.libraries.grain_map import is_grain
    from loadax.sources.libraries.sparse_matrices import is_sparse
    from loadax.sources.libraries.streams import recognise_stream
    from loadax.sources.libraries.supported import open_supported

    if is_grain(data):
        return from_grain(data)
    if is_sparse(data):
        from loadax.sources.sparse.open import open_sparse

        return Dataset(open_sparse(data, "X", (), None, None))
    stream = recognise_stream(data)
    if stream is not None:
        return _stream(stream)
    known = open_supported(data)
    if known is None and not is_source(data):
        return None
    return Dataset(as_source(data if known is None else known))


def _is_tree(data: Any) -> bool:
    """Whether it is a pytree that may contain arrays.

    Lists are not, since they contain rows. Nor are objects with rows that JAX does not know as pytrees.
    """
    if data is None or isinstance(data, list):
        return False
    has_rows = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return (
        isinstance(data, Mapping | tuple)
        or jax_knows(data)
        or (not has_rows and flatten(data)[1].kind is not None)
    )


def _from_objects(data: Any) -> Dataset:
    from loadax.sources.adapt import ObjectSource
    from loadax.sources.libraries.unsupported import refuse_unreadable

    refuse_unreadable(data)
    return Dataset(ObjectSource(data))


def write_zarr(
    dataset: Any,
    path: str | os.PathLike[str],
    *,
    ragged: bool | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    compression: str | None = "zstd",
    resume: bool = False,
    overwrite: bool = False,
    shard: tuple[int, int] | None = None,
    progress: bool | None = None,
    workers: int | None = None,
    executor: Engine | None = None,
) -> None:
    """Writes epoch 0 of a dataset to a zarr3 store that `from_zarr` reads, with a checksum for every chunk.

    Names of categories and units of times (`dataset.source.classes`, `units`) become attributes of their arrays, unless
    a map may have changed the numbers.

    If examples are single arrays, the store is one array at `path`. Otherwise it is a group with one array per leaf,
    named by its keys joined by dots. Memory use is a few shards. The store can't be opened until its last part is
    written.

    A shuffled dataset of data in chunks is read in the order of its source, so that each chunk is decoded once, or once
    in each process of `shard`. Its rows, or those of the share, then stay in memory, uncompressed, until they are
    written. If they take more than half of the memory of the machine, chunks are decoded about once for each row, and a
    warning says how to avoid that: write rows in their own order and shuffle them when they are read, or write several
    shares one after the other.

    Rows may be ragged: arrays, or pytrees of arrays, whose first dimension differs between rows, equally or not in the
    leaves of a row; lists of numbers count as arrays. A ragged leaf becomes a flat array of the entries of all rows, in
    blocks, and `loadax.lengths` has the lengths. `from_zarr` then opens documents, as `from_documents` does.

    Args:
        dataset: `Dataset`, or anything that `Dataloader` accepts as one.
        path: Folder that does not exist yet, or a URL.
        ragged: Whether all leaves that have a dimension are ragged. None: those whose lengths differ in a sample of up
            to 32 rows, if rows are read or mapped one by one.
        chunk_rows: Rows of a chunk, which are decoded together. None: at least 4 KiB, which suits any shuffle. Of a
            ragged leaf, entries; None: about 16 KiB.
        shard_rows: Rows of a file, a multiple of `chunk_rows`. None: a 64th of the rows, at most about 128 MiB over all
            arrays.
        compression: "zstd", "blosc" (better for floats), or None.
        resume: Whether to continue an unfinished store. Finished parts are kept; with `shard` or a URL, they are read
            back first, and written again if they are damaged.
        overwrite: Whether to replace an existing local store that loadax wrote, once the new one is complete; until
            then both take up space. Deletes only that store: other files in its folder raise an error that names them.
        shard: `(i, n)`: this process is the i-th of n that write in parallel. The last one to end finishes the store.
        progress: Whether to show a progress bar. None: if stderr is a terminal.
        workers: Number of threads that read rows. None: 4.
        executor: What reads and writes parts instead of threads of this process, as in `Dataset.filter`. `path` must be
            in a folder that its workers share. None: threads.

    Raises:
        ArgumentError: If a value can't be used, or `path` already exists.
        LeafError: If a row has another form than the others. Names the row and the leaf.
        LeafTypeError: If a leaf is not numeric. Names it.
        SourceError: If the store can't be written.
        StreamError: If the data is a stream.

    Examples:
        >>> import numpy as np, tempfile
        >>> from loadax import from_zarr, write_zarr
        >>> folder = tempfile.mkdtemp() + "/squares.zarr"
        >>> write_zarr({"x": np.arange(5), "y": np.arange(5) ** 2}, folder)
        >>> from_zarr(folder)[3]
        {'x': np.int64(3), 'y': np.int64(9)}
    """
    options = {
        name: given
        for name, given in dict(locals()).items()
        if name not in ("dataset", "path")
    }
    from loadax.sources.path_overlap import check_elsewhere
    from loadax.writing.write import write_zarr as write
    from loadax.writing.written_rows import Written

    path = checked_path(
        "path", path, "the path or URL of a folder that does not exist yet"
    )
    data = as_dataset(dataset)
    if data.is_stream:
        raise StreamError("write_zarr()")
    check_elsewhere(data.reader.source, path)
    write(Written(data.reader, data.order), path, **options)
