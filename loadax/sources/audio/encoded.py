"""EncodedAudio: decodes the bytes of audio files to clips, for `Dataset.decode_audio`."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, final

import numpy as np

from loadax.core.arguments import integer
from loadax.core.formatting import count_text
from loadax.protocols import ArraySpec
from loadax.sources.audio.clip import ClipForm
from loadax.sources.audio.format import FORMAT
from loadax.sources.audio.open import clip_seconds
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
        form: Form of the clips.
        clip: Which clip of the file.
        seed: Seed of random clips; None: it is not given.
    """

    form: ClipForm
    clip: Clip
    seed: int | None = None
    verb: ClassVar[str] = "decode_audio"
    noun: ClassVar[str] = "audio"
    made_of: ClassVar[str] = "samples"
    failures: ClassVar[tuple[type[Exception], ...]] = (SoundError,)

    @property
    def spec(self) -> ArraySpec | None:
        """The spec of a clip; None: it depends on the file."""
        return self.form.spec

    @property
    def is_random(self) -> bool:
        """Whether clips are drawn."""
        return self.clip == "random"

    def arguments(self) -> dict[str, Any]:
        """Arguments to show."""
        rate, samples, channels = self.form
        seconds = None if samples is None else samples / rate
        return {
            "rate": rate,
            "seconds": seconds,
            "channels": channels,
            "clip": self.clip,
        }

    def __call__(self, content: bytes, rng: np.random.Generator | None) -> Samples:
        """Decodes a clip: float32[samples], or float32[samples, channels].

        Raises:
            SoundError: When it can't be decoded, or has other channels.
        """
        rate, samples, channels = self.form
        sound, read = _opened(content)
        if not sound.frames:
            raise SoundError("it has no samples")
        if channels not in (None, sound.channels):
            raise SoundError(
                f"it has {count_text(sound.channels, 'channel')}, and "
                f"channels={channels}; pass channels='mono' to have their mean"
            )
        if not is_simple(sound.rate, rate):
            raise SoundError(
                f"its rate is {sound.rate} Hz, and the ratio of rate={rate} to that is "
                "not one of small numbers; pass a common rate, such as 16000"
            )
        length = sound.frames * rate // sound.rate
        start = clip_start(self.clip, length, samples or length, rng)
        return self.form.clip(read, sound.frames, sound.rate, start)

    def failure_text(self, error: Exception) -> str:
        """Tells why a file can't be decoded, after its name."""
        return f"can't be decoded as audio: {error}"

    def unequal(self, found: tuple[int, ...], first: tuple[int, ...]) -> str:
        """Tells that a clip has another shape than the first one, after its name."""
        return (
            f"has {count_text(found[0], 'sample')}, but the first has {first[0]}; "
            "pass seconds= to decode_audio, or pad or pack the leaf"
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
    samples = None
    if seconds is not None:
        samples = max(1, round(clip_seconds(seconds) * rate))
    return EncodedAudio(ClipForm(rate, samples, number), which, seed)
