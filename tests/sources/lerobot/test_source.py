"""Rows of LeRobot folders are those that were written, and pixels those of a decoder by hand."""

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import loadax
from loadax.errors import ArgumentError, SourceError
from loadax.sources.video.decoder import Decoder
from loadax.testing import check_source
from tests.sources.lerobot.robots import CAMERAS, TASKS, Robot, write_robot
from tests.sources.video.videos import write_video


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    """Six episodes, in three Parquet files, and in 3, 2 and 2 videos of the cameras."""
    return write_robot(tmp_path_factory.mktemp("robot"))


@pytest.fixture
def folder(robot: Robot, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(robot.folder, tmp_path / "robot")
    return tmp_path / "robot"


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def change_info(folder: Path, **values: Any) -> None:
    path = folder / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_episodes(folder: Path, **columns: Any) -> None:
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    table = parquet.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, [values])
    parquet.write_table(table, path)


def test_rows_equal_what_was_written_in_any_order(robot: Robot) -> None:
    data = loadax.from_lerobot(robot.folder)
    assert repr(data) == f"Dataset(38 rows of 6 episodes of {robot.folder})"
    order = np.random.default_rng(0).permutation(len(data))
    for rows in (np.arange(len(data)), order, np.repeat(order[:3], 2)):
        read = data.read(rows)
        assert read.keys() == robot.rows.keys()
        for name, values in robot.rows.items():
            assert np.array_equal(read[name], values[rows]), name
            assert read[name].dtype == values.dtype, name


def test_files_in_several_chunk_folders_and_tables_of_episodes(tmp_path: Path) -> None:
    """As LeRobot writes large datasets: a chunk's folder has a limited number of files, and a file a limited size."""
    robot = write_robot(tmp_path, cameras=CAMERAS[:2], per_file=1, more=1, per_chunk=2, per_table=2)
    for pattern in ("meta/episodes/chunk-*/*.parquet", "data/chunk-*/*.parquet", f"videos/{CAMERAS[1]}/chunk-*/*.mp4"):
        folders = {path.parent.name for path in tmp_path.glob(pattern)}
        assert len(folders) > 1, pattern
    data = loadax.from_lerobot(tmp_path)
    assert data.offsets().tolist() == [0, *np.cumsum(robot.lengths)]
    order = np.random.default_rng(0).permutation(len(data))
    read = data.read(order)
    assert read.keys() == robot.rows.keys()
    for name, values in read.items():
        assert np.array_equal(values, robot.rows[name][order]), name


@pytest.mark.processes
def test_contract_of_a_source(robot: Robot) -> None:
    check_source(loadax.from_lerobot(robot.folder).source)


def test_episodes_are_groups_that_windows_stay_within(robot: Robot) -> None:
    data = loadax.from_lerobot(robot.folder)
    offsets = np.append(0, np.cumsum(robot.lengths))
    assert np.array_equal(data.offsets(), offsets)
    assert np.array_equal(data.offsets("episode_index"), offsets)
    assert len(data.windows(4)) == sum(max(0, length - 3) for length in robot.lengths)
    chunks = data.keep("action", "episode_index").windows(4, within="episode_index", pad="edge")
    assert len(chunks) == len(data)
    read = chunks.read(range(len(data)))
    for row in range(len(data)):
        end = offsets[robot.rows["episode_index"][row] + 1]
        inside = np.arange(row, row + 4)
        assert np.array_equal(read["action"][row], robot.rows["action"][np.minimum(inside, end - 1)])
        assert np.array_equal(read["window_mask"][row], inside < end)


def test_splits_keep_episodes_whole(robot: Robot) -> None:
    parts = loadax.from_lerobot(robot.folder, cameras=()).split([4, 2], by="episode_index")
    numbers = [set(part.read(range(len(part)))["episode_index"].tolist()) for part in parts]
    assert list(map(len, numbers)) == [4, 2]
    assert not numbers[0] & numbers[1]


def test_tasks_and_statistics_are_those_of_the_folder(robot: Robot) -> None:
    source: Any = loadax.from_lerobot(robot.folder).source
    assert source.tasks == list(TASKS)
    assert source.classes == {"task_index": list(TASKS)}
    own = loadax.from_lerobot(robot.folder).statistics("action")["action"]
    np.testing.assert_allclose(source.stats["action"]["mean"], own.mean, 1e-5)
    np.testing.assert_allclose(source.stats["action"]["std"], own.std, 1e-5)


