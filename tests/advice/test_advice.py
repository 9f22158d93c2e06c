"""The advice of every error that names a call works when it is followed to the letter."""

from pathlib import Path

import pytest

from tests.advice import datasets, groups, libraries, loaders, media, sources, sparse, splits, states
from tests.advice.messages import all_messages, names_a_call
from tests.advice.registry import FOLLOWED, Case

# The modules register their functions when they are imported.
MODULES = datasets, groups, libraries, loaders, media, sources, sparse, splits, states


@pytest.mark.parametrize("name", FOLLOWED)
def test_advice_works_when_followed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice, follow = FOLLOWED[name]
    follow(Case(advice, tmp_path, monkeypatch))


def test_advice_of_every_message_that_names_a_call_is_followed() -> None:
    messages = {where: text for where, text in all_messages().items() if names_a_call(text)}
    assert len(messages) > 80
    advised = [advice for advice, _ in FOLLOWED.values()]
    for where, text in messages.items():
        assert any(advice in text for advice in advised), f"tests/advice follows no advice of {where}: {text}"


def test_followed_advice_is_given_somewhere() -> None:
    texts = all_messages().values()
    assert not [advice for advice, _ in FOLLOWED.values() if not any(advice in text for text in texts)]
