"""Frames and clips are those of a decoder by hand, in any order, by any group of pictures."""

import json
import pickle
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import loadax
from loadax.errors import ArgumentError, SourceError
from loadax.kept.index_folder import Entry
from loadax.sources.video.decoder import Decoder
from loadax.sources.video.frame_table import RECORDS
from loadax.testing import check_source
from tests.sources.video.videos import B_FRAMES, OPEN_GROUPS, by_hand, write_video

UNTYPED: Any = loadax


def loader(data: Any, batch_size: int, **options: Any) -> loadax.Dataloader:
    """A loader of one epoch on one device."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    return loadax.Dataloader(data, batch_size, num_epochs=1, mesh=mesh, **options)


UNEVEN = [0, 1, 2, 5, 6, 7, 8, 12, 13, 14, 20, 21, 22, 23, 24, 30, 31, 32, 33, 40]
KINDS: dict[str, dict[str, Any]] = {
    "plain.mp4": {},
    "b frames.mp4": {"codec": "libx264", "options": B_FRAMES},
    "open groups.mkv": {"codec": "libx264", "options": OPEN_GROUPS},
    "one keyframe.mov": {"keys": 100},
    "only keyframes.mkv": {"keys": 1},
    "plain.avi": {},
    "uneven.mkv": {"times": UNEVEN},
    "without an index.mkv": {"codec": "libx264", "options": B_FRAMES, "file_options": {"live": "1"}},
    "fragments.mp4": {
        "codec": "libx264",
        "options": B_FRAMES,
        "file_options": {"movflags": "frag_keyframe+empty_moov"},
    },
    "short groups.mp4": {
        "codec": "libx264",
        "options": {"x264-params": "bframes=2:b-adapt=0:scenecut=0:keyint=3:min-keyint=3:open-gop=1"},
    },
    "vp8.webm": {"codec": "libvpx"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos of 20, 5 and 13 frames."""
    path = tmp_path_factory.mktemp("videos")
    for name, count in (("a.mp4", 20), ("b.mkv", 5), ("c.mp4", 13)):
        write_video(path / name, count, seed=count)
    return path


