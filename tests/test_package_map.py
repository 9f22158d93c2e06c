"""`loadax/README.md` is a map of the package: it names every room, and nothing that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
METRICS = {"loadax/waited_share", "loadax/wait_seconds"}  # names like paths
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


def test_paths_that_contributors_are_sent_to_are_there() -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    paths = re.findall(r"`([a-z_.]+/[a-z_/.]*|[a-z_]+\.py)`", text)
    assert len(paths) > 80
    roots = ROOT, ROOT / "loadax", ROOT / "loadax/loader", ROOT / "docs"
    names = {path.name for path in (ROOT / "loadax").rglob("*.py")}
    assert [path for path in paths if path not in names and not any((root / path).exists() for root in roots)] == []


def test_paths_of_the_repository_on_all_pages_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    pages = [page for page in pages if page.parent.name != "decisions" and page.name != "CHANGELOG.md"]
    named = re.compile(r"`((?:loadax|tests|docs|benchmarks|examples|skills|\.ci)/[a-z_/.-]+)`")
    paths = {(page.name, path) for page in pages for path in named.findall(page.read_text())}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path[1]).exists() and path[1] not in METRICS] == []


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
