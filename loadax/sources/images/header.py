"""Reads the size of a JPEG from its header, in a tenth of the time that Pillow takes."""

# Markers of a frame of 8-bit Huffman-coded data: baseline, extended, progressive.
_FRAMES = (0xC0, 0xC1, 0xC2)
# Tables, comments, and applications' data other than APP1, which has the orientation.
_SKIPPED = frozenset({0xC4, 0xDB, 0xDD, 0xE0, *range(0xE2, 0xF0), 0xFE})
# Pillow decides on the limit of larger ones.
_MOST_PIXELS = 1 << 26


def plain_jpeg_size(content: bytes) -> tuple[int, int] | None:
    """(height, width) of a JPEG in gray or three colours without EXIF or XMP data; None: Pillow has to look at it.

    Examples:
        >>> import io
        >>> from PIL import Image
        >>> from loadax.sources.images.header import plain_jpeg_size
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (30, 20)).save(file, "JPEG")
        >>> plain_jpeg_size(file.getvalue())
        (20, 30)
    """
    if content[:2] != b"\xff\xd8":
        return None
    start = 2
    last = len(content) - 10  # start of the last segment that could hold a frame
    while start <= last and content[start] == 0xFF:
        marker = content[start + 1]
        if marker in _FRAMES:
            height = int.from_bytes(content[start + 5 : start + 7])
            width = int.from_bytes(content[start + 7 : start + 9])
            known = content[start + 4] == 8 and content[start + 9] in (1, 3)
            if known and 0 < height * width <= _MOST_PIXELS:
                return height, width
            return None
        if marker not in _SKIPPED:
            return None
        start += 2 + int.from_bytes(content[start + 2 : start + 4])
    return None
