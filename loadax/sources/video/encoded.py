"""EncodedVideo: decodes the bytes of videos to clips, for `Dataset.decode_video`."""

import io
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, final

import numpy as np

from loadax.core.arguments import choice, integer
from loadax.protocols import ArraySpec, Integers
from loadax.sources.clips import Clip, checked_clip, clip_start
from loadax.sources.images.folder import checked_size
from loadax.sources.images.resize import Fit, Pixels
from loadax.sources.library import require
from loadax.sources.video.format import FORMAT
from loadax.sources.video.frame_rows import frame_rows
from loadax.sources.video.frame_table import (
    FrameTable,
    error_text,
    frame_table,
    read_packets,
)
from loadax.sources.video.group_decoder import FrameError, GroupDecoder, sized
from loadax.sources.video.open import frame_rate


@final
@dataclass(frozen=True)
class EncodedVideo:
    """Decodes the bytes of a video to a clip.

    Args:
        frames: Number of frames of a clip.
        fps: Frames a second; None: those that are stored.
        size: (height, width) of the frames; None: that of the video.
        fit: Method for frames of another aspect ratio.
        clip: Which clip of the video.
        seed: Seed of random clips; None: it is not given.
    """

    frames: int
    fps: Fraction | None
    size: tuple[int, int] | None
    fit: Fit
    clip: Clip
    seed: int | None = None
    verb: ClassVar[str] = "decode_video"
    noun: ClassVar[str] = "a video"
    made_of: ClassVar[str] = "pixels"
    failures: ClassVar[tuple[type[Exception], ...]] = (FrameError,)

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of a clip; None: it depends on the video."""
        if self.size is None:
            return None
        return ArraySpec((self.frames, *self.size, 3), np.dtype(np.uint8))

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
            "size": self.size,
            "clip": self.clip,
        }

    def __call__(self, content: bytes, rng: np.random.Generator | None) -> Pixels:
        """Decodes a clip: uint8[frames, height, width, 3].

        Raises:
            FrameError: When a frame of it can't be decoded, or the file is damaged.
        """
        from av.error import FFmpegError

        try:
            decoder = GroupDecoder(io.BytesIO(content), strict=True)
        except (FFmpegError, ValueError) as error:
            raise FrameError(error_text(error)) from error
        try:
            table = frame_table(read_packets(decoder.container))
            (reason,) = table.reasons
            if reason:
                raise FrameError(reason)
            rows = frame_rows(table, self.fps).frames
            start = clip_start(self.clip, len(rows), self.frames, rng)
            shown = rows[start : start + self.frames]
            pixels = self._decoded(decoder, table, shown)
        except (FFmpegError, ValueError) as error:
            raise FrameError(error_text(error)) from error
        finally:
            decoder.close()
        return pixels

    def _decoded(
        self, decoder: GroupDecoder, table: FrameTable, shown: Integers
    ) -> Pixels:
        """The pixels of frames, the last of which stays on display."""
        numbers, places = np.unique(shown, return_inverse=True)
        lacking = self.frames - len(places)
        places = np.append(places, np.full(lacking, places[-1]))
        groups = np.searchsorted(table.firsts, numbers, side="right") - 1
        clip: Any = None
        decoded = 0
        for group in np.unique(groups).tolist():
            wanted = numbers[groups == group].tolist()
            for _, pixels in decoder.decode(table, group, wanted):
                image = self._sized(pixels)
                if clip is None:
                    clip = np.empty((self.frames, *image.shape), np.uint8)
                clip[places == decoded] = image
                decoded += 1
        return clip

    def _sized(self, pixels: Pixels) -> Pixels:
        if self.size is None or self.size == pixels.shape[:2]:
            return pixels
        return sized(pixels, self.size, self.fit)

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
    choice("fit", fit, ("crop", "stretch", "pad"))
    count = integer("frames", frames, 1)
    rate = frame_rate(fps)
    wanted = None
    if size is not None:
        wanted = checked_size(size)
        require("size=", {"opencv-python-headless": "cv2"}, "video")
    return EncodedVideo(count, rate, wanted, fit, checked_clip(clip, seed), seed)
