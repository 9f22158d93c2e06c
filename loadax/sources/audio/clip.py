"""A clip of a file: its samples at another rate, followed by zeros where the file ends within it."""

from collections.abc import Callable

import numpy as np

from loadax.sources.audio.resample import needed, resample
from loadax.sources.audio.sound_files import Samples


def clip_of(
    read: Callable[[int, int], Samples],
    frames: int,
    given: int,
    rate: int,
    start: int,
    samples: int,
    *,
    mono: bool,
) -> Samples:
    """Reads a clip.

    Args:
        read: Reads the samples between two places of the file at its own rate.
        frames: Samples of the file.
        given: Rate of the file.
        rate: Rate of the clip.
        start: Sample of that rate at which the clip begins.
        samples: Samples of the clip.
        mono: Whether it is the mean of the channels, without a dimension.

    Returns:
        float32[samples, channels], or float32[samples].

    Raises:
        SoundError: When its samples can't be decoded.
    """
    stop = min(start + samples, frames * rate // given)
    first, end = needed(given, rate, start, stop)
    low = max(first, 0)
    high = min(end, frames)
    stored = read(low, high)
    if mono:
        stored = stored.mean(1, keepdims=True)
    around = np.pad(stored, ((low - first, end - high), (0, 0)))
    clip = resample(around, given, rate, start, stop)
    clip = np.pad(clip, ((0, samples - len(clip)), (0, 0)))
    if mono:
        return clip[:, 0]
    return clip
