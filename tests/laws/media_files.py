"""Video and audio files for random chains, whose frames and samples are known."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import av
import numpy as np
import soundfile
from numpy.typing import NDArray

from loadax import Dataset, from_audio, from_video
from tests.sources.video.videos import OPEN_GROUPS, write_video

RATE = 8000  # of samples, in files and in clips
FPS = 30  # of frames in files
_SIZE = (16, 24)


@dataclass(frozen=True)
class Video:
    """A video file, its frames and the seconds from the first one to each, by a decoder by hand."""

    path: Path
    frames: NDArray[np.uint8]
    seconds: list[float]


@dataclass(frozen=True)
class Sound:
    """An audio file and its samples, float32[n, channels], by a decoder by hand."""

    path: Path
    samples: NDArray[np.float32]


class MediaFiles:
    """Small files, written when the first chain asks for them.

    Args:
        folder: for them.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    @cached_property
    def videos(self) -> list[Video]:
        """Three files of 9, 5 and 1 frames, the first with open groups of pictures."""
        kinds: list[dict[str, Any]] = [
            {"count": 9, "codec": "libx264", "options": OPEN_GROUPS},
            {"count": 5, "keys": 2},
            {"count": 1},
        ]
        return [self._video(f"{number}.mkv", seed=number, **kind) for number, kind in enumerate(kinds)]

    @cached_property
    def sounds(self) -> list[Sound]:
        """Three files of two channels: one that can be sought in, one that is decoded as a whole, and a short one."""
        return [self._sound(name, count) for name, count in (("a.wav", 61), ("b.ogg", 47), ("c.flac", 5))]

    @cached_property
    def contents(self) -> tuple[dict[bytes, Video], dict[bytes, Sound]]:
        """The files by what is in them."""
        videos = {video.path.read_bytes(): video for video in self.videos}
        return videos, {sound.path.read_bytes(): sound for sound in self.sounds}

    def _video(self, name: str, **kind: Any) -> Video:
        path = self._folder / name
        write_video(path, size=_SIZE, fps=FPS, **kind)
        with av.open(str(path)) as file:
            frames = list(file.decode(video=0))
        ticks = [Fraction(frame.pts or 0) * Fraction(frame.time_base or 1) for frame in frames]
        pixels: NDArray[np.uint8] = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
        return Video(path, pixels, [float(tick - ticks[0]) for tick in ticks])

    def _sound(self, name: str, count: int) -> Sound:
        path = self._folder / name
        noise = np.random.default_rng(count).uniform(-0.5, 0.5, (count, 2))
        soundfile.write(path, noise, RATE)
        return Sound(path, soundfile.read(path, dtype="float32", always_2d=True)[0])


def shown(count: int, fps: float | None) -> list[int]:
    """Frames of a video that are on display at a rate: all, each second one, or each twice."""
    if fps is None:
        return list(range(count))
    return [row * FPS // int(fps) for row in range(-(-count * int(fps) // FPS))]


def video_rows(random: Random, videos: list[Video]) -> tuple[Dataset, list[Any], bool, tuple[int, ...]]:
    """Frames of some files, their rows by hand, which come together, and the file of each."""
    chosen = videos[: random.randint(1, len(videos))]
    fps = random.choice([None, None, FPS // 2, FPS * 2])
    memory = random.choice([0, 1 << 20])
    dataset = from_video([video.path for video in chosen], fps=fps, memory_bytes=memory)
    rows = []
    files = []
    for number, video in enumerate(chosen):
        for frame in shown(len(video.frames), fps):
            rows.append(
                {
                    "frame": np.int32(frame),
                    "image": video.frames[frame],
                    "time": np.float32(video.seconds[frame]),
                    "video": np.int32(number),
                }
            )
            files.append(number)
    return dataset, rows, False, tuple(files)


def sound_rows(random: Random, sounds: list[Sound]) -> tuple[Dataset, list[Any], bool, tuple[int, ...]]:
    """Clips of some files, their rows by hand, which come together, and the file of each."""
    chosen = sounds[: random.randint(1, len(sounds))]
    samples = random.choice([4, 10, 20])
    overlap = random.choice([0, samples // 2])
    mono = random.random() < 0.5
    padded = random.random() < 0.5
    dataset = from_audio(
        [sound.path for sound in chosen],
        samples / RATE,
        overlap=overlap / RATE,
        channels="mono" if mono else None,
        tail="pad" if padded else "drop",
        memory_bytes=random.choice([0, 1 << 20]),
    )
    rows = []
    files = []
    for number, sound in enumerate(chosen):
        covered = 0
        for start in range(0, len(sound.samples), samples - overlap):
            whole = start + samples <= len(sound.samples)
            if covered >= len(sound.samples) or not (whole or padded):
                break
            covered = start + samples
            length = min(samples, len(sound.samples) - start)
            row = {"audio": cut(sound, start, samples, mono), "file": np.int32(number)}
            rows.append({**row, **({"length": np.int32(length)} if padded else {}), "time": np.float32(start / RATE)})
            files.append(number)
    return dataset, rows, False, tuple(files)


def cut(sound: Sound, start: int, samples: int, mono: bool) -> NDArray[np.float32]:
    """A clip, with zeros behind the end of the file."""
    part = sound.samples[start : start + samples]
    clip = np.zeros((samples, 2), np.float32)
    clip[: len(part)] = part
    return clip.mean(1) if mono else clip
