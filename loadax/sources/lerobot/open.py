"""Opens a folder of a LeRobot dataset."""

from pathlib import Path
from typing import Any

import numpy as np

from loadax.core.arguments import entries, integer, path as checked_path
from loadax.core.formatting import count_text
from loadax.core.spec import flatten_spec
from loadax.core.tree import flatten
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import ArraySpec, Integers
from loadax.sources.format import RecordOptions
from loadax.sources.lerobot.description import (
    Description,
    describe_folder,
    open_table,
)
from loadax.sources.lerobot.shaped_table import ShapedTable
from loadax.sources.lerobot.source import Leaf, LeafSource, LeRobotSource
from loadax.sources.open_files import open_files
from loadax.sources.video.format import FORMAT as VIDEO
from loadax.sources.video.source import VideoSource


def open_lerobot(
    folder: Any,
    options: RecordOptions,
    cameras: Any,
    size: Any,
    fit: Any,
    damaged: Any,
    memory_bytes: Any,
) -> LeRobotSource:
    """Opens a folder; see `loadax.from_lerobot`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        SourceError: When the folder is not one of LeRobot, or a file is missing, damaged or shorter than the table of
            episodes says; names it.
        UnsupportedError: When a package that reads its files is not installed.
    """
    found = describe_folder(Path(checked_path("folder", folder)))
    known = [*found.cameras, *found.pictures]
    if cameras is None:
        wanted = known
    else:
        wanted = entries("cameras", cameras, "names of cameras")
    absent = [name for name in wanted if name not in known]
    if absent:
        raise ArgumentError(
            f"cameras={cameras!r}: {found.folder} has no camera {absent[0]!r}; pass "
            f"some of {known}",
            argument="cameras",
        )
    memory_bytes = integer("memory_bytes", memory_bytes, 0)
    parts = [_table(found)]
    tree: dict[str, Any] = {}
    for leaf, name in enumerate(flatten_spec(parts[0].source.spec)[1].names):
        tree[name] = (0, leaf)
    for number, name in enumerate(wanted, 1):
        if name in found.pictures:
            parts.append(_pictures(found, name))
            tree[name] = (number, 0)
            continue
        its_options = options
        if options.index is not None:
            kept = Path(checked_path("index", options.index)) / name
            its_options = options._replace(index=kept)
        files, numbers = found.files("video_path", f"videos/{name}", video_key=name)
        frames: VideoSource = open_files(
            VIDEO,
            files,
            its_options,
            None,
            size,
            fit,
            damaged,
            memory_bytes // len(wanted),
        )
        parts.append(LeafSource(name, frames, _firsts(found, name, frames, numbers)))
        tree[name] = (number, flatten_spec(frames.spec)[1].names.index("image"))
    leaves, structure = flatten(tree, is_leaf=lambda node: isinstance(node, tuple))
    # which the source does not need, and would take to other processes
    found = found._replace(episodes={})
    return LeRobotSource(parts, structure, [Leaf(*leaf) for leaf in leaves], found)


def _table(found: Description) -> LeafSource:
    """The columns of the Parquet files.

    Raises:
        SourceError: When files have other rows than the table of episodes says.
    """
    files, numbers = found.files("data_path", "data")
    source = open_table(files, found.columns)
    begins = found.starts[np.flatnonzero(np.diff(numbers, prepend=-1))]
    groups = source.groups
    assert groups is not None
    if len(source) != found.num_rows or not np.array_equal(groups, begins):
        raise SourceError(
            f"{found.folder}/data has files with {np.diff(groups, append=len(source))} "
            f"rows, and meta/episodes says {np.diff(begins, append=found.num_rows)}; "
            "download the folder again"
        )
    features = found.info["features"]
    spec = {}
    for name in found.columns:
        shape = tuple(features[name]["shape"])
        if shape == (1,):  # which LeRobot stores as a number
            shape = ()
        spec[name] = ArraySpec(shape, np.dtype(features[name]["dtype"]))
    if source.spec != spec:
        source = ShapedTable(source, spec)
    return LeafSource("", source, found.starts)


def _pictures(found: Description, name: str) -> LeafSource:
    """Encoded pictures of the Parquet files, as bytes; their paths, which may be null, are not read."""
    files, _ = found.files("data_path", "data")
    table = open_table(files, [name], nulls={f"{name}.path": ""})
    structure: Any = table.structure
    encoded = table.keep_leaves({"bytes": structure.names.index(f"{name}.bytes")})
    assert encoded is not None
    return LeafSource(name, encoded, found.starts)


def _firsts(
    found: Description, name: str, frames: VideoSource, files: Integers
) -> Integers:
    """The frame of each episode's first row.

    Raises:
        SourceError: When a video ends before its episodes do, or has no frame at the time of one.
    """
    begins = found.episodes[f"videos/{name}/from_timestamp"]
    ends = found.episodes[f"videos/{name}/to_timestamp"]
    video, seconds = frames.timeline()
    lengths = np.diff(found.starts, append=found.num_rows)
    firsts = np.empty(len(found.starts), np.int64)
    for file in range(len(frames.videos)):
        first, stop = np.searchsorted(video, [file, file + 1])
        episodes = np.flatnonzero(files == file)
        firsts[episodes] = first + _nearest(seconds[first:stop], begins[episodes])
        lasts = firsts[episodes] + lengths[episodes] - 1
        frame = (ends - begins)[episodes] / lengths[episodes]
        at = begins[episodes] + (lengths[episodes] - 1) * frame
        wrong = lasts >= stop
        lasts[wrong] = firsts[episodes][wrong]
        for times, rows in ((begins[episodes], firsts[episodes]), (at, lasts)):
            wrong |= abs(seconds[rows] - times) > frame / 2
        if wrong.any():
            episode = int(episodes[wrong][0])
            raise SourceError(
                f"{frames.videos[file]}: episode {episode} is from {begins[episode]:.3f} "
                f"to {ends[episode]:.3f} s, "
                f"{count_text(lengths[episode], 'frame')}, and the video has "
                f"{count_text(stop - first, 'frame')}, the last at "
                f"{seconds[stop - 1]:.3f} s; download the folder again, or leave "
                "the camera out: cameras="
                f"{[other for other in found.cameras if other != name]}"
            )
    return firsts


def _nearest(times: Any, wanted: Any) -> Integers:
    """Index of the nearest of ascending times to each of some."""
    after = np.clip(np.searchsorted(times, wanted), 1, max(1, len(times) - 1))
    before = after - 1
    after = np.minimum(after, len(times) - 1)
    return np.where(wanted - times[before] <= times[after] - wanted, before, after)