def test_nothing_is_decoded_for_cameras_that_are_dropped(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    data = loadax.from_lerobot(robot.folder)
    decoded = list[str]()
    decode = Decoder.decode

    def counted(self: Decoder, group: int, frames: Any) -> Any:
        decoded.append(self.locations[0].split("/")[-3])
        return decode(self, group, frames)

    monkeypatch.setattr(Decoder, "decode", counted)
    state = data.drop(*CAMERAS).read([0, 30])
    assert np.array_equal(state["action"], robot.rows["action"][[0, 30]])
    data.offsets("episode_index")
    data.statistics("action")
    assert not decoded
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    loader = loadax.Dataloader(data.keep(CAMERAS[1], "action"), 8, num_epochs=1, mesh=mesh)
    images = np.concatenate([batch[CAMERAS[1]] for batch in loader])
    assert np.array_equal(images, robot.rows[CAMERAS[1]][: len(images)])
    assert {*decoded} == {CAMERAS[1]}


def test_groups_of_pictures_are_decoded_once_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robot = write_robot(tmp_path, more=0)
    data = loadax.from_lerobot(robot.folder)
    video: Any = loadax.from_video(robot.folder / "videos" / CAMERAS[0] / "chunk-000").source
    source: Any = data.source
    assert np.array_equal(source.chunks, video.chunks)
    decoded = list[tuple[str, int]]()
    decode = Decoder.decode

    def counted(self: Decoder, group: int, frames: Any) -> Any:
        decoded.append((self.locations[0].split("/")[-3], group))
        return decode(self, group, frames)

    monkeypatch.setattr(Decoder, "decode", counted)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    loader = loadax.Dataloader(data.shuffle(seed=0, block="chunks"), 2, num_epochs=1, mesh=mesh)
    rows = np.concatenate([batch["index"] for batch in loader])
    assert sorted(rows) == list(range(len(data)))
    assert sorted(decoded) == [(camera, group) for camera in CAMERAS for group in range(len(video.chunks))]


def test_cameras_are_resized_and_chosen(robot: Robot) -> None:
    data = loadax.from_lerobot(robot.folder, cameras=[CAMERAS[2]], size=16)
    video = loadax.from_video(robot.folder / "videos" / CAMERAS[2] / "chunk-000", size=16)
    assert [name for name in data[0] if name in CAMERAS] == [CAMERAS[2]]
    assert np.array_equal(data.read([3, 37])[CAMERAS[2]], video.read([3, 37])["image"])


def test_index_of_videos_is_kept(robot: Robot, tmp_path: Path) -> None:
    data = loadax.from_lerobot(robot.folder, index=tmp_path)
    again = loadax.from_lerobot(robot.folder, index=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*CAMERAS}
    assert np.array_equal(data[20][CAMERAS[0]], again[20][CAMERAS[0]])


def test_row_is_located_in_all_of_its_files(robot: Robot) -> None:
    found = loadax.from_lerobot(robot.folder).source.locate(22)
    names = [str(Path(location.file).relative_to(robot.folder)) for location in found]
    assert names[0] == "data/chunk-000/file-001.parquet"
    assert names[1:] == [
        f"videos/{camera}/chunk-000/file-{number:03}.mp4" for camera, number in zip(CAMERAS, (1, 1, 0), strict=True)
    ]
    frames = ["frame 9, at 0.900 s", "frame 1, at 0.100 s", "frame 22, at 2.200 s"]
    assert [location.part for location in found[1:]] == frames


def test_pickled_source_reads_the_same(robot: Robot) -> None:
    data = loadax.from_lerobot(robot.folder)
    again = pickle.loads(pickle.dumps(data))
    assert np.array_equal(again.read([9])[CAMERAS[0]], robot.rows[CAMERAS[0]][[9]])


def test_lists_of_any_length_have_the_shapes_of_the_features(robot: Robot, folder: Path) -> None:
    """pandas, which LeRobot's converter uses, writes such lists."""
    for path in (folder / "data/chunk-000").iterdir():
        table = parquet.read_table(path)
        for name in ("action", "observation.state"):
            lists = pa.array(table[name].to_pylist(), pa.list_(pa.float64()))
            table = table.set_column(table.column_names.index(name), name, lists)
        parquet.write_table(table, path)
    data = loadax.from_lerobot(folder)
    read = data.read(np.arange(len(data))[::-1])
    for name, values in robot.rows.items():
        assert np.array_equal(read[name], values[::-1]), name
        assert read[name].dtype == values.dtype, name
    check_source(data.source, loader=False)
    assert np.array_equal(data.offsets("episode_index"), data.offsets())
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["action"]["shape"] = [5]
    change_info(folder, features=info["features"])
    with pytest.raises(SourceError, match=r"column 'action' has values of shape \[2\].*info.json says \[5\]"):
        loadax.from_lerobot(folder)[0]


def test_cameras_that_are_pictures_in_parquet_are_decoded(robot: Robot, folder: Path) -> None:
    name = "observation.image"
    pictures = robot.rows[CAMERAS[0]]
    offset = 0
    for path in sorted((folder / "data/chunk-000").iterdir()):
        table = parquet.read_table(path)
        rows = pictures[offset : offset + len(table)]
        offset += len(table)
        encoded = [{"bytes": png(row), "path": None} for row in rows]
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        parquet.write_table(table.append_column(name, pa.array(encoded, kind)), path)
    info = json.loads((folder / "meta/info.json").read_text())
    change_info(folder, features={**info["features"], name: {"dtype": "image", "shape": [32, 48, 3]}})
    data = loadax.from_lerobot(folder)
    read = data.read([30, 2, 9])
    assert np.array_equal(read[name], pictures[[30, 2, 9]])
    assert np.array_equal(read[CAMERAS[1]], robot.rows[CAMERAS[1]][[30, 2, 9]])
    small = loadax.from_lerobot(folder, cameras=[name], size=16)
    assert small[4][name].shape == (16, 16, 3)
    assert not {*small[4]} & {*CAMERAS}
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    batch = loadax.Dataloader(data.windows(2), 5, mesh=mesh)[1]
    first = int(batch["index"][0, 0])
    assert np.array_equal(batch[name][0], pictures[first : first + 2])
    assert len(data.windows(4)) == sum(max(0, length - 3) for length in robot.lengths)


def test_videos_in_another_order_than_the_rows(robot: Robot, folder: Path) -> None:
    """As where episodes were merged: the table alone says where they are."""
    name = CAMERAS[0]
    files = f"videos/{name}/chunk-000"
    (folder / files / "file-000.mp4").rename(folder / files / "file-009.mp4")
    change_episodes(folder, **{f"videos/{name}/file_index": pa.array([9, 9, 1, 1, 2, 2])})
    data = loadax.from_lerobot(folder)
    assert np.array_equal(data.read(range(38))[name], robot.rows[name])
    starts = np.append(0, np.cumsum(robot.lengths))[:-1] / 10
    write_video(folder / files / "file-004.mp4", 60, fps=10, keys=2)
    frames = loadax.from_video(folder / files / "file-004.mp4").read(range(60))["image"]
    # the last episode first, and seconds between them that no episode has
    begins = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 0.0])
    change_episodes(
        folder,
        **{
            f"videos/{name}/file_index": pa.array([4] * 6),
            f"videos/{name}/from_timestamp": pa.array(begins),
            f"videos/{name}/to_timestamp": pa.array(begins + robot.lengths / 10),
        },
    )
    moved = loadax.from_lerobot(folder)
    expected = np.arange(38) + np.repeat(10 * (begins - starts), robot.lengths).round().astype(int)
    assert moved.source.chunks is None
    assert np.array_equal(moved.read(range(38))[name], frames[expected])


