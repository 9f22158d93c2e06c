"""The public names, what importing them costs, and what the wheel holds."""

import inspect
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import loadax
from tests.limits import HANG

ROOT = Path(__file__).parents[1]
HEAVY = {"jax", "jaxlib", "flax", "grain", "tensorstore", "pyarrow", "datasets", "PIL", "sqlalchemy", "orbax"}
# Modules of packages that pip knows by another name.
PACKAGES = {
    "cv2": "opencv-python-headless",
    "google": "protobuf",
    "opentelemetry": "opentelemetry-api",
    "orbax": "orbax-checkpoint",
    "PIL": "pillow",
    "vl_convert": "vl-convert-python",
}
# What users pass objects of, or train with, so that it is there when loadax imports it.
OF_USERS = {"awkward", "etils", "haliax", "kauldron", "lance", "levanter", "tunix"}


def test_metadata_names_every_package_that_loadax_imports() -> None:
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "loadax").rglob("*.py"))
    lines = r"^ *(?:import (\w+)[\w.]*(?: as \w+)?|from (\w+)[\w.]* import [\w, (]+)$"
    modules = {name for match in re.findall(lines, text, re.MULTILINE) for name in match if name}
    project = tomllib.loads(read("pyproject.toml"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    named = {re.split(r"[\[<>=;! ]", line)[0].replace("-", "_") for group in groups for line in group}
    others = modules - {*sys.stdlib_module_names, "jaxlib"}
    assert {PACKAGES.get(name, name).replace("-", "_") for name in others} - named - OF_USERS == set()


def test_every_page_has_the_version() -> None:
    dated = re.search(
        rf"^## {re.escape(loadax.__version__)} - (\d{{4}}-\d\d-\d\d)$", read("CHANGELOG.md"), re.MULTILINE
    )
    assert dated is not None
    assert f"\nversion: {loadax.__version__}\ndate-released: {dated[1]}\n" in read("CITATION.cff")


def read(name: str) -> str:
    """A file of the repository's root."""
    return (ROOT / name).read_text("utf-8")


def test_public_names_are_sorted() -> None:
    assert list(loadax.__all__) == sorted(set(loadax.__all__))


@pytest.mark.parametrize("name", loadax.__all__)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(loadax, name)
    assert isinstance(value, str) or inspect.getdoc(value), f"loadax.{name} has no docstring"


def test_dir_shows_the_public_names() -> None:
    assert set(loadax.__all__) <= set(dir(loadax))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'loadax' has no attribute 'Dataloder'"):
        _ = loadax.Dataloder  # type: ignore[attr-defined]


@pytest.mark.processes
def test_importing_loadax_loads_nothing_heavy() -> None:
    program = "import json, sys, loadax; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, timeout=HANG
    )
    assert HEAVY & set(json.loads(run.stdout)) == set()


@pytest.mark.processes
def test_the_wheel_holds_all_of_loadax_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=HANG)
    (wheel,) = tmp_path.glob(f"loadax-{loadax.__version__}-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "loadax").rglob("*")
        if path.is_file() and not {"__pycache__", ".ruff_cache"}.intersection(path.parts)
    }
    assert {"loadax/py.typed", "loadax/core/replacements.toml"} <= held
    assert held == there
