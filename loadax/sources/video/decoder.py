"""Decoder: decodes frames of one group of pictures after another, with PyAV."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, final

import numpy as np

from loadax.files.byte_ranges import FileInfo
from loadax.files.files import check_unchanged
from loadax.sources.images.resize import Fit, Pixels, fitted, padded, resize
from loadax.sources.video.frame_table import FrameTable, error_text

_OPEN = 64  # files that stay open


class FrameError(Exception):
    """A frame that can't be decoded."""


@final
class Decoder:
    """Decodes frames of video files. Thread-safe: each thread has an open file to itself.

    Args:
        locations: Paths of the files.
        infos: Size and time of change of each when its table was made.
        table: Frames of the files.
        size: (height, width) of the pixels; None: any.
        fit: Method for frames of another aspect ratio; None: frames are not resized, and must have that size.
        strict: Whether frames that are damaged or may depend on damaged ones are errors.
    """

    def __init__(
        self,
        locations: Sequence[str],
        infos: Sequence[FileInfo],
        table: FrameTable,
        size: tuple[int, int] | None,
        fit: Fit | None,
        *,
        strict: bool,
    ):
        self.locations = locations
        self.table = table
        self.size = size
        self._infos = infos
        self._fit = fit
        self._strict = strict
        self._lock = threading.Lock()
        # containers and converters by file
        self._idle: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_idle": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _idle=OrderedDict())

    def decode(
        self, group: int, frames: Sequence[int]
    ) -> Iterator[tuple[int, Pixels]]:
        """Decodes frames of one group of pictures, and none that come after the last of them.

        Args:
            group: Number of the group.
            frames: Numbers of its frames, ascending.

        Yields:
            Each frame's number and its pixels, uint8[height, width, 3], ascending until one can't be decoded.

        Raises:
            FrameError: When a frame can't be decoded.
            SourceError: When the file is missing or has changed.
        """
        from av.error import FFmpegError

        table = self.table
        file = int(table.files_of(table.firsts[group : group + 1])[0])
        wanted = {int(table.times[frame]): frame for frame in frames}
        opened = self._take(file)
        container, reformatter = opened
        try:
            for frame in self._frames(container, group):
                if frame.pts in wanted:
                    yield wanted.pop(frame.pts), self._pixels(frame, reformatter)
                if not wanted:
                    break
        except BaseException as error:
            container.close()
            if isinstance(error, FFmpegError | ValueError):
                raise FrameError(error_text(error)) from error
            raise
        if wanted:
            raise FrameError("the decoder has no frame at its time")
        self._give(file, opened)

    def _frames(self, container: Any, group: int) -> Iterator[Any]:
        """Decodes a group from its keyframe to its last frame; yields frames in the order of their times.

        Raises:
            FrameError: When a frame is damaged, or before another one that was stored to be shown earlier.
        """
        from av.error import FFmpegError

        stream = container.streams.best("video")
        context = stream.codec_context
        key = int(self.table.times[self.table.firsts[group]])
        count = int(self.table.packets[group])
        shown = key - 1
        for packet in chain(
            islice(self._packets(container, stream, group), count), [None]
        ):
            try:
                # None: frames that the decoder holds back until it knows what follows
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

    def _packets(self, container: Any, stream: Any, group: int) -> Iterator[Any]:
        """Packets from the keyframe of a group on."""
        table = self.table
        file = table.files_of(table.firsts[group : group + 1])[0]
        key = int(table.times[table.firsts[group]])
        before = max(int(table.begins[file]), int(table.firsts[max(0, group - 1)]))
        # Where files have no index, or one by times of decoding, a seek may end behind the keyframe.
        for target in (key, int(table.times[before]), None):
            if target is None:
                container.seek(container.start_time or 0)
            else:
                container.seek(target, stream=stream)
            packets = container.demux(stream)
            for packet in packets:
                if packet.pts == key and packet.is_keyframe:
                    yield packet
                    yield from packets
                    return
                if packet.is_keyframe and packet.pts is not None and packet.pts > key:
                    break
        raise FrameError("its keyframe is not found")

    def _pixels(self, frame: Any, reformatter: Any) -> Pixels:
        # Twice as fast as a frame's own conversion, which makes tables and threads for each.
        rgb = reformatter.reformat(frame, format="rgb24", threads=1)
        pixels: Pixels = rgb.to_ndarray()
        if frame.rotation:
            pixels = np.rot90(pixels, round(frame.rotation / 90))
        height, width = pixels.shape[:2]
        if self.size is None or self.size == (height, width):
            return pixels
        if self._fit is None:
            raise FrameError(
                f"it has {height}x{width} pixels (height x width), and the first frame "
                f"{self.size[0]}x{self.size[1]}; pass size=(height, width) to resize all"
            )
        down, across = fitted((height, width), self.size, self._fit)
        return padded(resize(pixels, down, across), self.size)

    def _take(self, file: int) -> tuple[Any, Any]:
        """An open file and a converter of its frames that no other thread has."""
        import av
        from av.video.reformatter import VideoReformatter

        location = self.locations[file]
        check_unchanged(location, self._infos[file])
        with self._lock:
            opened = self._idle.pop(file, None)
        if opened is None:
            container: Any = av.open(location, metadata_errors="replace")
            context = container.streams.best("video").codec_context
            # Rows are decoded by many threads already.
            context.thread_count = 1
            if self._strict:
                context.options = {"err_detect": "explode"}
            opened = container, VideoReformatter()
        return opened

    def _give(self, file: int, opened: tuple[Any, Any]) -> None:
        with self._lock:
            replaced = self._idle.pop(file, None)
            self._idle[file] = opened
            if len(self._idle) > _OPEN:
                _, replaced = self._idle.popitem(last=False)
        if replaced is not None:
            replaced[0].close()
