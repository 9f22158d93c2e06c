"""Functions that use a tokenizer are known by the model of the tokenizer, wherever they keep it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadax.core.fingerprint import fingerprint
from loadax.core.tokenizers import serialised

WORDS = ["a", "b", "c", "d"]


def of_tokenizers(words: list[str]) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    numbers = {word: number for number, word in enumerate(words)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token=words[0]))


def truncating(words: list[str]) -> Any:
    tokenizer = of_tokenizers(words)
    tokenizer.enable_truncation(4)
    return tokenizer


def of_sentencepiece(words: list[str], **options: Any) -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    model: list[bytes] = []

    class Writer:
        def write(self, part: bytes) -> None:
            model.append(part)

    text = iter([" ".join(words)] * 50)
    trainer = sentencepiece.SentencePieceTrainer
    trainer.train(sentence_iterator=text, model_writer=Writer(), vocab_size=4 + len(words), minloglevel=3)
    return sentencepiece.SentencePieceProcessor(model_proto=b"".join(model), **options)


def stand_in(module: str, kind: str, /, **members: Any) -> Any:
    """An object of a class with this name, as a library has it that the tests don't install."""
    return type(kind, (), {"__module__": module, "encode": lambda self, text: [len(text)], **members})()


def of_tiktoken(words: list[str], special: int = 9) -> Any:
    ranks = {word.encode(): rank for rank, word in enumerate(words)}
    members = {"name": "mine", "_pat_str": ".", "_mergeable_ranks": ranks, "_special_tokens": {"<end>": special}}
    return stand_in("tiktoken.core", "Encoding", **members)


def of_transformers(words: list[str], side: str = "right") -> Any:
    backend = stand_in("tokenizers", "Tokenizer", to_str=lambda self: repr(words))
    members = {"backend_tokenizer": backend, "padding_side": side}
    return stand_in("transformers.base", "PreTrainedTokenizerBase", **members)


@dataclass
class Tokenize:
    tokenizer: Any

    def __call__(self, text: str) -> Any:
        return self.tokenizer.encode(text)


def closing_over(tokenizer: Any) -> Callable[[str], Any]:
    def tokenize(text: str) -> Any:
        return tokenizer.encode(text)

    return tokenize


def with_global(tokenizer: Any) -> Any:
    names = {"TOKENIZER": tokenizer, "__name__": "__main__"}
    exec("def tokenize(text): return TOKENIZER.encode(text)", names)
    return names["tokenize"]


HELD = {
    "closure": closing_over,
    "global": with_global,
    "dataclass": Tokenize,
    "bound method": lambda tokenizer: tokenizer.encode,
    "method of a dataclass": lambda tokenizer: Tokenize(tokenizer).__call__,
}
MADE: dict[str, list[Callable[[list[str]], Any]]] = {
    "tokenizers": [of_tokenizers, truncating],
    "sentencepiece": [of_sentencepiece, lambda words: of_sentencepiece(words, add_bos=True)],
    "tiktoken": [of_tiktoken, lambda words: of_tiktoken(words, 10)],
    "transformers": [of_transformers, lambda words: of_transformers(words, "left")],
}


@pytest.mark.parametrize("held", HELD.values(), ids=HELD.keys())
@pytest.mark.parametrize("makers", MADE.values(), ids=MADE.keys())
def test_function_is_known_by_tokenizer_model(makers: list[Callable[[list[str]], Any]], held: Any) -> None:
    known = [fingerprint(held(make(words))) for make in makers for words in (WORDS, WORDS, WORDS[:3])]
    assert all(each.unknown is None for each in known)
    assert known[0] == known[1]
    assert known[3] == known[4]
    assert len({each.digest for each in known}) == 4


def test_other_objects_of_these_libraries_are_unknown() -> None:
    assert serialised(stand_in("transformers.base", "PreTrainedTokenizerBase")) is None  # a slow one
    assert fingerprint(closing_over(stand_in("tokenizers", "Decoder"))).unknown is not None


@pytest.mark.processes
def test_tokenizer_libraries_are_not_imported() -> None:
    script = (
        "import sys\nfrom loadax.core.fingerprint import fingerprint\nfingerprint(lambda text: object())\n"
        "assert not {'sentencepiece', 'tokenizers', 'tiktoken', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True, timeout=60)
