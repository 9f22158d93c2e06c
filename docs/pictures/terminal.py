"""What an example prints, as a terminal shows it."""

from docs.pictures.outputs import Output, recorded
from docs.pictures.svg import Palette, box, picture, text

_COLUMNS = 92  # of characters
_WIDE = 120  # of a picture all of whose lines fit into that, such as a table
_LINE, _CHARACTER = 17, 7.86
_FONT = "font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\""


def terminal(name: str, palette: Palette) -> str:
    """The command and the output of an example; long lines are wrapped, and spaces kept."""
    output = recorded(name)
    lines = wrapped(output)
    width = round(36 + _CHARACTER * max(_COLUMNS, *map(len, lines)))
    height = 62 + _LINE * len(lines)
    elements = [
        box(1, 1, width - 2, height - 2, palette.fill, palette.line, 8),
        f"<g {_FONT}>",
        text(18, 30, f"$ {output.command}", palette.hosts[0][1], 13, "start", 600),
        *(_line(line, words, palette) for line, words in enumerate(lines) if words),
        "</g>",
    ]
    return picture(width, height, f"What {output.command} prints", elements)


def wrapped(output: Output) -> list[str]:
    """Lines of at most 92 characters, or 120 if none is longer; what is cut off goes on below, indented."""
    columns = _COLUMNS if max(map(len, output.lines)) > _WIDE else _WIDE
    lines: list[str] = []
    for line in output.lines:
        rest, indent = line, ""
        while len(indent + rest) > columns:
            end = (indent + rest).rfind(" ", len(indent) + 1, columns + 1) - len(indent)
            end = end if end > 0 else columns - len(indent)
            lines.append(indent + rest[:end])
            rest, indent = rest[end:].lstrip(), "    "
        lines.append(indent + rest)
    return lines


def _line(line: int, words: str, palette: Palette) -> str:
    return text(18, 58 + _LINE * line, words.replace(" ", "\N{NO-BREAK SPACE}"), palette.text, 13, "start")
