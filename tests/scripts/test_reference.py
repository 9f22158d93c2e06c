"""API pages: each class that a public method returns has one."""

import re
from pathlib import Path
from typing import Any

import pytest

griffe = pytest.importorskip("griffe", reason="of the extra docs")
reference = pytest.importorskip("docs.hooks.reference")
ROOT = Path(__file__).parents[2]
CLASSES = ("Dataset", "Dataloader", "DataIterator", "Epoch", "loader.lease.Lease")
# Classes of the package that are for its own code, and plain data, which need no page.
INNER = {"BaseSource", "Order", "Reader", "Ledger", "Transform", "Tree", "Integers"}
OTHERS = {"Any", "Callable", "Awaitable", "Coroutine", "Iterator", "Mesh", "None", "Row", "Self"}


def test_results_of_public_methods_have_a_page() -> None:
    package = griffe.load("loadax", search_paths=[ROOT])
    returned = {name for path in CLASSES for name in results_of(package[path])}
    assert {"Explanation", "PlanCheck", "Trace", "Preflight", "Receipt", "Stats", "Report", "Lease"} <= returned
    shown = {path.rpartition(".")[2] for objects in reference._objects().values() for path in objects}
    assert returned - shown - INNER - OTHERS == set()


def results_of(described: Any) -> set[str]:
    """Names in the annotations of what public methods of a class return, and of its public attributes."""
    if described.is_alias:
        described = described.final_target
    public = [member for member in described.members.values() if not member.name.startswith("_")]
    annotations = [member.returns for member in public if member.is_function]
    annotations += [member.annotation for member in public if member.is_attribute]
    return {name for annotation in annotations for name in re.findall(r"\b[A-Z]\w+", str(annotation))}
