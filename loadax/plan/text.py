"""An order in words, from what it says of itself."""

from collections.abc import Iterable
from typing import Any

from loadax.plan.mix import ENDLESS


def order_words(described: Iterable[Any]) -> tuple[str, ...]:
    """One phrase for each verb of `Order.describe()`, in the order in which they were called.

    Examples:
        >>> order_words([["rows", 5000], ["shuffle", 7], ["repeat", 2]])
        ('5,000 rows as they lie', 'shuffle(7): each row by itself', 'repeat(2): so many epochs as one')
    """
    return tuple(_verb(part) for part in described)


def several(number: int, what: str) -> str:
    """`1 host`, `4,096 hosts`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def rows_text(count: int) -> str:
    """A number of rows as one reads it; a mixture without end has no number."""
    return f"{count:,}" if count < ENDLESS else "endless"


def _verb(part: Any) -> str:
    match part:
        case ["rows", size]:
            text = f"{size:,} rows as they lie"
        case ["own epochs", size]:
            text = f"{size:,} rows, in the source's own order of each epoch"
        case ["shuffle", seed]:
            text = f"shuffle({seed}): each row by itself"
        case ["shuffle", seed, block, window, lanes, _]:
            text = f"shuffle({seed}): blocks of {block:,} rows, {window} at a time in each of {lanes} lanes"
        case ["slice", start, 1, size]:
            text = f"slice: positions {start:,} to {start + size - 1:,}"
        case ["slice", start, step, size]:
            text = f"slice: {size:,} positions from {start:,} on, in steps of {step}"
        case ["repeat", times]:
            text = f"repeat({times}): so many epochs as one"
        case ["split", fraction, seed, inside, size]:
            text = f"split({fraction}, {seed}): {'the first' if inside else 'the second'} side, {size:,} rows"
        case ["concat", parts]:
            text = f"concat: {_parts((str(number), described) for number, (_, described) in enumerate(parts))}"
        case ["mix", parts, segments, seed, stop, _]:
            weights = ", ".join(f"{':'.join(map(str, each))} from position {start:,} on" for start, each in segments)
            listed = _parts((name, described) for name, _, described in parts)
            text = f"mix(seed={seed}, stop={stop!r}) {weights}: {listed}"
        case [name, *arguments]:
            text = f"{name}({', '.join(map(str, arguments))})"
        case _:
            text = str(part)
    return text


def _parts(parts: Iterable[tuple[str, Any]]) -> str:
    return "; ".join(f"{name} = {', '.join(order_words(described))}" for name, described in parts)
