"""FrameRows: the frames that are rows, at their own times or at a fixed rate, and their chunks."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from loadax.protocols import Integers
from loadax.sources.video.frame_table import FrameTable

# Frames of a chunk: of a longer group of pictures each chunk is decoded from the keyframe on, so that no chunk takes
# more memory than these.
LONGEST = 256


class FrameRows(NamedTuple):
    """Rows of frames.

    Args:
        frames: Number of the frame of each row, int64[rows], ascending.
        groups: First row of each file with rows, int64[files].
        chunks: First row of each chunk, int64[chunks].
    """

    frames: Integers
    groups: Integers
    chunks: Integers


def frame_rows(table: FrameTable, fps: Fraction | None) -> FrameRows:
    """The rows of all frames, or of those on display at a fixed rate.

    Args:
        table: The frames.
        fps: Rows a second; None: each frame is a row.
    """
    if fps is None:
        frames = np.arange(len(table.times))
    else:
        shown = [
            _shown(table, file, fps)
            for file in range(len(table.ends))
            if table.ends[file] > table.begins[file]
        ]
        frames = np.concatenate([np.empty(0, np.int64), *shown])
    files = table.files_of(frames)
    groups = np.flatnonzero(np.diff(files, prepend=-1))
    sizes = np.diff(table.firsts, append=len(table.times))
    since_key = np.arange(len(table.times)) - np.repeat(table.firsts, sizes)
    firsts = np.flatnonzero(since_key % LONGEST == 0)
    # At a low rate, some have no row.
    chunks = np.unique(np.searchsorted(frames, firsts))
    return FrameRows(frames, groups, chunks[chunks < len(frames)])


def _shown(table: FrameTable, file: int, fps: Fraction) -> Integers:
    """Frames of a file that are on display at each of the times 0, 1 / fps, 2 / fps, … after the first."""
    begin = int(table.begins[file])
    end = int(table.ends[file])
    times = table.times[begin:end] - table.times[begin]
    numerator, denominator = table.ticks[file].tolist()
    ticks = 1 / (fps * Fraction(numerator, denominator))  # between rows
    length = int(times[-1] + table.lasts[file])
    count = max(1, -(-length * ticks.denominator // ticks.numerator))
    # Files round times to ticks, of which a frame may take one or many.
    tenths = min(5, int(np.median(np.diff(times, append=length))))
    at = np.arange(count) * 10 * ticks.numerator + tenths * ticks.denominator
    at //= 10 * ticks.denominator
    return begin + np.searchsorted(times, at, side="right") - 1
