"""Description: the files below `meta/` of a LeRobot dataset of version 3, which tell where its episodes are.

Source: LeRobot, `docs/source/lerobot-dataset-v3.mdx`, and what its recorder writes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import some
from loadax.errors import ArgumentError, SourceError
from loadax.protocols import Integers
from loadax.sources.base import BaseSource
from loadax.sources.open_files import open_files
from loadax.sources.tables.parquet.format import FORMAT as PARQUET

_CONVERTER = "python -m lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=NAME"
_PLACE = ("chunk_index", "file_index")
_TIMES = ("from_timestamp", "to_timestamp")
_MEMORY_BYTES = 1 << 30  # decoded row groups
_CACHE_BYTES = 16 << 30  # of a cache, which local files don't have


class Description(NamedTuple):
    """What the folder says of itself.

    Args:
        folder: Path of the folder.
        info: Contents of `info.json`.
        tasks: Text of each task, by its number.
        stats: Contents of `stats.json`: statistics by feature and name, such as "mean"; empty without such a file.
        episodes: Columns of the table of episodes that tell where they are.
        starts: First row of each episode, int64[episodes], ascending from 0.
        num_rows: Number of rows.
    """

    folder: Path
    info: dict[str, Any]
    tasks: list[str]
    stats: dict[str, dict[str, NDArray[Any]]]
    episodes: dict[str, NDArray[Any]]
    starts: Integers
    num_rows: int

    @property
    def columns(self) -> list[str]:
        """Features that are columns of the Parquet files, and neither text nor pictures."""
        return [
            name
            for name, kind in self._kinds.items()
            if kind not in ("video", "image", "string")
        ]

    @property
    def cameras(self) -> list[str]:
        """Features that are videos."""
        return [name for name, kind in self._kinds.items() if kind == "video"]

    @property
    def pictures(self) -> list[str]:
        """Features that are pictures in Parquet files."""
        return [name for name, kind in self._kinds.items() if kind == "image"]

    @property
    def _kinds(self) -> dict[str, str]:
        return {name: one["dtype"] for name, one in self.info["features"].items()}

    def files(
        self, path: str, prefix: str, **values: str
    ) -> tuple[list[str], Integers]:
        """Files that episodes are in.

        Args:
            path: Name of the pattern in `info.json`.
            prefix: Prefix of the columns of the table of episodes.
            values: Further values of the pattern.

        Returns:
            Paths of the files, in the order of the episodes, and the number of each episode's file, int64[episodes].
        """
        chunks = self.episodes[f"{prefix}/chunk_index"]
        numbers = self.episodes[f"{prefix}/file_index"]
        paths = dict[str, int]()
        files = []
        for chunk, number in zip(chunks.tolist(), numbers.tolist(), strict=True):
            try:
                name = str(self.info[path]).format(
                    chunk_index=chunk, file_index=number, **values
                )
            except (LookupError, ValueError) as error:
                raise SourceError(
                    f"{self.folder}/meta/info.json: {path} is not a pattern with "
                    f"chunk_index and file_index: {error}; download it again"
                ) from error
            files.append(paths.setdefault(str(self.folder / name), len(paths)))
        return list(paths), np.array(files, np.int64)


def describe_folder(folder: Path) -> Description:
    """Reads the files below `meta/`.

    Raises:
        SourceError: When it is not a folder of LeRobot's version 3, or its episodes don't follow each other.
    """
    if not (folder / "meta/info.json").is_file():
        raise SourceError(
            f"{folder} is not a LeRobot dataset: it has no meta/info.json; pass the "
            "folder that has meta/, data/ and videos/"
        )
    info = _json(folder / "meta/info.json")
    version = info.get("codebase_version")
    if not str(version).startswith("v3."):
        raise SourceError(
            f"{folder} is of LeRobot's version {version}, and from_lerobot opens v3.0; "
            f"convert it: {_CONVERTER}"
        )
    features = info.get("features")
    if not isinstance(features, dict) or not all(map(_is_feature, features.values())):
        raise SourceError(
            f"{folder}/meta/info.json lacks features, or the dtype or shape of one; "
            "download it again"
        )
    found = Description(
        folder,
        info,
        _tasks(folder / "meta/tasks.parquet"),
        _stats(folder / "meta/stats.json"),
        {},
        np.empty(0, np.int64),
        0,
    )
    episodes = _episodes(found)
    starts = episodes["dataset_from_index"].astype(np.int64)
    ends = episodes["dataset_to_index"]
    if not len(ends):
        raise SourceError(
            f"{folder}/meta/episodes has no episodes; record some, or open another folder"
        )
    wrong = np.flatnonzero(starts != np.append(0, ends[:-1]))
    if not len(wrong):
        wrong = np.flatnonzero(ends <= starts)
    if len(wrong):
        at = int(wrong[0])
        raise SourceError(
            f"{folder}/meta/episodes: episode {at} has the rows from {starts[at]} to "
            f"{ends[at]}, which don't follow those of the episode before; write the "
            "dataset again with LeRobot"
        )
    return found._replace(episodes=episodes, starts=starts, num_rows=int(ends[-1]))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path} can't be read: {error}; download it again"
        ) from error
    if not isinstance(found, dict):
        raise SourceError(f"{path} is not an object of JSON; download it again")
    return found


def _is_feature(feature: Any) -> bool:
    if not isinstance(feature, dict) or not isinstance(feature.get("shape"), list):
        return False
    kind = str(feature.get("dtype"))
    try:
        return kind in ("video", "image", "string") or np.dtype(kind).kind in "iufb"
    except TypeError:
        return False


def _stats(path: Path) -> dict[str, dict[str, NDArray[Any]]]:
    """Statistics by feature and name; none without a file."""
    if not path.is_file():
        return {}
    try:
        return {
            feature: {name: np.array(value) for name, value in values.items()}
            for feature, values in _json(path).items()
        }
    except (AttributeError, ValueError) as error:  # no dict, or a ragged list
        raise SourceError(
            f"{path} has no numbers by feature and name: {error}; download it again, "
            "or remove it"
        ) from error


def _tasks(path: Path) -> list[str]:
    """Texts by number: pandas wrote them as an index, with or without a name."""
    table = open_table(str(path), None)
    columns = table.read(np.arange(len(table)))
    numbers = columns.pop("task_index", None)
    texts = next(iter(columns.values()), None)
    if numbers is None or texts is None:
        raise SourceError(
            f"{path} lacks task_index, or a column of texts; download it again"
        )
    order = np.argsort(numbers)
    if not np.array_equal(numbers[order], np.arange(len(numbers))):
        raise SourceError(
            f"{path} numbers tasks {some(numbers.tolist())}, not from 0 on; write the "
            "dataset again with LeRobot"
        )
    listed: list[str] = texts[order].tolist()
    return listed


def open_table(
    paths: str | list[str], columns: Sequence[str] | None, nulls: Any = None
) -> BaseSource:
    """Columns of local Parquet files; see `loadax.from_parquet`.

    Raises:
        SourceError: When they can't be read, or lack a column.
    """
    try:
        source: BaseSource = open_files(
            PARQUET, paths, columns, nulls, None, _MEMORY_BYTES, None, _CACHE_BYTES
        )
    except ArgumentError as error:  # of columns that the user did not name
        raise SourceError(
            f"{paths if isinstance(paths, str) else some(paths, 1)}: {error}; download "
            "the folder again"
        ) from error
    return source


def _episodes(found: Description) -> dict[str, NDArray[Any]]:
    """Columns of the table of episodes, without the statistics of each."""
    columns = ["dataset_from_index", "dataset_to_index"]
    columns += [f"data/{part}" for part in _PLACE]
    for camera in found.cameras:
        columns += [f"videos/{camera}/{part}" for part in (*_PLACE, *_TIMES)]
    table = open_table(f"{found.folder}/meta/episodes/*/*.parquet", columns)
    read: dict[str, NDArray[Any]] = table.read(np.arange(len(table)))
    return read
