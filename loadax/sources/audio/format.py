"""The record of audio files."""

from typing import Any

from loadax.sources.format import Format

FORMAT = Format(
    "from_audio",
    "an audio file",
    r"(?i)\.(wav|flac|ogg|opus|mp3|aiff?|m4a|aac)$",
    opener="loadax.sources.audio.open:open_audio",
    line="loadax.from_audio({0}, seconds=1)",
    lacks="audio file (.wav, .flac, .ogg, .mp3, .m4a)",
    requires={"soundfile": "soundfile"},
    extra="audio",
    local_only=(
        "from_audio opens local files only; download the files, or mount the bucket as "
        "a folder"
    ),
    metadata=False,
    command="loadax.sources.audio.format:command_arguments",
)


def command_arguments(source: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """The arguments that open files on the command line: clips of a second."""
    return {"seconds": 1.0, **given}
