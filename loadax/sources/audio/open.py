"""Opens audio files."""

from typing import Any

import numpy as np

from loadax.core.arguments import choice, integer
from loadax.core.formatting import count_text, some
from loadax.errors import ArgumentError, SourceError
from loadax.files.files import Files
from loadax.kept.index_folder import Entry, check_array
from loadax.protocols import Integers
from loadax.sources.audio.clip import ClipForm
from loadax.sources.audio.format import FORMAT
from loadax.sources.audio.resample import is_simple
from loadax.sources.audio.sound_files import (
    Sound,
    SoundError,
    SoundFiles,
    SoundTable,
    sound_of,
)
from loadax.sources.audio.source import AudioSource
from loadax.sources.expand import expand
from loadax.sources.file_index import (
    REASONS,
    RecordFormat,
    Scan,
    check_reasons,
    index_files,
    merge_records,
    refuse_damaged,
)
from loadax.sources.format import RecordOptions

_NUMBERS = ("frames", "rate", "channels", "whole")


def open_audio(
    paths: Any,
    options: RecordOptions,
    seconds: Any,
    overlap: Any = 0,
    rate: Any = None,
    channels: Any = None,
    tail: Any = "drop",
    damaged: Any = "error",
    memory_bytes: Any = 256 << 20,
) -> AudioSource:
    """Opens audio files; see `loadax.from_audio`.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        SourceError: When a file is missing, damaged, no audio, or unlike the others; names it.
        UnsupportedError: When PyAV, for a file that soundfile can't read, is not installed.
    """
    choice("tail", tail, ("drop", "pad"))
    choice("damaged", damaged, ("error", "accept"))
    memory_bytes = integer("memory_bytes", memory_bytes, 0)
    if rate is not None:
        rate = integer("rate", rate, 1)
    if channels not in (None, "mono"):
        channels = integer("channels", channels, 1, remedy="'mono', or their number")
    length = clip_seconds(seconds)
    shared = duration("overlap", overlap)
    files = Files()
    locations = expand(paths, FORMAT, files)
    entry = index_files(_RECORDS, files, locations, options)
    refuse_damaged(entry, locations, damaged)
    table = SoundTable(*(entry.arrays[name] for name in _NUMBERS))
    good = np.flatnonzero(table.frames).tolist()
    if not good:
        raise SourceError(f"{some(locations, 1)} has no samples; pass other files")
    wanted = rate or int(table.rates[good[0]])
    number = None
    if channels != "mono":
        number = channels or int(table.channels[good[0]])
    for file in good:
        facts = int(table.rates[file]), int(table.channels[file])
        _check(locations[file], *facts, wanted, number, rate)
    samples = max(1, round(length * wanted))
    hop = samples - round(shared * wanted)
    if hop < 1:
        raise ArgumentError(
            f"overlap={overlap!r}: clips of {seconds!r} seconds that share as much never "
            "move on; pass less"
        )
    reader = SoundFiles(locations, files.infos(locations), table, memory_bytes)
    form = ClipForm(wanted, samples, number)
    source = AudioSource(reader, form, hop, padded=tail == "pad")
    if not len(source):
        lengths = table.frames / table.rates
        longest = int(np.argmax(lengths))
        raise SourceError(
            f"no file has a clip of {seconds!r} seconds: the longest, "
            f"{locations[longest]}, has {lengths[longest]:.3f}; pass fewer seconds, or "
            "tail='pad'",
            argument="seconds",
        )
    return source


def clip_seconds(given: Any) -> float:
    """The argument `seconds`: the length of a clip."""
    length = duration("seconds", given)
    if not length:
        raise ArgumentError("seconds=0: pass the length of a clip, such as 2.5")
    return length


def duration(name: str, given: Any) -> float:
    """A length of time in seconds."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.number):
        value = -1.0
    else:
        value = float(given)
    if not 0 <= value < float("inf"):
        raise ArgumentError(f"{name}={given!r}: pass seconds, such as 2.5")
    return value


def _check(
    location: str,
    own_rate: int,
    own_channels: int,
    wanted: int,
    number: int | None,
    rate: int | None,
) -> None:
    """Checks that a file is like the others, or can be made so.

    Raises:
        SourceError: When it is not; names it.
    """
    if number not in (None, own_channels):
        raise SourceError(
            f"{location} has {count_text(own_channels, 'channel')}, and others "
            f"have {number}; pass channels='mono' to have the mean of the channels "
            "of each, or files of equal ones",
            argument="channels",
        )
    if own_rate != wanted and rate is None:
        raise SourceError(
            f"{location} has a rate of {own_rate} Hz, and others have {wanted} Hz; "
            f"pass rate={wanted} to convert all to that",
            argument="rate",
        )
    if not is_simple(own_rate, wanted):
        raise ArgumentError(
            f"rate={wanted}: {location} has a rate of {own_rate} Hz, and the ratio "
            "of the two is not one of small numbers; pass a common rate, such as "
            "16000, 22050 or 48000"
        )


def _scan(location: str, size: int) -> Scan[Entry]:  # noqa: ARG001
    """Facts of a file, which soundfile or PyAV opens itself."""
    yield from ()
    try:
        sound = sound_of(location)
    except SoundError as error:
        sound = Sound(0, 1, 1, False, f"it can't be read as audio: {error}")
    numbers = zip(_NUMBERS, sound[:-1], strict=True)
    arrays = {name: np.array([number], np.int64) for name, number in numbers}
    return Entry(arrays, {REASONS: [sound.reason]})


def _check_entry(entry: Entry, sizes: Integers) -> None:
    for name, least in zip(_NUMBERS, (0, 1, 1, 0), strict=True):
        check_array(entry, name, np.int64, len(sizes), least)
    check_reasons(entry, len(sizes))


_RECORDS = RecordFormat("from_audio", "audio 1", _scan, merge_records, _check_entry)
