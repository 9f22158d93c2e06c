"""The logo: two rows of a batch on each of four devices."""

from docs.pictures.svg import picture


def logo() -> str:
    """White on teal, 64 x 64."""
    elements = ['<rect width="64" height="64" rx="13" fill="#0f766e"/>']
    for device in range(4):
        x, y = 9 + 25 * (device % 2), 9 + 25 * (device // 2)
        opacity = (1, 0.72, 0.72, 0.45)[device]
        elements += [
            f'<rect x="{x}" y="{y + 11 * row}" width="21" height="9" rx="3" fill="#fff" fill-opacity="{opacity}"/>'
            for row in range(2)
        ]
    return picture(64, 64, "loadax", elements)