def pixels_of(folder: Path) -> Any:
    return np.concatenate([by_hand(path)[0] for path in sorted(folder.iterdir())])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The group of each call that decodes one, in this process."""
    groups = list[int]()
    decode = Decoder.decode

    def counted(self: Decoder, group: int, frames: Any) -> Any:
        groups.append(group)
        return decode(self, group, frames)

    monkeypatch.setattr(Decoder, "decode", counted)
    return groups


@pytest.mark.parametrize("name", KINDS)
def test_frames_equal_those_of_a_decoder_by_hand(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_video(path, **KINDS[name])
    pixels, seconds = by_hand(path)
    data = loadax.from_video(path)
    order = np.random.default_rng(0).permutation(len(pixels))
    for rows in (np.arange(len(pixels)), order, np.repeat(order[:3], 2)):
        read = data.read(rows)
        assert np.array_equal(read["image"], pixels[rows])
        assert np.allclose(read["time"], (seconds - seconds[0])[rows], atol=1e-5)
        assert read["frame"].tolist() == rows.tolist()
    for row in order.tolist():  # without the cache: from the keyframe to the frame
        uncached = pickle.loads(pickle.dumps(data.source))
        assert np.array_equal(uncached.read(np.array([row]))["image"][0], pixels[row])


def test_contract_of_sources_holds(folder: Path) -> None:
    check_source(loadax.from_video(folder).source)


def test_rows_of_several_videos(folder: Path) -> None:
    data: Any = loadax.from_video(folder)
    read = data.read(range(38))
    assert np.array_equal(read["image"], pixels_of(folder))
    assert read["video"].tolist() == [0] * 20 + [1] * 5 + [2] * 13
    assert read["frame"].tolist() == [*range(20), *range(5), *range(13)]
    assert data.source.groups.tolist() == [0, 20, 25]
    assert [Path(path).name for path in data.source.videos] == ["a.mp4", "b.mkv", "c.mp4"]
    assert data.source.locate(21)[0].part == "frame 1, at 0.033 s"
    assert (
        len(loadax.from_video(f"{folder}/*.mp4")) == len(loadax.from_video([folder / "a.mp4", folder / "c.mp4"])) == 33
    )


def test_clips_stay_in_their_video(folder: Path) -> None:
    pixels = pixels_of(folder)
    begins = [0, 3, 6, 9, 12, 15, 20, 25, 28, 31]
    data = loadax.from_video(folder, frames=5, stride=3)
    assert data.read(range(len(data)))["video"].tolist() == [[0] * 5] * 6 + [[1] * 5] + [[2] * 5] * 3
    for row in np.random.default_rng(0).permutation(len(begins)).tolist():
        assert np.array_equal(data[row]["image"], pixels[begins[row] : begins[row] + 5])
    assert len(loadax.from_video(folder, frames=5)) == 4 + 1 + 2
    assert len(loadax.from_video(folder).windows(20)) == 1


@pytest.mark.parametrize(
    ("name", "fps"), [("plain.mp4", 30), ("plain.avi", 12), ("uneven.mkv", 10), ("uneven.mkv", 45)]
)
def test_rows_at_a_fixed_rate_are_the_frames_on_display(name: str, fps: int, tmp_path: Path) -> None:
    path = tmp_path / name
    write_video(path, **KINDS[name])
    times = KINDS[name].get("times", range(20))
    length = Fraction(times[-1] + 1, 30)
    grid = [Fraction(number, fps) for number in range(100) if Fraction(number, fps) < length]
    expected = [max(at for at, time in enumerate(times) if Fraction(time, 30) <= row) for row in grid]
    data: Any = loadax.from_video(path, fps=fps)
    assert data.read(range(len(data)))["frame"].tolist() == expected
    assert np.array_equal(data.read(range(len(data)))["image"], by_hand(path)[0][expected])
    begins = data.source.chunks.tolist()
    assert begins[0] == 0
    assert begins[1:] == [next(at for at, frame in enumerate(expected) if frame >= key) for key in (8, 16)]


def test_rates_of_television(folder: Path) -> None:
    video = folder / "a.mp4"
    for near in (29.97, 30000 / 1001, Fraction(30000, 1001)):
        assert len(UNTYPED.from_video(video, fps=near)) == 20
    assert len(UNTYPED.from_video(video, fps=5.0)) == 4


def test_numbers_and_times_are_read_without_decoding(folder: Path, decoded: list[int]) -> None:
    source = loadax.from_video(folder, size=8).source
    times = np.empty(38, np.float32)
    source.read_into(np.arange(38), [None, None, (), None], [None, None, times, None])
    assert times[24] == np.float32(0.133)
    assert decoded == []


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_frames_are_resized_as_images_are(fit: Any, folder: Path, tmp_path: Path) -> None:
    from PIL import Image

    pixels, _ = by_hand(folder / "a.mp4")
    for number in (0, 11):
        Image.fromarray(pixels[number]).save(tmp_path / f"{number:02}.png")
    images = loadax.from_images(tmp_path, (12, 16), fit=fit).read([0, 1])["image"].astype(int)
    frames = loadax.from_video(folder / "a.mp4", size=(12, 16), fit=fit).read([0, 11])["image"]
    assert np.abs(frames - images).max() <= 24  # Pillow resizes PNG files, OpenCV frames
    assert np.abs(frames - images).mean() < 1.5


def test_frames_are_turned_upright(tmp_path: Path) -> None:
    write_video(tmp_path / "x.mp4", 3, rotation=90)
    pixels, _ = by_hand(tmp_path / "x.mp4")
    assert np.array_equal(loadax.from_video(tmp_path).read(range(3))["image"], np.rot90(pixels, 1, (1, 2)))


def test_long_groups_are_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_video(tmp_path / "x.mp4", 20, keys=100)
    monkeypatch.setattr("loadax.sources.video.frame_rows.LONGEST", 8)
    data: Any = loadax.from_video(tmp_path)
    assert data.source.chunks.tolist() == [0, 8, 16]
    assert np.array_equal(data.read(range(20))["image"], by_hand(tmp_path / "x.mp4")[0])


def test_reading_in_order_decodes_each_group_once(folder: Path, decoded: list[int]) -> None:
    for data in (loadax.from_video(folder), loadax.from_video(folder, frames=4, stride=1)):
        decoded.clear()
        for _ in loader(data, 3, num_workers=4):
            pass
        assert sorted(decoded) == list(range(3 + 1 + 2))


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_shuffle_by_chunks_decodes_each_group_once_an_epoch(hosts: int, tmp_path: Path, decoded: list[int]) -> None:
    for name in "abcd":
        write_video(tmp_path / f"{name}.mp4", 16)
    rows = list[tuple[int, int]]()
    data = loadax.from_video(tmp_path, memory_bytes=0).shuffle(0, block="chunks", window=2, lanes=4)
    decoded.clear()
    for host in range(hosts):
        for batch in loader(data, 4, shard_index=host, shard_count=hosts):
            rows += zip(batch["video"].tolist(), batch["frame"].tolist(), strict=True)
    assert sorted(rows) == [(video, frame) for video in range(4) for frame in range(16)]
    assert sorted(decoded) == list(range(4 * 2))


def test_clips_shuffled_by_chunks_decode_each_group_once(folder: Path, decoded: list[int]) -> None:
    data = loadax.from_video(folder, frames=4, stride=2, memory_bytes=0).shuffle(0, block="chunks", window=2, lanes=2)
    decoded.clear()
    count = sum(len(batch["frame"]) for batch in loader(data, 3, remainder="pad"))
    assert count == 15
    assert sorted(decoded) == list(range(3 + 1 + 2))


@pytest.mark.processes
def test_worker_processes_and_resumed_runs_give_the_same_batches(folder: Path) -> None:
    data = loadax.from_video(folder, frames=4, stride=2, size=16).shuffle(0)
    expected = [np.asarray(batch["image"]) for batch in loader(data, 4)]
    workers = loader(data, 4, num_workers=2, worker_type="process")
    batches = iter(workers)
    first = np.asarray(next(batches)["image"])
    state = batches.get_state()
    batches.close()
    rest = [np.asarray(batch["image"]) for batch in workers.iterate(start=state)]
    assert all(map(np.array_equal, [first, *rest], expected))
    assert len(expected) == 1 + len(rest)


def test_index_keeps_the_table_of_frames(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos = tmp_path / "videos"
    shutil.copytree(folder, videos)
    index = tmp_path / "index"
    expected = loadax.from_video(videos, index=index).read(range(38))
    with monkeypatch.context() as patched:
        patched.setattr("loadax.sources.video.frame_table.read_packets", None)
        again = loadax.from_video(videos, index=index)
    assert np.array_equal(again.read(range(38))["image"], expected["image"])
    write_video(videos / "b.mkv", 7)
    assert len(loadax.from_video(videos, index=index)) == 40


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "frames": (np.zeros(1), np.ones(1)),
        "times": (np.array([np.nan]),),
        "firsts": (np.arange(3),),
        "ticks": (np.zeros(6, np.int64),),
    }.items(),
)
def test_damaged_index_is_made_again(name: str, values: Any, folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    loadax.from_video(folder, index=index)
    content = json.loads((index / "records.json").read_text())
    arrays = {key: np.load(index / file) for key, file in content["arrays"].items()}
    sizes = np.array([path.stat().st_size for path in sorted(folder.iterdir())])
    RECORDS.check(Entry(arrays, content["facts"]), sizes)
    for value in values:
        with pytest.raises((ValueError, TypeError)):
            RECORDS.check(Entry({**arrays, name: value}, content["facts"]), sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fps": 0}, r"fps=0: pass the frames of a second"),
        ({"fps": "fast"}, r"fps='fast': pass the frames of a second"),
        ({"stride": 2}, r"stride=2 is for clips; pass frames="),
        ({"frames": 0}, r"frames=0"),
        ({"size": 0}, r"size=0"),
        ({"fit": "x"}, r"fit='x'"),
        ({"damaged": "x"}, r"damaged='x'"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: Any, message: str, folder: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        UNTYPED.from_video(folder, **arguments)


def test_clips_longer_than_every_video(folder: Path) -> None:
    with pytest.raises(SourceError, match="a window needs 21 rows"):
        loadax.from_video(folder, frames=21)


def test_urls_are_refused() -> None:
    with pytest.raises(
        loadax.errors.UnsupportedError, match=r"s3://a/x.mp4: from_video opens local files only; download"
    ):
        loadax.from_video("s3://a/x.mp4")
