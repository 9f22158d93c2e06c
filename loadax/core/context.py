"""Caller: context variables and JAX settings of the thread that starts reading, for the threads that read for it.

Worker processes have the defaults, except for context variables that functions of scripts refer to, which are sent with
their values.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any, TypeVar, final

_Result = TypeVar("_Result")

# Each is a context manager `jax.NAME`, and `jax.config.jax_NAME` is its value on this thread. The guard of all
# transfers comes before those of one direction, which it overrides.
_SETTINGS = """
default_device enable_x64 default_prng_impl default_matmul_precision numpy_dtype_promotion numpy_rank_promotion
transfer_guard transfer_guard_host_to_device transfer_guard_device_to_device transfer_guard_device_to_host
disable_jit debug_nans debug_infs debug_key_reuse enable_checks check_tracer_leaks legacy_prng_key enable_custom_prng
threefry_partitionable softmax_custom_jvp log_compiles explain_cache_misses
""".split()  # noqa: SIM905 - one line a name
_VALUES = [f"jax_{name}" for name in _SETTINGS]
_GUARD = "transfer_guard"


def _settings() -> list[Any]:
    """JAX's settings on this thread; empty if JAX is not loaded: worker processes must not import it for this."""
    config = getattr(sys.modules.get("jax"), "config", None)
    if config:
        return [getattr(config, name, None) for name in _VALUES]
    return []


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
        self._variables = copy_context()
        self._settings = _settings()

    def run(self, function: Callable[..., _Result], *args: Any) -> _Result:
        """Calls a function in this context, on any thread: several may do so at once."""
        variables = self._variables.copy()
        present = _settings()
        if present == self._settings:
            return variables.run(function, *args)
        with ExitStack() as entered:
            for name, wanted, value in zip(
                _SETTINGS, self._settings, present, strict=False
            ):
                if wanted == value:
                    continue
                if wanted is None and name.startswith(_GUARD):
                    # JAX takes None for the guard of the whole process, which may have been set since.
                    wanted = "allow"  # noqa: PLW2901 - the same value by another name
                entered.enter_context(getattr(sys.modules["jax"], name)(wanted))
            return variables.run(function, *args)
