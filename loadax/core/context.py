"""Caller: context variables and JAX settings of the thread that starts reading, for the threads that read for it.

Worker processes get the error handling of NumPy and the context of `decimal` alone: a context variable of an imported
module can't be found there, and they have no JAX.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar, final

import numpy as np

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# Each is a context manager `jax.NAME`, and `jax.config.jax_NAME` is its value on this thread. The guard of all
# transfers comes before those of one direction, which it overrides.
_SETTINGS = (
    "default_device",
    "enable_x64",
    "default_prng_impl",
    "default_matmul_precision",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "transfer_guard",
    "transfer_guard_host_to_device",
    "transfer_guard_device_to_device",
    "transfer_guard_device_to_host",
    "disable_jit",
    "debug_nans",
    "debug_infs",
    "debug_key_reuse",
    "enable_checks",
    "check_tracer_leaks",
    "legacy_prng_key",
    "enable_custom_prng",
    "threefry_partitionable",
    "softmax_custom_jvp",
    "log_compiles",
    "explain_cache_misses",
)


_values = attrgetter(*(f"jax_{name}" for name in _SETTINGS))


def _settings() -> tuple[Any, ...]:
    """JAX's settings on this thread; None if JAX is not loaded: worker processes must not import it for this."""
    config = getattr(sys.modules.get("jax"), "config", None)
    try:
        return _values(config)
    except AttributeError:  # JAX is being imported, or has dropped one of them
        return tuple(getattr(config, f"jax_{name}", None) for name in _SETTINGS)


@final
class Caller:
    """The context variables of this thread (`np.errstate` and `decimal` among them), and its JAX settings.

    The current mesh is not carried: programs on a mesh of several processes must not be launched by reader threads.

    Examples:
        >>> from contextvars import ContextVar
        >>> from threading import Thread
        >>> from loadax.core.context import Caller
        >>> scale = ContextVar("scale", default=1)
        >>> _ = scale.set(3)
        >>> thread = Thread(target=Caller().run, args=(lambda: print(scale.get()),))
        >>> thread.start(); thread.join()
        3
    """

    def __init__(self) -> None:
        self._variables, self._settings = copy_context(), _settings()

    def run(
        self, function: Callable[_Arguments, _Result], /, *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> _Result:
        """Calls a function in this context, on any thread: several may do so at once."""
        here = _settings()
        if here == self._settings:
            return self._variables.copy().run(function, *args, **options)
        with ExitStack() as entered:
            for name, wanted, value in zip(_SETTINGS, self._settings, here, strict=True):
                if wanted != value:
                    entered.enter_context(getattr(sys.modules["jax"], name)(wanted))
            return self._variables.copy().run(function, *args, **options)


def carried() -> tuple[Any, ...]:
    """The part of this thread's context that worker processes adopt."""
    decimal = sys.modules.get("decimal")
    return np.geterr(), decimal and decimal.getcontext()


def adopt(errors: Any, decimals: Any) -> None:
    """Sets what `carried` returned in the training process on this thread."""
    np.seterr(**errors)
    if decimals is not None:
        sys.modules["decimal"].setcontext(decimals)
