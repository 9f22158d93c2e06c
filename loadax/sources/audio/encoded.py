"""EncodedAudio: decodes the bytes of audio files to clips, for `Dataset.decode_audio`."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, final

import numpy as np

from loadax.core.arguments import integer
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.protocols import ArraySpec
from loadax.sources.audio.clip import clip_of
from loadax.sources.audio.format import FORMAT
from loadax.sources.audio.open import duration
from loadax.sources.audio.resample import is_simple
from loadax.sources.audio.sound_files import (
    Samples,
    Sound,
    SoundError,
    checked,
    decoded,
    header_of,
    part_of,
)
from loadax.sources.clips import Clip, checked_clip, clip_start
from loadax.sources.library import require


@final
@dataclass(frozen=True)
class EncodedAudio:
    """Decodes the bytes of an audio file to a clip.

    Args:
        rate: Samples a second.
        samples: Samples of a clip; None: all of the file.
        channels: Number of channels; None: their mean, without a dimension.
        clip: Which clip of the file.
        seed: Seed of random clips; None: it is not given.
    """

    rate: int
    samples: int | None
    channels: int | None
    clip: Clip
    seed: int | None = None
    verb: ClassVar[str] = "decode_audio"
    noun: ClassVar[str] = "audio"
    made_of: ClassVar[str] = "samples"
    failures: ClassVar[tuple[type[Exception], ...]] = (SoundError,)

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of a clip; None: it depends on the file."""
        if self.samples is None:
            return None
        if self.channels is None:
            return ArraySpec((self.samples,), np.dtype(np.float32))
        return ArraySpec((self.samples, self.channels), np.dtype(np.float32))

    @property
    def is_random(self) -> bool:
        """Whether clips are drawn."""
        return self.clip == "random"

    def arguments(self) -> dict[str, Any]:
        """Arguments to show."""
        seconds = None if self.samples is None else self.samples / self.rate
        return {
            "rate": self.rate,
            "seconds": seconds,
            "channels": self.channels,
            "clip": self.clip,
        }

    def __call__(self, content: bytes, rng: np.random.Generator | None) -> Samples:
        """Decodes a clip: float32[samples], or float32[samples, channels].

        Raises:
            SoundError: When it can't be decoded, or has other channels.
        """
        sound, read = _opened(content)
        if not sound.frames:
            raise SoundError("it has no samples")
        if self.channels not in (None, sound.channels):
            raise SoundError(
                f"it has {count_text(sound.channels, 'channel')}, and "
                f"channels={self.channels}; pass channels='mono' to have their mean"
            )
        if not is_simple(sound.rate, self.rate):
            raise SoundError(
                f"it has {sound.rate} samples a second, and the ratio of rate="
                f"{self.rate} to that is not one of small numbers; pass a common rate, "
                "such as 16000"
            )
        length = sound.frames * self.rate // sound.rate
        if self.samples is None:
            samples = length
        else:
            samples = self.samples
        return clip_of(
            read,
            sound.frames,
            sound.rate,
            self.rate,
            clip_start(self.clip, length, samples, rng),
            samples,
            mono=self.channels is None,
        )

    def failure_text(self, error: Exception) -> str:
        """Tells why a file can't be decoded, after its name."""
        return f"can't be decoded as audio: {error}"

    def unequal(self, found: tuple[int, ...], first: tuple[int, ...]) -> str:
        """Tells that a clip has another shape than the first one, after its name."""
        return (
            f"has {found[0]} samples, but the first has {first[0]}; pass seconds= to "
            "decode_audio, or pad or pack the leaf"
        )


def _opened(content: bytes) -> tuple[Sound, Callable[[int, int], Samples]]:
    """Facts of a file, and the function that reads its samples between two places."""
    try:
        sound = header_of(io.BytesIO(content))
    except SoundError:
        if find_spec("av") is None:
            raise
        # M4A, AAC, and the sound of videos
        whole, rate = decoded(io.BytesIO(content))
        sound = Sound(len(whole), rate, whole.shape[1], whole=True)
    else:
        if sound.reason:
            raise SoundError(sound.reason)
        if not sound.whole:
            return sound, lambda start, stop: checked(
                part_of(io.BytesIO(content), start, stop - start), start, stop
            )
        whole = part_of(io.BytesIO(content), 0, -1)
    return sound, lambda start, stop: checked(whole[start:stop], start, stop)


def encoded_audio(
    rate: Any, seconds: Any, channels: Any, clip: Any, seed: Any
) -> EncodedAudio:
    """Makes the decoder of `Dataset.decode_audio` from its arguments.

    Raises:
        ArgumentError: When an argument is invalid; shows it.
        UnsupportedError: When soundfile is not installed.
    """
    require("decode_audio", FORMAT.requires, FORMAT.extra)
    rate = integer("rate", rate, 1)
    if channels == "mono":
        number = None
    else:
        number = integer("channels", channels, 1, remedy="'mono', or their number")
    which = checked_clip(clip, seed)
    if seconds is None:
        return EncodedAudio(rate, None, number, which, seed)
    length = duration("seconds", seconds)
    if not length:
        raise ArgumentError("seconds=0: pass the length of a clip, such as 2.5")
    samples = max(1, round(length * rate))
    return EncodedAudio(rate, samples, number, which, seed)
