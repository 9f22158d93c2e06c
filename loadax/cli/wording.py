"""What the library says of arguments, for somebody who gives options on the command line."""

import re
from collections.abc import Iterable

_OPTIONS = (
    "batch_size",
    "cache_bytes",
    "chunk_rows",
    "dtype",
    "num_workers",
    "overwrite",
    "pad_to",
    "prefetch_bytes",
    "remainder",
    "resume",
    "seq_len",
    "shard_rows",
    "size",
    "variables",
    "worker_type",
)
"""Those whose argument has the same name and means the same."""

_VALUE = r"'[^']*'|\[[^\]]*\]|\([^)]*\)|-?\w+(?:\.\w+)*|…|"
_CALL = r"\w+\([^()]*\)"  # to stay as it is: such a line is for a program


def as_options(message: str, known: Iterable[str]) -> str:
    """A message with `--batch-size 3` for `batch_size=3`.

    Args:
        message: of an error, or advice.
        known: the options of the command; names of others stay as they are.

    Examples:
        >>> advice = "pass remainder='pad' to Dataloader(remainder='pad'), or a smaller batch_size"
        >>> as_options(advice, ["remainder", "batch_size"])
        "pass --remainder pad to Dataloader(remainder='pad'), or a smaller --batch-size"
    """
    names = [name for name in known if name in _OPTIONS]
    if not names:
        return message
    either = "|".join(names)
    # Without a value only what nobody takes for a word.
    words = "|".join(name for name in names if "_" in name) or "(?!)"
    return re.sub(rf"{_CALL}|\b({either})=({_VALUE})|\b({words})\b(?!=)", _said, message)


def _said(found: re.Match[str]) -> str:
    name, value, word = found.groups()
    if name is None and word is None:
        return found[0]
    option = name or word
    shown = _value(value or "", "x" if option == "size" else ",")
    return f"--{option.replace('_', '-')} {shown}".rstrip()


def _value(value: str, between: str) -> str:
    """A value as it is written behind an option."""
    if value == "True":
        return ""
    entries = [each.strip(" '") for each in value.strip("[]()").split(",")]
    return between.join(each for each in entries if each)
