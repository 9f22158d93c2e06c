"""`loadax/README.md` is a map of the package: it names every room, and nothing that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "loadax/README.md").read_text()


def test_every_room_is_on_the_map() -> None:
    entries = [entry for entry in (ROOT / "loadax").iterdir() if not entry.name.startswith(("_", "."))]
    folders = {f"`{entry.name}/`" for entry in entries if entry.is_dir()}
    files = {f"`{entry.name}`" for entry in entries if entry.suffix == ".py"}
    assert len(folders) > 10
    assert {name for name in folders | files if name not in MAP} == set()


def test_what_is_on_the_map_is_there() -> None:
    paths = re.findall(r"`([\w./]+/[\w./]*|[\w]+\.py)`", MAP)
    assert len(paths) > 30
    missing = [path for path in paths if not (ROOT / path).exists() and not (ROOT / "loadax" / path).exists()]
    assert missing == []


def test_the_tree_goes_down() -> None:
    """Rooms are listed as the contract of the layers has them, the highest first."""
    contract = (ROOT / "pyproject.toml").read_text().split('name = "layers"')[1].split("layers = [")[1].split("\n]")[0]
    layers = [re.split(r" [|:] ", layer) for layer in re.findall(r'"([^"]+)"', contract)]
    place = {name: number for number, layer in enumerate(layers) for name in layer}
    tree = MAP.split("| room |")[1].split("\n\n")[0]
    listed = [name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`(\w+(?:/|\.py))`", tree)]
    places = [place[name] for name in listed if name in place]
    assert len(places) > 15
    assert places == sorted(places)
