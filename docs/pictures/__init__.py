"""Pictures of the site, drawn from what loadax plans."""

from collections.abc import Callable
from functools import partial

from docs.pictures.lanes import lanes
from docs.pictures.logo import logo
from docs.pictures.mesh import mesh
from docs.pictures.outputs import EXAMPLES
from docs.pictures.svg import DARK, LIGHT
from docs.pictures.terminal import terminal

DRAWINGS: dict[str, Callable[[], str]] = {
    "logo.svg": logo,
    "mesh-light.svg": partial(mesh, LIGHT),
    "mesh-dark.svg": partial(mesh, DARK),
    "lanes-light.svg": partial(lanes, LIGHT),
    "lanes-dark.svg": partial(lanes, DARK),
    **{
        f"examples/{name}-{mode}.svg": partial(terminal, name, palette)
        for name in EXAMPLES
        for mode, palette in (("light", LIGHT), ("dark", DARK))
    },
}
