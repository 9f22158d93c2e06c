from typing import Any

import jax
import ml_dtypes  # noqa: F401 - registers the names of its dtypes
import numpy as np
import pytest

from loadax.core.casting import leaf_name
from loadax.errors import LeafError, LeafTypeError
from loadax.sharding.dtypes import host_array, placed_dtype

SAME = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64"]
SAME += ["bfloat16", "int4", "float8_e4m3fn"]
NARROWED = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


@pytest.mark.parametrize(("given", "placed"), [*zip(SAME, SAME, strict=True), *NARROWED.items()])
def test_placed_dtype_is_the_one_that_jax_gives(given: str, placed: str) -> None:
    assert placed_dtype(given, "") == np.dtype(placed)
    assert jax.numpy.asarray(np.zeros(1, given)).dtype == np.dtype(placed)
    with jax.enable_x64(True):
        assert placed_dtype(given, "") == np.dtype(given)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("<U12", r"leaf \['text'\] has dtype <U12; JAX arrays are numeric. Drop it or encode it in a map"),
        ("S3", r"leaf \['text'\] has dtype \|S3; JAX arrays are numeric"),
        (object, r"has dtype object \(strings, bytes, None, or values of several kinds\); JAX arrays"),
        ("M8[s]", r"has dtype datetime64\[s\]; JAX"),
        ("m8[s]", r"has dtype timedelta64\[s\]; JAX"),
        ([("a", "i4")], r"has dtype \[\('a', '<i4'\)\]; JAX"),
        ("V4", r"has dtype \|V4; JAX"),
        (">i4", r"has dtype >i4, which is not in native byte order; JAX supports only that. .* x.astype\('int32'\)"),
        (np.longdouble, r"has dtype float128; JAX"),
        (np.clongdouble, r"has dtype complex256; JAX"),
    ],
)
def test_what_jax_does_not_have_is_an_error(dtype: Any, message: str) -> None:
    with pytest.raises(LeafTypeError, match=message):
        placed_dtype(dtype, "['text']")


def test_the_only_leaf_is_named_so() -> None:
    assert leaf_name("") == "the only leaf"
    with pytest.raises(LeafTypeError, match=r"^the only leaf has dtype"):
        placed_dtype("U1", "")


@pytest.mark.parametrize(
    ("scalar", "dtype"),
    [(3, "int64"), (2.5, "float64"), (True, "bool"), (np.float32(1), "float32"), (2**63, "uint64")],
)
def test_python_scalars_become_arrays(scalar: Any, dtype: str) -> None:
    array = host_array(scalar, "")
    assert (type(array), array.shape, array.dtype) == (np.ndarray, (), np.dtype(dtype))


def test_arrays_and_local_jax_arrays_are_taken() -> None:
    array = np.arange(3)
    assert host_array(array, "") is array
    np.testing.assert_array_equal(host_array(jax.numpy.arange(3), ""), [0, 1, 2])


@pytest.mark.parametrize(
    ("leaf", "kind", "message"),
    [
        (np.ma.masked_array([1, 2], [True, False]), LeafTypeError, "is a masked array, which JAX does not have. Fill"),
        (2**64, LeafError, "the value 18446744073709551616 does not fit in 64 bits"),
        (-(2**63) - 1, LeafError, "does not fit in 64 bits. Reduce it"),
        (jax.random.key(0), LeafTypeError, r"has dtype key<fry>; place jax.random.key_data\(it\) instead"),
    ],
)
def test_unsuitable_host_data_names_leaf_and_remedy(leaf: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=rf"^leaf \['x'\].*{message}"):
        host_array(leaf, "['x']")


def test_traced_arrays_are_not_host_data() -> None:
    with pytest.raises(LeafTypeError, match=r"leaf \['x'\] is traced by jax.jit; only host arrays can be placed"):
        jax.jit(lambda x: host_array(x, "['x']"))(1.0)
