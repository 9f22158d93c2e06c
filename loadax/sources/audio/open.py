"""Opens audio files."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from loadax.core.arguments import choice, integer
from loadax.core.formatting import count_text, some
from loadax.errors import ArgumentError, SourceError
from loadax.files.files import Files
from loadax.kept.index_folder import Entry, check_array
from loadax.protocols import Integers
from loadax.sources.audio.format import FORMAT
from loadax.sources.audio.resample import is_simple
from loadax.sources.audio.sound_files import Sound, SoundError, SoundFiles, sound_of
from loadax.sources.audio.source import AudioSource, Clips
from loadax.sources.expand import expand
from loadax.sources.file_index import (
    RecordFormat,
    Scan,
    columns_of,
    index_files,
    merged,
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
    length = duration("seconds", seconds)
    if not length:
        raise ArgumentError("seconds=0: pass the length of a clip, such as 2.5")
    shared = duration("overlap", overlap)
    files = Files()
    locations = expand(paths, FORMAT, files)
    entry = index_files(_RECORDS, files, locations, options)
    columns = (entry.arrays[name].tolist() for name in _NUMBERS)
    sounds = list(map(Sound, *columns, entry.facts["reasons"]))
    refuse_damaged([sound.reason for sound in sounds], locations, damaged)
    good = [file for file, sound in enumerate(sounds) if sound.frames]
    if not good:
        raise SourceError(f"{some(locations, 1)} has no samples; pass other files")
    first = sounds[good[0]]
    wanted = rate or first.rate
    mono = channels == "mono"
    if mono:
        number = 1
    else:
        number = channels or first.channels
    for file in good:
        _check(sounds[file], locations[file], wanted, number, mono, rate)
    samples = max(1, round(length * wanted))
    hop = samples - round(shared * wanted)
    if hop < 1:
        raise ArgumentError(
            f"overlap={overlap!r}: clips of {seconds!r} seconds that share as much never "
            "move on; pass less"
        )
    whole = np.array([sound.whole for sound in sounds], bool)
    reader = SoundFiles(locations, files.infos(locations), whole, memory_bytes)
    clips = Clips(
        np.array([sound.frames * wanted // sound.rate for sound in sounds]),
        np.array([sound.frames for sound in sounds]),
        np.array([sound.rate for sound in sounds]),
        wanted,
        samples,
        hop,
        number,
        mono=mono,
        padded=tail == "pad",
    )
    source = AudioSource(reader, clips)
    if not len(source):
        lengths = [sound.frames / sound.rate for sound in sounds]
        longest = int(np.argmax(lengths))
        raise SourceError(
            f"no file has a clip of {seconds!r} seconds: the longest, "
            f"{locations[longest]}, has {lengths[longest]:.3f}; pass fewer seconds, or "
            "tail='pad'",
            argument="seconds",
        )
    return source


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
    sound: Sound,
    location: str,
    wanted: int,
    number: int,
    mono: bool,
    rate: int | None,
) -> None:
    """Checks that a file is like the others, or can be made so.

    Raises:
        SourceError: When it is not; names it.
    """
    if sound.channels != number and not mono:
        raise SourceError(
            f"{location} has {count_text(sound.channels, 'channel')}, and others have "
            f"{number}; pass channels='mono' to have the mean of the channels of each, or files of "
            "equal ones",
            argument="channels",
        )
    if sound.rate != wanted and rate is None:
        raise SourceError(
            f"{location} has {sound.rate} samples a second, and others have {wanted}; "
            f"pass rate={wanted} to convert all to that",
            argument="rate",
        )
    if not is_simple(sound.rate, wanted):
        raise ArgumentError(
            f"rate={wanted}: {location} has {sound.rate} samples a second, and the ratio "
            "of the two is not one of small numbers; pass a common rate, such as 16000, "
            "22050 or 48000"
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
    return Entry(arrays, {"reasons": [sound.reason]})


def _merge(entries: Iterable[Entry]) -> Entry:
    columns, facts = columns_of(entries)
    reasons = [reason for fact in facts for reason in fact["reasons"]]
    arrays = {name: merged(parts) for name, parts in columns.items()}
    return Entry(arrays, {"reasons": reasons})


def _check_entry(entry: Entry, sizes: Integers) -> None:
    for name, least in zip(_NUMBERS, (0, 1, 1, 0), strict=True):
        check_array(entry, name, np.int64, len(sizes), least)
    reasons = entry.facts["reasons"]
    if [type(reason) for reason in reasons] != [str] * len(sizes):
        raise ValueError("the reasons are not one text for each file")


_RECORDS = RecordFormat("from_audio", "audio 1", _scan, _merge, _check_entry)
