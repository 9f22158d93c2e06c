"""Folders of LeRobot datasets of known frames."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from tests.sources.video.videos import by_hand, write_video

CAMERAS = ("observation.images.left", "observation.images.right", "observation.images.wrist")
TASKS = ("fold the towel", "open the drawer")
FPS = 10


class Robot(NamedTuple):
    """A folder and all of its rows.

    Args:
        folder: Path of the folder.
        rows: Leaves of all rows, pixels by a decoder by hand.
        lengths: Frames of each episode.
    """

    folder: Path
    rows: dict[str, NDArray[Any]]
    lengths: NDArray[np.int64]


def write_robot(
    folder: Path,
    lengths: Sequence[int] = (8, 5, 8, 3, 8, 6),
    cameras: Sequence[str] = CAMERAS,
    *,
    per_file: int = 2,
    more: int = 1,
    per_chunk: int = 1000,
    per_table: int = 1000,
) -> Robot:
    """Writes episodes: `per_file` in each Parquet file, and `more` in each video of each further camera.

    Args:
        folder: Folder to write.
        lengths: Frames of each episode.
        cameras: Names of the cameras.
        per_file: Episodes of a file.
        more: Further episodes of a video for each camera before it.
        per_chunk: Files of a chunk's folder.
        per_table: Episodes of a file of their table.
    """
    count, total = len(lengths), sum(lengths)
    ends = np.cumsum(lengths)
    random = np.random.default_rng(0)
    episode = np.repeat(np.arange(count), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths])
    rows: dict[str, NDArray[Any]] = {
        "action": random.normal(size=(total, 2)).astype(np.float32),
        "observation.state": random.normal(size=(total, 3)).astype(np.float32),
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(total),
        "task_index": episode % 2,
    }
    features = {name: {"dtype": str(values.dtype), "shape": values.shape[1:] or (1,)} for name, values in rows.items()}
    episodes: dict[str, Any] = {
        "episode_index": np.arange(count),
        "tasks": [[TASKS[number % 2]] for number in range(count)],
        "length": np.array(lengths),
        "data/chunk_index": np.arange(count) // per_file // per_chunk,
        "data/file_index": np.arange(count) // per_file % per_chunk,
        "dataset_from_index": ends - lengths,
        "dataset_to_index": ends,
        "stats/action/mean": [[0.0, 0.0]] * count,
    }
    for number in range(-(-count // per_file)):
        inside = (episode // per_file) == number
        columns = {
            name: pa.FixedSizeListArray.from_arrays(values[inside].reshape(-1), values.shape[1])
            if values.ndim > 1
            else pa.array(values[inside])
            for name, values in rows.items()
        }
        _write_table(columns, folder / f"data/{_file(number, per_chunk)}.parquet")
    for camera, name in enumerate(cameras):
        files = np.arange(count) // (per_file + more * camera)
        features[name] = {"dtype": "video", "shape": (32, 48, 3)}
        pixels, begins = [], np.zeros(count)
        for number in range(files[-1] + 1):
            path = folder / f"videos/{name}/{_file(number, per_chunk)}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            inside = np.array(lengths)[files == number]
            write_video(path, int(inside.sum()), fps=FPS, keys=2, seed=10 * camera + number)
            pixels.append(by_hand(path)[0])
            begins[files == number] = (np.cumsum(inside) - inside) / FPS
        rows[name] = np.concatenate(pixels)
        episodes |= {
            f"videos/{name}/chunk_index": files // per_chunk,
            f"videos/{name}/file_index": files % per_chunk,
            f"videos/{name}/from_timestamp": begins,
            f"videos/{name}/to_timestamp": begins + np.array(lengths) / FPS,
        }
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "total_episodes": count,
        "total_frames": total,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    action = rows["action"]
    stats = {"action": {"mean": action.mean(0).tolist(), "std": action.std(0).tolist(), "count": [total]}}
    for number in range(-(-count // per_table)):
        part = slice(number * per_table, (number + 1) * per_table)
        columns = {name: column[part] for name, column in episodes.items()}
        _write_table(columns, folder / f"meta/episodes/{_file(number, per_chunk)}.parquet")
    # as pandas writes an index without a name
    tasks = {"task_index": np.arange(2), "__index_level_0__": list(TASKS)}
    _write_table(tasks, folder / "meta/tasks.parquet")
    (folder / "meta/info.json").write_text(json.dumps(info))
    (folder / "meta/stats.json").write_text(json.dumps(stats))
    return Robot(folder, rows, np.array(lengths))


def _file(number: int, per_chunk: int) -> str:
    """Folder and name of a file, as LeRobot numbers them."""
    return f"chunk-{number // per_chunk:03}/file-{number % per_chunk:03}"


def _write_table(columns: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)
