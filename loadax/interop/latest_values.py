"""LatestValues: what a loop wants to show, such as its loss, once the devices have computed it."""

from typing import Any, final

from jax import Array


@final
class LatestValues:
    """The latest values of a loop that the devices have computed. Never waits for the devices."""

    def __init__(self) -> None:
        self._newest: dict[str, Any] = {}
        # Others take its place when it is computed: if a loop runs far ahead, the newest values never are.
        self._pending: dict[str, Any] = {}
        self._computed: dict[str, Any] = {}
        self._text = ""

    def add(self, values: dict[str, Any]) -> None:
        """Notes the values of a step, of which those before are forgotten."""
        self._newest = values
        if not any(map(_is_pending, self._pending.values())):
            self._computed = self._pending
            self._pending = values

    def __str__(self) -> str:
        for values in (self._newest, self._pending, self._computed):
            if all(map(_is_computed, values.values())):
                self._computed = values
                if values is self._newest:
                    self._pending = values
                texts = [f"{name}={_text(value)}" for name, value in values.items()]
                self._text = ", ".join(texts)
                break
        return self._text


def _is_pending(value: Any) -> bool:
    if not isinstance(value, Array) or value.is_deleted():
        return False
    return not value.is_ready()  # type: ignore[attr-defined]  # the stubs of JAX lack it


def _is_computed(value: Any) -> bool:
    if isinstance(value, Array) and value.is_deleted():  # it was donated
        return False
    return not _is_pending(value)


def _text(value: Any) -> str:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):  # a complex number, say
        return str(value)
