"""VideoSource: frames of video files, whose groups of pictures are decoded whole and cached in memory."""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from loadax.errors import SourceError
from loadax.protocols import ArraySpec, Boxes, Integers, Location, Outputs, Tree
from loadax.sources.base import BaseSource, Traits
from loadax.sources.checks import check_rows, chunk_starts, read_columns
from loadax.sources.video.decoder import Decoder
from loadax.sources.video.frame_rows import FrameRows
from loadax.sources.video.group_decoder import FrameError
from loadax.sources.wrappers.chunk_cache import ChunkCache, largest_chunk

# Chunks that stay in memory after all of their rows were read, for windows that share rows.
_SPARE = 8


@final
class VideoSource(BaseSource):
    """Row i: a frame, as `{"frame": int32[], "image": uint8[height, width, 3], "time": float32[], "video": int32[]}`.

    Args:
        decoder: Decoder of the files.
        rows: Frames of the rows.
        memory_bytes: Memory for decoded chunks.
        open_chunks: Number of chunks to keep even if they take more.
    """

    spec: Tree = None

    def __init__(
        self,
        decoder: Decoder,
        rows: FrameRows,
        memory_bytes: int,
        open_chunks: int = 0,
    ):
        self._decoder = decoder
        self._rows = rows
        self._memory_bytes = memory_bytes
        self._length = len(rows.frames)
        assert decoder.size is not None
        number = ArraySpec((), np.dtype(np.int32))
        self.spec = {
            "frame": number,
            "image": ArraySpec((*decoder.size, 3), np.dtype(np.uint8)),
            "time": ArraySpec((), np.dtype(np.float32)),
            "video": number,
        }
        pixels = _Pixels(decoder, rows, self.spec["image"])
        self._pixels: BaseSource = pixels
        kept = 0
        if chunk_starts(pixels) is not None:
            chunk_bytes = (
                largest_chunk(rows.chunks, len(self)) * self.spec["image"].nbytes
            )
            fitting = max(1, memory_bytes // chunk_bytes, open_chunks)
            kept = min(len(rows.chunks), fitting)
            if kept == len(rows.chunks):
                times = math.inf
            else:
                times = 1.0  # memory that was written before is faster than new one
            self._pixels = ChunkCache(
                pixels, pixels.spec, kept, times, spare=_SPARE, together=False
            )
        self.traits = Traits(owns_memory=True, reads_columns=True, cached_chunks=kept)

    def __repr__(self) -> str:
        height, width, _ = self.spec["image"].shape
        files = self._decoder.locations
        more = f" and {len(files) - 1} more" * (len(files) > 1)
        return f"{height}x{width} frames of {files[0]}{more}"

    @property
    def videos(self) -> Sequence[str]:
        """Paths of the videos: `videos[row["video"]]`."""
        return self._decoder.locations

    def timeline(self) -> tuple[Integers, NDArray[np.float64]]:
        """The number of the video of each row, ascending, and the seconds from its first frame."""
        table = self._decoder.table
        frames = self._rows.frames
        return table.files_of(frames), table.seconds(frames)

    @property
    def groups(self) -> Integers:
        """First row of each video."""
        return self._rows.groups

    @property
    def chunks(self) -> Integers:
        return self._rows.chunks

    def cache_chunks(self, count: int) -> BaseSource:
        if count <= self.traits.cached_chunks:
            return self
        return VideoSource(self._decoder, self._rows, self._memory_bytes, count)

    @property
    def addresses(self) -> Sequence[str]:
        return self._decoder.locations

    def locate(self, row: int) -> list[Location]:
        """File of a frame, and its number and time there."""
        frames = self._rows.frames[check_rows([row], len(self))]
        table = self._decoder.table
        file = table.files_of(frames)[0]
        number = frames[0] - table.begins[file]
        part = f"frame {number}, at {table.seconds(frames)[0]:.3f} s"
        return [Location(self.videos[file], part=part)]

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        """Reads into `out`; see `Source`. Nothing is decoded for numbers and times alone."""
        rows = check_rows(rows, len(self))
        table = self._decoder.table
        frames = self._rows.frames[rows]
        files = table.files_of(frames)
        into_frame, into_image, into_time, into_video = out
        if into_frame is not None:
            into_frame[...] = frames - table.begins[files]
        if into_time is not None:
            into_time[...] = table.seconds(frames)
        if into_video is not None:
            into_video[...] = files
        if into_image is not None:
            decoded = np.empty(len(rows), bool)
            self._pixels.read_into(rows, [boxes[1], ()], [into_image, decoded])
            if not decoded.all():
                raise self._error(int(rows[~decoded][0]))

    def _error(self, row: int) -> SourceError:
        """The error of a row whose frame could not be decoded."""
        location = self.locate(row)[0]
        where = f"row {row}, {location.file}, {location.part}"
        frame = self._rows.frames[[row]]
        ((group, _),) = self._decoder.table.by_group(frame)
        reason: object = "a frame before it is damaged"
        try:
            list(self._decoder.decode(group, frame))
        except FrameError as error:
            reason = error
        return SourceError(
            f"{where}: the frame can't be decoded: {reason}; copy the file again, leave "
            f"the row out: dataset.exclude([{row}]), or pass on_error='mask' to the "
            "Dataloader (damaged='accept' takes what can be decoded)"
        )


@final
class _Pixels(BaseSource):
    """Row i: pixels of a frame, and whether they could be decoded. Chunks are read whole although parts are damaged."""

    spec: Tree = None
    traits = Traits(owns_memory=True, reads_columns=True)

    def __init__(self, decoder: Decoder, rows: FrameRows, image: ArraySpec):
        self._decoder = decoder
        self._rows = rows
        self._length = len(rows.frames)
        self.spec = (image, ArraySpec((), np.dtype(bool)))

    @property
    def chunks(self) -> Integers:
        return self._rows.chunks

    read = read_columns

    def read_into(self, rows: Integers, boxes: Boxes, out: Outputs) -> None:
        images, decoded = out
        columns = boxes[0]
        assert images is not None
        assert decoded is not None
        assert columns is not None
        cut = tuple(slice(*column) for column in columns)
        decoded[...] = False
        frames = self._rows.frames[rows]
        for group, places in self._decoder.table.by_group(frames):
            try:
                for indices, pixels in self._decoder.decode(group, frames[places]):
                    images[places[indices]] = pixels[cut]
                    decoded[places[indices]] = True
            except FrameError:
                continue
