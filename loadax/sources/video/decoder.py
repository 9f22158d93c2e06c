"""Decoder: decodes frames of one group of pictures after another, with PyAV."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, final

from loadax.files.byte_ranges import FileInfo
from loadax.files.files import check_unchanged
from loadax.sources.images.resize import Fit, Pixels
from loadax.sources.video.frame_table import FrameTable
from loadax.sources.video.group_decoder import FrameError, GroupDecoder, sized

_OPEN = 64  # files that stay open


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
        self._idle: OrderedDict[int, GroupDecoder] = OrderedDict()  # by file

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
        table = self.table
        file = int(table.files_of(table.firsts[group : group + 1])[0])
        opened = self._take(file)
        try:
            for frame, pixels in opened.decode(table, group, frames):
                yield frame, self._sized(pixels)
        except BaseException:
            opened.close()
            raise
        self._give(file, opened)

    def _sized(self, pixels: Pixels) -> Pixels:
        height, width = pixels.shape[:2]
        if self.size is None or self.size == (height, width):
            return pixels
        if self._fit is None:
            raise FrameError(
                f"it has {height}x{width} pixels (height x width), and the first frame "
                f"{self.size[0]}x{self.size[1]}; pass size=(height, width) to resize all"
            )
        return sized(pixels, self.size, self._fit)

    def _take(self, file: int) -> GroupDecoder:
        """An open file that no other thread has."""
        location = self.locations[file]
        check_unchanged(location, self._infos[file])
        with self._lock:
            opened = self._idle.pop(file, None)
        return opened or GroupDecoder(location, strict=self._strict)

    def _give(self, file: int, opened: GroupDecoder) -> None:
        with self._lock:
            replaced = self._idle.pop(file, None)
            self._idle[file] = opened
            if len(self._idle) > _OPEN:
                _, replaced = self._idle.popitem(last=False)
        if replaced is not None:
            replaced.close()
