"""Serialised tokenizers of other libraries, without importing these libraries."""

from typing import Any

_OPTIONS = (
    "padding_side",
    "truncation_side",
    "model_max_length",
    "split_special_tokens",
    "special_tokens_map",
)
_ENCODING = ("name", "_pat_str", "_mergeable_ranks", "_special_tokens")


def serialised(value: Any) -> tuple[Any, ...] | None:
    """Everything that decides what a tokenizer returns, as bytes, strings and plain values; None for other objects.

    Knows `SentencePieceProcessor`, `tokenizers.Tokenizer`, fast tokenizers of transformers, and `tiktoken.Encoding`.
    Models of 128,000 tokens take about 15 ms; they are serialised each time, since most of these objects can change.
    """
    for kind in type(value).__mro__:
        match str(kind.__module__).partition(".")[0], kind.__name__:
            case "sentencepiece", "SentencePieceProcessor":
                options = {
                    name: option
                    for name, option in vars(value).items()
                    if isinstance(option, int | float)
                }
                return "sentencepiece", value.serialized_model_proto(), options
            case "tokenizers", "Tokenizer":
                return "tokenizers", value.to_str()
            case "transformers", "PreTrainedTokenizerBase" if hasattr(
                value, "backend_tokenizer"
            ):
                known = {
                    name: getattr(value, name, None)
                    for name in (*_OPTIONS, "chat_template")
                }
                return "transformers", value.backend_tokenizer.to_str(), known
            case "tiktoken", "Encoding":
                return "tiktoken", [getattr(value, name) for name in _ENCODING]
    return None
