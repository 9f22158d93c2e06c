"""EncodedVideo: decodes the bytes of videos to clips, for `Dataset.decode_video`."""

import io
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, final

import numpy as np

from loadax.core.arguments import integer
from loadax.protocols import ArraySpec
from loadax.sources.clips import Clip, checked_clip, clip_start
from loadax.sources.file_index import REASONS
from loadax.sources.images.resize import Pixels
from loadax.sources.library import require
from loadax.sources.video.format import FORMAT
from loadax.sources.video.frame_rows import frame_rows
from loadax.sources.video.frame_table import error_text, frame_table, read_packets
from loadax.sources.video.group_decoder import (
    FrameError,
    GroupDecoder,
    Resizing,
    checked_resizing,
)
from loadax.sources.video.open import frame_rate


@final
@dataclass(frozen=True)
class EncodedVideo:
    """Decodes the bytes of a video to a clip.

    Args:
        frames: Number of frames of a clip.
        fps: Frames a second; None: those that are stored.
        resizing: Size of the frames.
        clip: Which clip of the video.
        seed: Seed of random clips; None: it is not given.
    """

    frames: int
    fps: Fraction | None
    resizing: Resizing
    clip: Clip
    seed: int | None = None
    verb: ClassVar[str] = "decode_video"
    noun: ClassVar[str] = "a video"
    made_of: ClassVar[str] = "pixels"
    failures: ClassVar[tuple[type[Exception], ...]] = (FrameError,)

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of a clip; None: it depends on the video."""
        size = self.resizing.size
        if size is None:
            return None
        return ArraySpec((self.frames, *size, 3), np.dtype(np.uint8))

    @property
    def is_random(self) -> bool:
        """Whether clips are drawn."""
        return self.clip == "random"

    def arguments(self) -> dict[str, Any]:
        """Arguments to show."""
        fps = None if self.fps is None else float(self.fps)
        return {
            "frames": self.frames,
            "fps": fps,
            "size": self.resizing.size,
            "clip": self.clip,
        }

    def __call__(self, content: bytes, rng: np.random.Generator | None) -> Pixels:
        """Decodes a clip: uint8[frames, height, width, 3].

        Raises:
            FrameError: When a frame of it can't be decoded, or the file is damaged.
        """
        from av.error import FFmpegError

        try:
            opened = GroupDecoder(io.BytesIO(content), self.resizing, strict=True)
            with closing(opened) as decoder:
                return self._clip(decoder, rng)
        except (FFmpegError, ValueError) as error:
            raise FrameError(error_text(error)) from error

    def _clip(self, decoder: GroupDecoder, rng: np.random.Generator | None) -> Pixels:
        entry = read_packets(decoder.container)
        (reason,) = entry.facts[REASONS]
        if reason:
            raise FrameError(reason)
        table = frame_table(entry)
        rows = frame_rows(table, self.fps).frames
        start = clip_start(self.clip, len(rows), self.frames, rng)
        # The last frame stays on display.
        shown = rows[np.minimum(start + np.arange(self.frames), len(rows) - 1)]
        clip: Any = None
        for group, places in table.by_group(shown):
            for indices, pixels in decoder.decode(table, group, shown[places]):
                if clip is None:
                    clip = np.empty((self.frames, *pixels.shape), np.uint8)
                clip[places[indices]] = pixels
        return clip

    def failure_text(self, error: Exception) -> str:
        """Tells why a video can't be decoded, after its name."""
        return f"can't be decoded as a video: {error}"

    def unequal(self, found: tuple[int, ...], first: tuple[int, ...]) -> str:
        """Tells that a clip has another shape than the first one, after its name."""
        return (
            f"has frames of {found[1]}x{found[2]} pixels (height x width), but the first "
            f"of {first[1]}x{first[2]}; pass size=(height, width) to decode_video"
        )


def encoded_video(
    frames: Any, fps: Any, size: Any, fit: Any, clip: Any, seed: Any
) -> EncodedVideo:
    """Makes the decoder of `Dataset.decode_video` from its arguments.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When PyAV, or OpenCV for `size`, is not installed.
    """
    require("decode_video", FORMAT.requires, FORMAT.extra)
    count = integer("frames", frames, 1)
    rate = frame_rate(fps)
    resizing = checked_resizing(size, fit)
    return EncodedVideo(count, rate, resizing, checked_clip(clip, seed), seed)
