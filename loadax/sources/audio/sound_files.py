"""Reads samples of audio files: by seeking with soundfile, or all of a file, with PyAV where soundfile can't."""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, BinaryIO, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.files.byte_ranges import FileInfo
from loadax.files.files import check_unchanged

# Samples of a file: float32[n, channels]
Samples = NDArray[np.float32]

# Encodings in which a sample has bytes of its own, and FLAC, whose frames stand alone: others, such as Vorbis and MP3,
# give other samples after a seek.
_EXACT = (
    "PCM_S8",
    "PCM_U8",
    "PCM_16",
    "PCM_24",
    "PCM_32",
    "FLOAT",
    "DOUBLE",
    "ULAW",
    "ALAW",
)
# Endings of formats that only PyAV reads, some of which are videos with sound.
_OTHERS = (".m4a", ".aac", ".mp4", ".m4v", ".mkv", ".webm", ".mov", ".avi")


class Sound(NamedTuple):
    """Facts of an audio file.

    Args:
        frames: Samples of each channel.
        rate: Samples a second.
        channels: Number of channels.
        whole: Whether the file is decoded as a whole, since no part of it can be read exactly.
        reason: What is wrong with it; "" if nothing is.
    """

    frames: int
    rate: int
    channels: int
    whole: bool
    reason: str = ""


class SoundError(Exception):
    """Samples that can't be decoded."""


def sound_of(location: str) -> Sound:
    """Facts of a file; of one that only PyAV reads by decoding it.

    Raises:
        SoundError: When it can't be read as audio.
    """
    if location.lower().endswith(_OTHERS):
        samples, rate = decoded(location)
        count, channels = samples.shape
        return Sound(count, rate, channels, whole=True)
    return header_of(os.fsencode(location))


def header_of(file: bytes | BinaryIO) -> Sound:
    """Facts of a file that soundfile reads.

    Args:
        file: Path of the file, or an open one.

    Raises:
        SoundError: When it can't.
    """
    import soundfile

    try:
        with soundfile.SoundFile(file) as opened:
            # what libsndfile has found in the header
            short = "(should be" in opened.extra_info and opened.format.startswith(
                "WAV"
            )
            return Sound(
                opened.frames,
                opened.samplerate,
                opened.channels,
                opened.subtype not in _EXACT,
                "it is cut short" * short,
            )
    except soundfile.LibsndfileError as error:
        raise SoundError(error.error_string.rstrip(".")) from error


def decoded(file: str | BinaryIO) -> tuple[Samples, int]:
    """All samples of a file, and their rate, by PyAV.

    Args:
        file: Path of the file, or an open one.

    Raises:
        SoundError: When it can't be read as audio.
        UnsupportedError: When PyAV is not installed.
    """
    from loadax.sources.library import require

    require(f"{file}, which soundfile can't read,", {"av": "av"}, "video")
    import av
    from av.error import FFmpegError

    parts = []
    rate = 1
    try:
        container: Any
        with av.open(file, metadata_errors="replace") as container:
            if not container.streams.audio:
                raise SoundError("it has no audio stream")
            packed = av.AudioResampler("flt")
            for frame in container.decode(audio=0):
                rate = frame.sample_rate
                channels = frame.layout.nb_channels
                parts += [
                    each.to_ndarray().reshape(-1, channels)
                    for each in packed.resample(frame)
                ]
    except (FFmpegError, ValueError) as error:
        raise SoundError(getattr(error, "strerror", None) or str(error)) from error
    if not parts:
        raise SoundError("it has no samples")
    return np.concatenate(parts), rate


@final
class SoundFiles:
    """Reads parts of audio files. Thread-safe.

    Args:
        locations: Paths of the files.
        infos: Size and time of change of each when it was opened.
        whole: Files that are decoded as a whole, bool[files].
        memory_bytes: Memory for those that are kept decoded.
    """

    def __init__(
        self,
        locations: Sequence[str],
        infos: Sequence[FileInfo],
        whole: NDArray[np.bool_],
        memory_bytes: int,
    ):
        self.locations = locations
        self.whole = whole
        self._infos = infos
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Future[Samples]] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _kept=OrderedDict())

    def read(self, file: int, start: int, stop: int) -> Samples:
        """Samples of a file at its own rate.

        Raises:
            SoundError: When they can't be decoded.
            SourceError: When the file is missing or has changed.
        """
        check_unchanged(self.locations[file], self._infos[file])
        if self.whole[file]:
            samples = self._all(file)[start:stop]
        else:
            samples = part_of(os.fsencode(self.locations[file]), start, stop - start)
        return checked(samples, start, stop)

    def _all(self, file: int) -> Samples:
        """A decoded file, which one thread decodes."""
        with self._lock:
            future = self._kept.get(file)
            is_mine = future is None
            if future is None:
                future = self._kept[file] = Future()
            self._kept.move_to_end(file)
        if is_mine:
            try:
                if self.locations[file].lower().endswith(_OTHERS):
                    future.set_result(decoded(self.locations[file])[0])
                else:
                    future.set_result(
                        part_of(os.fsencode(self.locations[file]), 0, -1)
                    )
            except BaseException as error:  # noqa: BLE001 - raised by all that wait
                future.set_exception(error)
        try:
            return future.result()
        finally:
            self._evict()

    def _evict(self) -> None:
        """Forgets failed files, and those but the last that take too much memory, the least recently used first."""
        with self._lock:
            total = 0
            for file, future in reversed([*self._kept.items()]):
                if not future.done():
                    continue
                if future.exception() is not None:
                    del self._kept[file]
                    continue
                size = future.result().nbytes
                if total and total + size > self._memory_bytes:
                    del self._kept[file]
                else:
                    total += size


def part_of(file: bytes | BinaryIO, start: int, count: int) -> Samples:
    """Samples of a file from `start` on, by soundfile; `count` of -1: all.

    Raises:
        SoundError: When they can't be decoded.
    """
    import soundfile

    try:
        with soundfile.SoundFile(file) as opened:
            if start:
                opened.seek(start)
            samples: Samples = opened.read(count, dtype="float32", always_2d=True)
            return samples
    except soundfile.LibsndfileError as error:
        raise SoundError(error.error_string.rstrip(".")) from error


def checked(samples: Samples, start: int, stop: int) -> Samples:
    """The samples of a file from `start` to `stop`, if all are there.

    Raises:
        SoundError: When the file has fewer than its header says.
    """
    if len(samples) < stop - start:
        raise SoundError(
            f"it ends after {start + len(samples)} samples, though it says more"
        )
    return samples
