"""FrameTable: times and groups of pictures of the frames of video files, found without decoding any."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from loadax.core.formatting import count_text
from loadax.kept.index_folder import Entry, check_array
from loadax.protocols import Integers
from loadax.sources.file_index import (
    REASONS,
    RecordFormat,
    Scan,
    check_reasons,
    merge_records,
)

# Seconds by which the packets may end before the file says, for rounding.
_ROUNDING = 0.01
_LOOKED_AT = 32  # packets of an .avi file


class FrameTable(NamedTuple):
    """Frames of all files, in presentation order.

    A group of pictures is a keyframe and the frames that are shown before the next one. Frames that are shown before
    the first keyframe of a file belong to a picture that it lacks, and are left out.

    Args:
        ends: Number of frames of each file and all before it, int64[files].
        times: Presentation time of each frame in ticks of its file, int64[frames].
        ticks: Ticks of each file, as the numerators and the denominators of a fraction of a second: int64[files, 2].
        lasts: Ticks for which the last frame of each file is shown, int64[files].
        firsts: First frame of each group, int64[groups].
    """

    ends: Integers
    times: Integers
    ticks: Integers
    lasts: Integers
    firsts: Integers

    @property
    def begins(self) -> Integers:
        """First frame of each file."""
        return np.append(0, self.ends[:-1])

    def files_of(self, frames: Integers) -> Integers:
        """The files that frames are in."""
        return np.searchsorted(self.ends, frames, side="right")

    def frames_of(self, group: int) -> range:
        """The frames of a group."""
        first, end = np.append(self.firsts, len(self.times))[
            group : group + 2
        ].tolist()
        return range(first, end)

    def by_group(self, frames: Integers) -> Iterator[tuple[int, Integers]]:
        """Yields the groups that frames are in, each with the indices of those."""
        groups = np.searchsorted(self.firsts, frames, side="right") - 1
        for group in np.unique(groups).tolist():
            yield group, np.flatnonzero(groups == group)

    def seconds(self, frames: Integers) -> Any:
        """Seconds from the first frame of its file to each frame, float64[n]."""
        files = self.files_of(frames)
        since = self.times[frames] - self.times[self.begins[files]]
        return since * self.ticks[files, 0] / self.ticks[files, 1]


def frame_table(entry: Entry) -> FrameTable:
    """The table of an entry of the index."""
    arrays = entry.arrays
    groups = np.repeat(
        np.cumsum(arrays["frames"]) - arrays["frames"], arrays["groups"]
    )
    return FrameTable(
        np.cumsum(arrays["frames"]),
        arrays["times"],
        arrays["ticks"].reshape(-1, 2),
        arrays["lasts"],
        arrays["firsts"] + groups,
    )


def _scan(location: str, size: int) -> Scan[Entry]:  # noqa: ARG001
    """Reads the packets of a file; PyAV opens it itself."""
    import av
    from av.error import FFmpegError

    yield from ()
    try:
        with av.open(location, metadata_errors="replace") as container:
            return read_packets(container)
    except (FFmpegError, ValueError, OverflowError) as error:
        return packets_entry(
            reason=f"it can't be read as a video: {error_text(error)}"
        )


def read_packets(container: Any) -> Entry:
    """The frames of an open video, by its packets."""
    from av.error import FFmpegError

    stream: Any = container.streams.best("video")
    if stream is None or stream.codec_context is None:
        return packets_entry(reason="it has no video stream that PyAV can decode")
    if "avi" in container.format.name and not _in_order(container, stream):
        return packets_entry(
            reason="an .avi file can't tell when its frames are shown, as they are "
            "stored in another order; write it again: ffmpeg -i FILE FILE.mp4"
        )
    base = stream.time_base
    times: list[Any] = []
    keys = []
    durations = [1]
    reason = ""
    try:
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard:
                times.append(packet.pts)
                keys.append(packet.is_keyframe)
                durations.append(packet.duration or durations[-1])
                if packet.is_corrupt:
                    reason = f"the packet of frame {len(times) - 1} is damaged"
    except FFmpegError as error:
        reason = (
            f"it ends after {count_text(len(times), 'frame')}: {error_text(error)}"
        )
    if None in times:
        return packets_entry(
            reason="frames have no time at which they are shown; write it again as "
            ".mp4 or .mkv"
        )
    said = _stated_seconds(stream)
    seconds = float((np.ptp(times or [0]) + 1.5 * max(durations)) * base)
    if len(times) < stream.frames:
        frames = count_text(stream.frames, "frame")
        reason = f"it is cut short: {len(times)} of {frames} are there"
    elif said > seconds + _ROUNDING:
        reason = f"it is cut short: {seconds:.2f} of {said:.2f} seconds are there"
    ticks = (base.numerator, base.denominator)
    return packets_entry(times, keys, durations[-1], ticks, reason)


def _in_order(container: Any, stream: Any) -> bool:
    """Whether the first frames are stored in the order in which they are shown."""
    packets = islice(container.demux(stream), _LOOKED_AT)
    frames = [frame for packet in packets for frame in packet.decode()]
    container.seek(0)
    return bool(np.all(np.diff([frame.pts for frame in frames]) > 0))


def _stated_seconds(stream: Any) -> float:
    """Length of the stream that Matroska files state, in seconds; 0.0: none is stated."""
    stated = re.fullmatch(
        r"(\d+):(\d+):(\d+\.\d+)", stream.metadata.get("DURATION", "")
    )
    if stated is None:
        return 0.0
    hours, minutes, seconds = map(float, stated.groups())
    return hours * 3600 + minutes * 60 + seconds


def packets_entry(
    shown: Sequence[int] = (),
    is_key: Sequence[bool] = (),
    last: int = 1,
    ticks: tuple[int, int] = (1, 1),
    reason: str = "",
) -> Entry:
    """The frames and groups of a file.

    Args:
        shown: Presentation time of each frame in ticks, in decoding order.
        is_key: Whether each is a keyframe.
        last: Ticks for which the last frame is shown.
        ticks: Numerator and denominator of a tick in seconds.
        reason: What is wrong with the file; "" if nothing is.
    """
    times = np.array(shown, np.int64)
    keys = np.flatnonzero(np.array(is_key, bool))
    if len(np.unique(times)) < len(times):
        reason = "two frames are shown at the same time"
        keys = keys[:0]
    elif not len(keys):
        reason = reason or "it has no keyframe"
    # A keyframe that is shown before an earlier one begins no group.
    latest = np.maximum.accumulate(times[keys])
    keys = keys[np.diff(latest, prepend=np.iinfo(np.int64).min // 2) > 0]
    order = np.argsort(times)
    order = order[np.searchsorted(times[order], times[keys[:1]]).sum() :]
    if not len(keys):
        order = order[:0]
    arrays = {
        "frames": np.array([len(order)]),
        "times": times[order],
        "ticks": np.array(ticks, np.int64),
        "lasts": np.array([max(1, last)]),
        "groups": np.array([len(keys)]),
        "firsts": np.searchsorted(times[order], times[keys]),
    }
    return Entry(arrays, {REASONS: [reason]})


def _check(entry: Entry, sizes: Integers) -> None:
    """Checks an entry that was loaded from an index.

    Raises:
        ValueError: If it can't be one of these files.
    """
    files = len(sizes)
    most = int(sizes.sum())
    frames = check_array(entry, "frames", np.int64, files, 0, most)
    groups = check_array(entry, "groups", np.int64, files, 0, most)
    check_array(entry, "times", np.int64, sum(frames.tolist()))
    check_array(entry, "ticks", np.int64, 2 * files, 1)
    check_array(entry, "lasts", np.int64, files, 1)
    check_array(entry, "firsts", np.int64, sum(groups.tolist()), 0)
    check_reasons(entry, files)
    table = frame_table(entry)
    begins = np.flatnonzero(np.diff(table.files_of(table.firsts), prepend=-1))
    if (
        ((groups > 0) != (frames > 0)).any()
        or (np.diff(table.firsts) <= 0).any()
        or (table.firsts >= len(table.times)).any()
        or not np.array_equal(table.firsts[begins], table.begins[frames > 0])
    ):
        raise ValueError("groups of pictures are not in their files")


def error_text(error: Exception) -> str:
    """What PyAV says of an error, without the number and the path."""
    return str(getattr(error, "strerror", None) or error)


# The format of video files, whose records are frames.
RECORDS = RecordFormat("from_video", "video 2", _scan, merge_records, _check)
