"""Opens video files."""

from fractions import Fraction
from typing import Any

import numpy as np

from loadax.core.arguments import choice, integer
from loadax.core.formatting import some
from loadax.errors import ArgumentError, SourceError
from loadax.files.files import Files
from loadax.sources.expand import expand
from loadax.sources.file_index import index_files, refuse_damaged
from loadax.sources.format import RecordOptions
from loadax.sources.video.decoder import Decoder
from loadax.sources.video.format import FORMAT
from loadax.sources.video.frame_rows import frame_rows
from loadax.sources.video.frame_table import RECORDS, frame_table
from loadax.sources.video.group_decoder import FrameError, checked_resizing
from loadax.sources.video.source import VideoSource


def open_video(
    paths: Any,
    options: RecordOptions,
    fps: Any = None,
    size: Any = None,
    fit: Any = "crop",
    damaged: Any = "error",
    memory_bytes: Any = 256 << 20,
) -> VideoSource:
    """Opens video files; see `loadax.from_video`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        SourceError: When a file is missing, damaged or no video; names it.
        UnsupportedError: When OpenCV, for `size`, is not installed.
    """
    rate = frame_rate(fps)
    resizing = checked_resizing(size, fit)
    choice("damaged", damaged, ("error", "accept"))
    memory_bytes = integer("memory_bytes", memory_bytes, 0)
    files = Files()
    locations = expand(paths, FORMAT, files)
    entry = index_files(RECORDS, files, locations, options)
    refuse_damaged(entry, locations, damaged)
    table = frame_table(entry)
    if not len(table.times):
        raise SourceError(
            f"{some(locations, 1)} has no frame that can be read; pass other files"
        )
    infos = files.infos(locations)
    strict = damaged == "error"
    decoder = Decoder(locations, infos, table, resizing, strict=strict)
    decoder.size = resizing.size or _first_size(decoder)
    return VideoSource(decoder, frame_rows(table, rate), memory_bytes)


def frame_rate(fps: Any) -> Fraction | None:
    """Rows a second, as a fraction of small numbers: files have 30000 / 1001."""
    if fps is None:
        return None
    try:
        rate = Fraction(fps).limit_denominator(1001)
    except (TypeError, ValueError, OverflowError):
        rate = Fraction(0)
    if not 0 < rate <= 1_000_000:
        raise ArgumentError(
            f"fps={fps!r}: pass the frames of a second, such as 10 or 29.97"
        )
    return rate


def _first_size(decoder: Decoder) -> tuple[int, int]:
    """Height and width of the first frame."""
    first = np.zeros(1, np.int64)
    file = decoder.table.files_of(first)[0]
    try:
        ((_, pixels),) = decoder.decode(0, first)
    except FrameError as error:
        raise SourceError(
            f"{decoder.locations[file]}: the first frame can't be decoded: {error}; "
            "copy the file again, or pass size=(height, width)"
        ) from error
    height, width, _ = pixels.shape
    return height, width
