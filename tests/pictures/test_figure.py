"""Pictures are figures of matplotlib without pyplot, in the caller's style, and SVG in notebooks."""

import subprocess
import sys
from itertools import combinations
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import loadax
from loadax.errors import UnsupportedError
from loadax.pictures.figure import COLOURS, _text_on, picture
from loadax.pictures.panels import Bars, Histogram, Holders, PackedRow, PackingBars, Panel, Points, Shares, draw
from tests.limits import HANG

TEXTS = "title", "note", "x"
PANELS: tuple[Panel, ...] = (
    Holders(*TEXTS, "host", ["0 to 3", "4 to 7"], ["0", "1"], [[(0,), (9,)], [(0, 1), (0, 1, 2, 3, 4)]]),
    Shares(*TEXTS, [0, 5, 10], {"web": [0.5, 0.25], "code": [0.5, 0.75]}),
    PackingBars(*TEXTS, 16, [PackedRow("row 0", [(0, 9), (9, 7)]), PackedRow("row 3", [(0, 12)])]),
    Bars(*TEXTS, "y", ["8\n2 steps", "16\n3 steps"], {"rows": [10.0, 5.0], "padding": [2.0, 4.0]}, stacked=True),
    Bars(*TEXTS, "y", ["0", "1"], {"before": [1.5, 0.5], "after": [1.0, 1.0]}),
    Bars(*TEXTS, "y", [str(host) for host in range(32)], {"chunks": [1234.5] * 32}),
    Histogram(*TEXTS, "y", [0.0, 10.0, 20.0], [3, 4]),
    Points(*TEXTS, "y", [0, 1, 2], {"epoch 0": [2, 0, 1], "epoch 1": [0, 2, 1]}),
)


def texts(figure: Figure) -> list[str]:
    """All texts of a figure, as a reader of its SVG finds them."""
    with mpl.rc_context({"svg.fonttype": "none"}):
        root = ET.fromstring(draw_svg(figure))
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def draw_svg(figure: Figure) -> str:
    svg = figure._repr_svg_()  # type: ignore[attr-defined]
    assert isinstance(svg, str)
    return svg


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: type(panel).__name__)
def test_panel_is_a_small_svg_with_its_texts(panel: Panel) -> None:
    figure = picture([panel])
    shown = texts(figure)
    assert {*TEXTS} <= {*shown}
    assert len(draw_svg(figure)) < 100_000
    if isinstance(panel, Holders):
        assert {"host 0", "host 9", "hosts 0, 1", "5 hosts", "rows of the batch", "4 to 7"} <= {*shown}
    if isinstance(panel, Shares):
        assert {"web", "code", "0%", "100%"} <= {*shown}
    if isinstance(panel, Bars) and len(panel.series) > 1:
        assert {*panel.series} <= {*shown}
    if isinstance(panel, Bars) and "before" in panel.series:
        assert {"1.5", "0.5", "1"} <= {*shown}


def test_names_of_data_are_shown_as_they_are() -> None:
    labels = ["_hidden: 25.0%", r"$\bar: 25.0%", "$a$_b: 25.0%", "x" * 200 + ": 25.0%, 0.78 epochs"]
    shares: Any = {label: [0.25, 0.25] for label in labels}
    figure = picture([Shares(r"Who holds ['$\x$']", "$\\y$", "x", [0, 5, 10], shares)])
    assert {*labels[:3], "x" * 16 + "…" + "xxx: 25.0%, 0.78 epochs", r"Who holds ['$\x$']", "$\\y$"} <= {*texts(figure)}


def places(figure: Figure) -> list[tuple[int, ...]]:
    return [axes.get_subplotspec().get_geometry() for axes in figure.axes]  # type: ignore[union-attr]


def test_three_panels_stand_in_two_columns() -> None:
    assert places(picture(PANELS[:2])) == [(2, 1, 0, 0), (2, 1, 1, 1)]
    assert places(picture(PANELS[:3])) == [(2, 2, 0, 0), (2, 2, 1, 1), (2, 2, 2, 2)]


def test_bars_have_the_heights_of_their_values() -> None:
    for panel, expected in (
        (PANELS[3], [(0, 10), (0, 5), (10, 2), (5, 4)]),
        (PANELS[4], [(0, 1.5), (0, 0.5), (0, 1), (0, 1)]),
    ):
        bars = [bar for bar in picture([panel]).axes[0].patches if isinstance(bar, Rectangle)]
        assert [(bar.get_y(), bar.get_height()) for bar in bars] == expected


def test_figure_has_the_style_of_the_caller() -> None:
    dark: Any = {
        "figure.facecolor": "#111111",
        "text.color": "#eeeeee",
        "axes.labelcolor": "#dddddd",
        "svg.fonttype": "none",
    }
    with mpl.rc_context(dark):
        figure = picture(PANELS[:1])
        svg = draw_svg(figure)
    assert figure.get_facecolor() == (*to_rgb("#111111"), 1)
    (axes,) = figure.axes
    assert axes.title.get_color() == "#eeeeee"
    assert axes.xaxis.label.get_color() == "#dddddd"
    assert "#111111" in svg


def test_notebooks_show_svg() -> None:
    formatter = DisplayFormatter()
    formatter.active_types = [*formatter.formatters]
    shown, _ = formatter.format(picture(PANELS[:1]))  # type: ignore[no-untyped-call]
    assert {*shown} == {"text/plain", "image/svg+xml"}
    assert "</svg>" in shown["image/svg+xml"]


def luminance(colour: str) -> float:
    channels = np.array(to_rgb(colour))
    linear = np.where(channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    """Contrast of two colours (WCAG 2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira and Fernandes, 2009: how people without red and without green cones see linear colours.
BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


@pytest.mark.parametrize("blind", BLIND)
def test_colours_differ_for_people_with_colour_blindness(blind: str) -> None:
    seen = [np.array(BLIND[blind]) @ np.array(to_rgb(colour)) for colour in COLOURS[:6]]
    assert min(float(np.linalg.norm(one - other)) for one, other in combinations(seen, 2)) > 0.15


@pytest.mark.parametrize("colour", COLOURS)
def test_texts_on_colours_and_colours_on_pages_are_readable(colour: str) -> None:
    assert contrast(colour, _text_on(colour)) >= 4.5
    assert contrast(colour, "#ffffff") >= 2
    assert contrast(colour, "#111111") >= 3


def test_missing_matplotlib_is_an_error_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match=r"plot\(\) needs matplotlib, .*pip install -e '\.\[plot\]'"):
        draw({"rows": PANELS}, ())


PROGRAM = """
import sys
import numpy as np
import loadax

explanation = loadax.Dataloader(np.arange(64.0), 16).explain()
assert "matplotlib" not in sys.modules
explanation.plot().savefig("picture.svg")
loadax.from_arrays(np.arange(64.0)).explain().plot()._repr_svg_()
print([name for name in sys.modules if "pyplot" in name or name.startswith(("IPython", "tkinter"))])
"""


@pytest.mark.processes
def test_pyplot_is_not_imported(tmp_path: object) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=str(tmp_path), timeout=HANG
    )
    assert run.stdout.strip() == "[]"


def test_rcparams_stay_as_they_are() -> None:
    before = dict(mpl.rcParams)
    loadax.from_arrays(np.arange(64.0)).explain().plot()._repr_svg_()
    assert dict(mpl.rcParams) == before
