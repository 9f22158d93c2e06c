"""The logo: rows of a batch on a 2 x 2 mesh."""

ACCENT, LIGHT = "#14b8a6", "#ffffff"


def logo() -> str:
    """An SVG image of 64 x 64: four devices, each with rows of its own."""
    tiles = []
    for number in range(4):
        x, y = 8 + 26 * (number % 2), 8 + 26 * (number // 2)
        tiles.append(f'<rect x="{x}" y="{y}" width="22" height="22" rx="4" fill="{LIGHT}" fill-opacity="0.28"/>')
        for row in range(2):
            full = row == number // 2
            top = y + 5 + 7 * row
            opacity = "1" if full else "0.55"
            tiles.append(
                f'<rect x="{x + 4}" y="{top}" width="14" height="5" rx="2" fill="{LIGHT}" fill-opacity="{opacity}"/>'
            )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">'
        f'<rect width="64" height="64" rx="12" fill="{ACCENT}"/>{"".join(tiles)}</svg>\n'
    )
