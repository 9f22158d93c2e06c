"""GroupDecoder: decodes groups of pictures of one open video."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO, NamedTuple, final

import numpy as np

from loadax.core.arguments import choice
from loadax.protocols import Integers
from loadax.sources.images.folder import checked_size
from loadax.sources.images.resize import Fit, Pixels, fitted, padded, resize
from loadax.sources.library import require
from loadax.sources.video.frame_table import FrameTable, error_text


class FrameError(Exception):
    """A frame that can't be decoded."""


class Resizing(NamedTuple):
    """Size of decoded frames.

    Args:
        size: (height, width); None: that of the video.
        fit: Method for frames of another aspect ratio.
    """

    size: tuple[int, int] | None
    fit: Fit

    def __call__(self, pixels: Pixels) -> Pixels:
        """A frame of that size."""
        if self.size is None or self.size == pixels.shape[:2]:
            return pixels
        down, across = fitted(pixels.shape[:2], self.size, self.fit)
        return padded(resize(pixels, down, across), self.size)


def checked_resizing(size: Any, fit: Any) -> Resizing:
    """The arguments `size` and `fit`.

    Raises:
        ArgumentError: When one is invalid; shows it.
        UnsupportedError: When OpenCV, for `size`, is not installed.
    """
    choice("fit", fit, ("crop", "stretch", "pad"))
    wanted = checked_size(size)
    if wanted is not None:
        require("size=", {"opencv-python-headless": "cv2"}, "video")
    return Resizing(wanted, fit)


@final
class GroupDecoder:
    """Decodes groups of pictures of one video, which it keeps open. For one thread at a time.

    Args:
        file: Path of the video, or its bytes as a file.
        resizing: Size of the frames.
        strict: Whether frames that are damaged or may depend on damaged ones are errors.
    """

    def __init__(self, file: str | BinaryIO, resizing: Resizing, *, strict: bool):
        import av
        from av.video.reformatter import VideoReformatter

        self.container: Any = av.open(file, metadata_errors="replace")
        self._reformatter = VideoReformatter()
        self._resizing = resizing
        self._strict = strict
        stream = self.container.streams.best("video")
        if stream is None or stream.codec_context is None:
            return
        # Rows are decoded by many threads already.
        stream.codec_context.thread_count = 1
        if strict:
            stream.codec_context.options = {"err_detect": "explode"}

    def decode(
        self, table: FrameTable, group: int, frames: Integers
    ) -> Iterator[tuple[list[int], Pixels]]:
        """Decodes frames of one group of pictures, and none that come after the last of them.

        Args:
            table: Frames of the file, among others.
            group: Number of the group.
            frames: Numbers of its frames, which may repeat.

        Yields:
            Each frame's indices in `frames` and its pixels, uint8[height, width, 3], until one can't be decoded.

        Raises:
            FrameError: When a frame can't be decoded.
        """
        from av.error import FFmpegError

        wanted: dict[int, list[int]] = {}
        for index, time in enumerate(table.times[frames].tolist()):
            wanted.setdefault(time, []).append(index)
        try:
            for frame in self._frames(table, group):
                if frame.pts in wanted:
                    pixels = self._resizing(self._pixels(frame))
                    yield wanted.pop(frame.pts), pixels
                if not wanted:
                    return
        except (FFmpegError, ValueError) as error:
            raise FrameError(error_text(error)) from error
        raise FrameError("the decoder has no frame at its time")

    def close(self) -> None:
        """Closes the video."""
        self.container.close()

    def _frames(self, table: FrameTable, group: int) -> Iterator[Any]:
        """Decodes a group from its keyframe to its last frame; yields frames in the order of their times.

        Raises:
            FrameError: When a frame is damaged, or before another one that was stored to be shown earlier.
        """
        from av.error import FFmpegError

        stream = self.container.streams.best("video")
        context = stream.codec_context
        key = int(table.times[table.firsts[group]])
        shown = key - 1
        for packet in self._packets(stream, table, group):
            try:
                decoded = context.decode(packet)
            except FFmpegError:
                # Frames of the group before, which it lacks here, may follow an open group's keyframe.
                if packet is None or packet.pts >= key:
                    raise
                continue
            for frame in decoded:
                if frame.pts is None or frame.pts < key:
                    continue
                if frame.pts <= shown:
                    raise FrameError(
                        "its file has frames in another order than it says"
                    )
                if self._strict and frame.is_corrupt:
                    raise FrameError("its data is damaged")
                shown = frame.pts
                yield frame

    def _packets(self, stream: Any, table: FrameTable, group: int) -> Iterator[Any]:
        """Packets from the keyframe of a group until all of its frames are there; and None, for those held back."""
        container = self.container
        file = table.files_of(table.firsts[group : group + 1])[0]
        frames = table.frames_of(group)
        key, last = table.times[[frames[0], frames[-1]]].tolist()
        before = max(int(table.begins[file]), int(table.firsts[max(0, group - 1)]))
        # Where files have no index, or one by times of decoding, a seek may end behind the keyframe.
        for target in (key, int(table.times[before]), None):
            if target is None:
                container.seek(container.start_time or 0)
            else:
                container.seek(target, stream=stream)
            demuxed = container.demux(stream)
            packets = (packet for packet in demuxed if packet.pts is not None)
            for packet in packets:
                if packet.pts == key and packet.is_keyframe:
                    left = len(frames)
                    for following in chain([packet], packets):
                        yield following
                        if key <= following.pts <= last:
                            left -= 1
                        if not left:
                            break
                    yield None
                    return
                if packet.is_keyframe and packet.pts > key:
                    break
        raise FrameError("its keyframe is not found")

    def _pixels(self, frame: Any) -> Pixels:
        # Twice as fast as a frame's own conversion, which makes tables and threads for each.
        rgb: Any = self._reformatter.reformat(frame, format="rgb24", threads=1)
        (plane,) = rgb.planes
        shape = (rgb.height, rgb.width, 3)
        strides = (plane.line_size, 3, 1)
        # Not copied: the array keeps the plane, and so the frame.
        pixels: Pixels = np.ndarray(shape, np.uint8, plane, 0, strides)
        if frame.rotation:
            pixels = np.rot90(pixels, round(frame.rotation / 90))
        return pixels
