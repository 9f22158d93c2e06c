"""Damaged videos: errors that name the file and the frame, or rows that are masked; never a wrong row."""

from pathlib import Path
from typing import Any

import av
import jax
import numpy as np
import pytest

import loadax
from loadax.errors import SourceError
from tests.sources.video.videos import B_FRAMES, by_hand, write_video


def packet_places(path: Path) -> list[tuple[int, int]]:
    """First byte and size of each packet."""
    with av.open(str(path)) as file:
        return [(packet.pos or 0, packet.size) for packet in file.demux(video=0) if packet.size]


def cut(path: Path, packets: int) -> None:
    """Ends a file within a packet."""
    begin, size = packet_places(path)[packets]
    path.write_bytes(path.read_bytes()[: begin + size // 2])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("end.mp4", {}, "it can't be read as a video: Invalid data found"),
        ("start.mp4", {"movflags": "faststart"}, r"it is cut short: 1[23] of 20 frames"),
        ("x.mkv", {}, r"it is cut short: 0\.\d\d of 0\.67 seconds are there"),
        ("x.avi", {}, r"it is cut short: 1\d of 20 frames|packet of frame 12 is damaged"),
    ],
)
def test_video_that_is_cut_short(name: str, options: dict[str, str], message: str, tmp_path: Path) -> None:
    whole, path = tmp_path / f"whole{Path(name).suffix}", tmp_path / name
    write_video(whole)
    write_video(path, file_options=options)
    cut(path, 12)
    with pytest.raises(SourceError, match=rf"{name}: ({message}).*damaged='accept'"):
        loadax.from_video(path)
    pixels, _ = by_hand(whole)
    if "can't be read" in message:
        with pytest.raises(SourceError, match="has no frame that can be read"):
            loadax.from_video(path, damaged="accept")
        data = loadax.from_video([path, whole], damaged="accept")
        assert np.array_equal(data.read(range(20))["image"], pixels)
        assert data[0]["video"] == 1
    else:
        data = loadax.from_video(path, damaged="accept")
        assert 12 <= len(data) <= 13
        assert np.array_equal(data.read(range(12))["image"], pixels[:12])


def damage(path: Path, frame: int) -> None:
    begin, size = packet_places(path)[frame]
    content = bytearray(path.read_bytes())
    content[begin : begin + size] = bytes(size)
    path.write_bytes(content)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_damaged_frame_and_those_that_need_it_are_masked(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    write_video(path, 20, codec, options={"bf": "0", "x264-params": "keyint=8:min-keyint=8:scenecut=0"})
    pixels, _ = by_hand(path)
    damage(path, 11)
    data = loadax.from_video(path)
    whole = [*range(11), *range(16, 20)]
    for row in range(20):
        if row in whole:
            assert np.array_equal(data[row]["image"], pixels[row])
        else:
            with pytest.raises(SourceError, match=rf"row {row}, .*x.mp4, frame {row}, at 0\.\d+ s: the frame can't be"):
                data[row]
    for shuffled in (data, data.shuffle(0, block="chunks", window=1, lanes=1)):
        seen = []
        mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
        for batch in loadax.Dataloader(shuffled, 5, num_epochs=1, mesh=mesh, on_error="mask"):
            real = np.asarray(batch["mask"])
            frames = np.asarray(batch["frame"])[real]
            assert np.array_equal(np.asarray(batch["image"])[real], pixels[frames])
            seen += frames.tolist()
        assert sorted(seen) == whole
    assert len(data.exclude(range(11, 16))) == 15
    # as much as the decoder makes of them
    assert loadax.from_video(path, damaged="accept").read(range(8))["image"].shape == (8, 32, 48, 3)


def test_avi_file_with_frames_in_another_order(tmp_path: Path) -> None:
    write_video(tmp_path / "x.avi", codec="libx264", options=B_FRAMES)
    with pytest.raises(SourceError, match=r"x.avi: an .avi file can't tell when its frames are shown"):
        loadax.from_video(tmp_path)


def test_other_files_with_the_name_of_a_video(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").write_bytes(b"no video at all" * 100)
    with pytest.raises(SourceError, match=r"x.mp4: it can't be read as a video: Invalid data"):
        loadax.from_video(tmp_path)
    with av.open(str(tmp_path / "x.mp4"), "w") as file:
        stream = file.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.rate = 16000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    with pytest.raises(SourceError, match=r"x.mp4: it has no video stream"):
        loadax.from_video(tmp_path)


def test_videos_of_several_sizes(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 3)
    write_video(tmp_path / "b.mp4", 3, size=(48, 32))
    data = loadax.from_video(tmp_path)
    assert data[2]["image"].shape == (32, 48, 3)
    message = r"row 3, .*b.mp4, frame 0, at 0.000 s: .* it has 48x32 pixels .* 32x48; pass size="
    with pytest.raises(SourceError, match=message):
        data[3]
    assert loadax.from_video(tmp_path, size=(32, 48)).read(range(6))["image"].shape == (6, 32, 48, 3)


def test_video_that_changed_or_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    write_video(path, 10)
    data: Any = loadax.from_video(path)
    write_video(path, 11)
    with pytest.raises(SourceError, match=r"x.mp4: the file has changed since it was opened"):
        data[0]
    path.unlink()
    with pytest.raises(SourceError, match=r"x.mp4: it can't be read: No such file"):
        data[1]


def test_video_opened_by_another_function(tmp_path: Path) -> None:
    write_video(tmp_path / "x.mp4", 3)
    with pytest.raises(SourceError, match=r"loadax\.from_video\('.*x\.mp4'\)"):
        loadax.from_csv(tmp_path / "x.mp4")
