"""Clips of the files of a column: where each begins."""

from typing import Any, Literal, TypeAlias, cast

import numpy as np

from loadax.core.arguments import choice, refuse_given

Clip: TypeAlias = Literal["first", "middle", "random"]


def checked_clip(clip: Any, seed: Any) -> Clip:
    """The argument `clip` of a verb.

    Raises:
        ArgumentError: When it is not one of the three, or there is a seed and nothing to draw.
    """
    choice("clip", clip, ("first", "middle", "random"))
    if clip != "random":
        refuse_given("clip='random'", seed=seed)
    return cast("Clip", clip)


def clip_start(
    clip: Clip, total: int, length: int, rng: np.random.Generator | None
) -> int:
    """The place at which a clip begins; 0 in a file that is shorter than it.

    Args:
        clip: Which clip.
        total: Length of the file.
        length: Length of the clip.
        rng: Generator of this row, for a random clip.

    Examples:
        >>> from loadax.sources.clips import clip_start
        >>> clip_start("middle", 10, 4, None), clip_start("middle", 3, 4, None)
        (3, 0)
    """
    last = max(0, total - length)
    if clip == "middle":
        return last // 2
    if clip == "random" and rng is not None:
        return int(rng.integers(last + 1))
    return 0
