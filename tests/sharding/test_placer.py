"""Many arrays alike: JAX's public way places the first one, a shortcut places the others, with the same result."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from numpy.typing import NDArray

from loadax.sharding import compat
from loadax.sharding.layout import plan_leaf
from loadax.sharding.mesh import grid_of
from loadax.sharding.placer import Placer

SPECS = (P("data"), P(), P("data", "model"), P(None, "model"), P(("model", "data")))


def placer_and_boxes(
    spec: P, array: NDArray[Any], types: AxisType = AxisType.Auto
) -> tuple[Placer, list[NDArray[Any]]]:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(types, types))
    layout = plan_leaf(grid_of(mesh), spec, array.shape)
    boxes = [array[tuple(slice(*bounds) for bounds in box)].copy() for box in layout.boxes]
    return Placer(layout, NamedSharding(mesh, spec), array.dtype), boxes


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, jax.numpy.bfloat16])
@pytest.mark.parametrize("types", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_all_arrays_are_alike(spec: P, types: AxisType, dtype: Any) -> None:
    rows = (np.arange(16 * 8).reshape(16, 8) % 7).astype(dtype)
    place, boxes = placer_and_boxes(spec, rows, types)
    first, *others = [place(boxes) for _ in range(3)]
    for array in (first, *others):
        assert (array.aval, array.sharding, array.committed) == (first.aval, place.sharding, True)
        assert array.sharding.mesh is place.sharding.mesh  # type: ignore[attr-defined]
        np.testing.assert_array_equal(np.asarray(array), rows)


def asked(place: Placer, boxes: list[NDArray[Any]], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of three arrays were made by the public function."""
    public = mock.Mock(wraps=jax.make_array_from_callback)
    monkeypatch.setattr(jax, "make_array_from_callback", public)
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(place(boxes)), np.arange(32).reshape(16, 2))
    return public.call_count


def test_only_the_first_is_made_in_the_public_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(*placer_and_boxes(P("data"), np.arange(32).reshape(16, 2)), monkeypatch) == 1


def other_signature(_aval: Any, _sharding: Any) -> None:
    """Lacks `devices:`, `committed:` and `enable_x64:` in its signature, aval: and sharding: alone."""


@pytest.mark.parametrize(
    "newer", [None, SimpleNamespace(), SimpleNamespace(xc=SimpleNamespace(batched_device_put=other_signature))]
)
def test_all_are_made_in_the_public_way_where_jax_has_no_other(newer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_pxla", newer)
    assert asked(*placer_and_boxes(P("data"), np.arange(32).reshape(16, 2)), monkeypatch) == 3


def test_what_does_not_fit_is_an_error_of_the_first() -> None:
    place, boxes = placer_and_boxes(P("data"), np.arange(32, dtype=np.int32).reshape(16, 2))
    with pytest.raises(ValueError, match="shape"):
        place([box[:3] for box in boxes])


@pytest.mark.parametrize("guard", [jax.transfer_guard, jax.transfer_guard_host_to_device])
def test_no_transfer_guard_stops_it(guard: Any) -> None:
    rows = np.arange(32, dtype=np.int64).reshape(16, 2)
    place, boxes = placer_and_boxes(P("data"), rows)
    for _ in range(3):
        with guard("disallow_explicit"):
            array = place(boxes)
        np.testing.assert_array_equal(np.asarray(array), rows)
        np.testing.assert_array_equal(np.asarray(place(boxes)), rows)  # without a guard too