class TestFoldersThatAreRefused:
    def test_another_folder(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match=r"is not a LeRobot dataset: it has no meta/info.json"):
            loadax.from_lerobot(tmp_path)

    def test_an_earlier_version(self, folder: Path) -> None:
        change_info(folder, codebase_version="v2.1")
        with pytest.raises(SourceError, match=r"of LeRobot's version v2\.1.* convert it: python -m lerobot"):
            loadax.from_lerobot(folder)

    def test_info_that_is_cut_short(self, folder: Path) -> None:
        (folder / "meta/info.json").write_text('{"codebase')
        with pytest.raises(SourceError, match=r"info\.json can't be read"):
            loadax.from_lerobot(folder)
        (folder / "meta/info.json").write_text("[]")
        with pytest.raises(SourceError, match=r"info\.json is not an object"):
            loadax.from_lerobot(folder)

    @pytest.mark.parametrize(
        "features",
        [None, {"x": 1}, {"x": {"dtype": "float32"}}, {"x": {"dtype": "f", "shape": 3}}]
        + [{"x": {"dtype": kind, "shape": [1]}} for kind in ("tensor", "U3", None, 3)],
    )
    def test_info_that_lacks_features(self, features: Any, folder: Path) -> None:
        change_info(folder, features=features)
        with pytest.raises(SourceError, match=r"info\.json lacks features, or the dtype or shape of one"):
            loadax.from_lerobot(folder)

    @pytest.mark.parametrize("path", [None, "{chunk}/{file_index}", "{", "{0}"])
    def test_pattern_of_files_that_is_none(self, path: Any, folder: Path) -> None:
        change_info(folder, data_path=path)
        with pytest.raises(SourceError):
            loadax.from_lerobot(folder)

    @pytest.mark.parametrize("stats", [{"action": 3}, {"action": {"mean": [1, [2]]}}])
    def test_statistics_that_are_none(self, stats: Any, folder: Path) -> None:
        (folder / "meta/stats.json").write_text(json.dumps(stats))
        with pytest.raises(SourceError, match=r"stats\.json has no numbers by feature and name.* or remove it"):
            loadax.from_lerobot(folder)
        (folder / "meta/stats.json").unlink()
        source: Any = loadax.from_lerobot(folder).source
        assert source.stats == {}

    def test_tasks_without_texts_or_numbers(self, folder: Path) -> None:
        path = folder / "meta/tasks.parquet"
        parquet.write_table(pa.table({"task_index": [0, 1]}), path)
        with pytest.raises(SourceError, match=r"tasks\.parquet lacks task_index, or a column of texts"):
            loadax.from_lerobot(folder)
        parquet.write_table(pa.table({"task_index": [0, 7], "task": ["a", "b"]}), path)
        with pytest.raises(SourceError, match=r"numbers tasks 0, 7, not from 0 on"):
            loadax.from_lerobot(folder)

    def test_tables_without_columns_that_are_needed(self, folder: Path) -> None:
        for path in (folder / "data/chunk-000").iterdir():
            parquet.write_table(parquet.read_table(path).drop_columns("action"), path)
        with pytest.raises(SourceError, match=r"file-000\.parquet.*there is no column 'action'.* download the folder"):
            loadax.from_lerobot(folder)
        path = folder / "meta/episodes/chunk-000/file-000.parquet"
        parquet.write_table(parquet.read_table(path).drop_columns("data/file_index"), path)
        with pytest.raises(SourceError, match=r"meta/episodes/.*there is no column 'data/file_index'"):
            loadax.from_lerobot(folder)

    def test_folder_without_episodes(self, folder: Path) -> None:
        path = folder / "meta/episodes/chunk-000/file-000.parquet"
        parquet.write_table(parquet.read_table(path)[:0], path)
        with pytest.raises(SourceError, match=r"meta/episodes has no episodes"):
            loadax.from_lerobot(folder)

    def test_arguments(self, folder: Path) -> None:
        untyped: Any = loadax.from_lerobot
        for wrong in ({"cameras": "left"}, {"memory_bytes": -1}, {"size": 0}, {"fit": "x"}, {"index": 3}):
            with pytest.raises(ArgumentError, match=next(iter(wrong))):
                untyped(folder, **wrong)
        with pytest.raises(ArgumentError, match="folder"):
            untyped(3)

    def test_camera_that_is_not_there(self, folder: Path) -> None:
        with pytest.raises(ArgumentError, match=r"cameras=\['top'\].* has no camera 'top'; pass some of"):
            loadax.from_lerobot(folder, cameras=["top"])

    def test_episodes_that_overlap(self, folder: Path) -> None:
        change_episodes(folder, dataset_to_index=pa.array([9, 13, 21, 24, 32, 38]))
        with pytest.raises(SourceError, match=r"episode 1 has the rows from 8 to 13, which don't follow"):
            loadax.from_lerobot(folder)

    def test_parquet_file_with_fewer_rows(self, folder: Path) -> None:
        path = folder / "data/chunk-000/file-001.parquet"
        parquet.write_table(parquet.read_table(path)[:-1], path)
        with pytest.raises(SourceError, match=r"rows \[13 10 14\]|\[13 10 14\] rows"):
            loadax.from_lerobot(folder)

    def test_video_that_ends_early(self, folder: Path) -> None:
        path = folder / "videos" / CAMERAS[0] / "chunk-000/file-001.mp4"
        write_video(path, 9, fps=10, keys=2)
        with pytest.raises(
            SourceError, match=r"file-001\.mp4: episode 3 is from 0\.800 to 1\.100 s, 3 frames, .* has 9 frames"
        ) as error:
            loadax.from_lerobot(folder)
        # as the message says
        cameras = eval(str(error.value).rsplit("cameras=", 1)[1])
        assert cameras == [*CAMERAS[1:]]
        assert len(loadax.from_lerobot(folder, cameras=cameras)) == 38

    def test_video_of_another_rate(self, folder: Path) -> None:
        path = folder / "videos" / CAMERAS[0] / "chunk-000/file-001.mp4"
        write_video(path, 11, fps=15, keys=2)
        with pytest.raises(SourceError, match=r"file-001\.mp4: episode 2 is from 0\.000 to 0\.800 s, 8 frames"):
            loadax.from_lerobot(folder)

    def test_video_that_is_missing(self, folder: Path) -> None:
        (folder / "videos" / CAMERAS[1] / "chunk-000/file-000.mp4").unlink()
        with pytest.raises(SourceError, match=r"file-000\.mp4"):
            loadax.from_lerobot(folder)
        assert len(loadax.from_lerobot(folder, cameras=[CAMERAS[0]])) == 38
