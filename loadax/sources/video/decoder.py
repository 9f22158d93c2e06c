"""Decoder: decodes frames of one group of pictures after another, with PyAV."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, final

from loadax.files.byte_ranges import FileInfo
from loadax.files.files import check_unchanged
from loadax.protocols import Integers
from loadax.sources.images.resize import Pixels
from loadax.sources.video.frame_table import FrameTable
from loadax.sources.video.group_decoder import FrameError, GroupDecoder, Resizing

_OPEN = 64  # files that stay open


@final
class Decoder:
    """Decodes frames of video files. Thread-safe: each thread has an open file to itself.

    Args:
        locations: Paths of the files.
        infos: Size and time of change of each when its table was made.
        table: Frames of the files.
        resizing: Size of the frames.
        strict: Whether frames that are damaged or may depend on damaged ones are errors.
    """

    def __init__(
        self,
        locations: Sequence[str],
        infos: Sequence[FileInfo],
        table: FrameTable,
        resizing: Resizing,
        *,
        strict: bool,
    ):
        self.locations = locations
        self.table = table
        # that all frames must have; None: any
        self.size = resizing.size
        self._infos = infos
        self._resizing = resizing
        self._strict = strict
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, GroupDecoder] = OrderedDict()  # by file

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_idle": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _idle=OrderedDict())

    def decode(
        self, group: int, frames: Integers
    ) -> Iterator[tuple[list[int], Pixels]]:
        """Decodes frames of one group of pictures, and none that come after the last of them.

        Args:
            group: Number of the group.
            frames: Numbers of its frames, which may repeat.

        Yields:
            Each frame's indices in `frames` and its pixels, uint8[height, width, 3], until one can't be decoded.

        Raises:
            FrameError: When a frame can't be decoded.
            SourceError: When the file is missing or has changed.
        """
        file = int(self.table.files_of(self.table.firsts[[group]])[0])
        opened = self._take(file)
        try:
            for indices, pixels in opened.decode(self.table, group, frames):
                self._check(pixels)
                yield indices, pixels
        except BaseException:
            opened.close()
            raise
        self._give(file, opened)

    def _check(self, pixels: Pixels) -> None:
        height, width = pixels.shape[:2]
        if self.size is not None and self.size != (height, width):
            raise FrameError(
                f"it has {height}x{width} pixels (height x width), and the first frame "
                f"{self.size[0]}x{self.size[1]}; pass size=(height, width) to resize all"
            )

    def _take(self, file: int) -> GroupDecoder:
        """An open file that no other thread has."""
        location = self.locations[file]
        check_unchanged(location, self._infos[file])
        with self._lock:
            opened = self._idle.pop(file, None)
        return opened or GroupDecoder(location, self._resizing, strict=self._strict)

    def _give(self, file: int, opened: GroupDecoder) -> None:
        with self._lock:
            replaced = self._idle.pop(file, None)
            self._idle[file] = opened
            if len(self._idle) > _OPEN:
                _, replaced = self._idle.popitem(last=False)
        if replaced is not None:
            replaced.close()
