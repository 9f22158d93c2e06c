"""Video files of known frames, and their frames as a decoder by hand gives them."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

SIZE = (32, 48)
B_FRAMES = {"x264-params": "bframes=3:b-adapt=0:scenecut=0:keyint=8:min-keyint=8"}
OPEN_GROUPS = {"x264-params": "bframes=3:b-adapt=0:scenecut=0:keyint=8:min-keyint=8:open-gop=1"}


def write_video(
    path: Path | str,
    count: int = 20,
    codec: str = "mpeg4",
    *,
    keys: int = 8,
    size: tuple[int, int] = SIZE,
    fps: int = 30,
    times: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    file_options: dict[str, str] | None = None,
    rotation: int = 0,
    seed: int = 0,
) -> None:
    """Writes moving noise.

    Args:
        path: of the file, whose ending names its format.
        count: frames.
        codec: name of the encoder.
        keys: frames from one keyframe to the next.
        size: (height, width).
        fps: frames a second.
        times: of the frames, in units of 1 / fps seconds; None: 0, 1, ….
        options: of the encoder.
        file_options: of the file's format.
        rotation: degrees by which players turn the frames.
        seed: of the noise.
    """
    noise = np.random.default_rng(seed).integers(0, 256, (size[0] // 4, size[1] // 4 + count, 3), np.uint8)
    with av.open(str(path), "w", options=file_options or {}) as file:
        stream: Any = file.add_stream(codec, rate=fps, options=options or {})
        stream.height, stream.width = size
        stream.pix_fmt = "yuv420p"
        stream.gop_size = keys
        stream.codec_context.thread_count = 1
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(count):
            pixels = noise[:, number : number + size[1] // 4].repeat(4, 0).repeat(4, 1)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, fps)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())


def by_hand(path: Path | str) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Pixels of all frames, and their seconds, by a decoder that reads the file from its begin to its end."""
    with av.open(str(path)) as file:
        frames = list(file.decode(video=0))
    return np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), np.array([frame.time for frame in frames])
