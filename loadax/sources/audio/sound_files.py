"""Reads samples of audio files: by seeking with soundfile, or all of a file, with PyAV where soundfile can't."""

import os
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from loadax.core.formatting import count_text
from loadax.files.byte_ranges import FileInfo
from loadax.files.files import check_unchanged
from loadax.protocols import Integers
from loadax.sources.decoded_parts import DecodedParts

# Samples of a file: float32[n, channels]
Samples = NDArray[np.float32]
_SAMPLE_BYTES = 4

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


class SoundTable(NamedTuple):
    """Facts of audio files, int64[files] each; see `Sound`."""

    frames: Integers
    rates: Integers
    channels: Integers
    whole: Integers


@final
class SoundFiles:
    """Reads parts of audio files. Thread-safe.

    Args:
        locations: Paths of the files.
        infos: Size and time of change of each when it was opened.
        table: Facts of each.
        memory_bytes: Memory for files that are decoded as a whole.
    """

    def __init__(
        self,
        locations: Sequence[str],
        infos: Sequence[FileInfo],
        table: SoundTable,
        memory_bytes: int,
    ):
        self.locations = locations
        self.table = table
        self._infos = infos
        self._whole = DecodedParts(self._decode, self._size, memory_bytes, 1)

    def read(self, file: int, start: int, stop: int) -> Samples:
        """Samples of a file at its own rate.

        Raises:
            SoundError: When they can't be decoded.
            SourceError: When the file is missing or has changed.
        """
        check_unchanged(self.locations[file], self._infos[file])
        if self.table.whole[file]:
            samples = self._whole.get(file)[start:stop]
        else:
            samples = part_of(os.fsencode(self.locations[file]), start, stop - start)
        return checked(samples, start, stop)

    def _decode(self, file: int) -> Samples:
        location = self.locations[file]
        if location.lower().endswith(_OTHERS):
            return decoded(location)[0]
        return part_of(os.fsencode(location), 0, -1)

    def _size(self, file: int) -> int:
        """Bytes of a decoded file."""
        return int(
            self.table.frames[file] * self.table.channels[file] * _SAMPLE_BYTES
        )


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
            f"it ends after {count_text(start + len(samples), 'sample')}, though it "
            "says more"
        )
    return samples
