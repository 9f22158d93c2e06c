"""Text for people: tables, sizes with units."""

from collections.abc import Sequence

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, each as wide as its widest entry."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (header, *rows)
    )
    return "".join(f"{line}\n" for line in lines)


def size_text(size: float) -> str:
    """A number of bytes as one would say it: `512 B`, `4.0 KiB`, `128 MiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in _UNITS:
        size /= 1024
        if size < 1024 or unit == _UNITS[-1]:
            break
    return f"{size:.1f} {unit}" if size < 10 else f"{size:.0f} {unit}"


def count_text(number: int, what: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"
