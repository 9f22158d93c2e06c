"""The record of files of tokens."""

from loadax.sources.format import Format

FORMAT = Format(
    "from_tokens",
    "a file of tokens",
    r"\.(bin|ds|idx|npy)$",
    opener="loadax.sources.tokens.windows:open_tokens",
    line="loadax.from_tokens({0}, seq_len=…)",
    lacks=".bin or .npy file in it",
    argument="path",
    # .npy files of tokens; the bytes of a text are tokens too
    accepted=("from_npy", "from_jsonl"),
    any_bytes=True,
    options=("seq_len", "dtype", "cache"),
    needs="seq_len",
)
