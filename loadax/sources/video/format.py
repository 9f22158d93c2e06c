"""The record of video files."""

from loadax.sources.format import Format

FORMAT = Format(
    "from_video",
    "a video file",
    r"(?i)\.(mp4|m4v|mkv|webm|mov|avi)$",
    opener="loadax.sources.video.open:open_video",
    lacks="video file (.mp4, .mkv, .webm, .mov, .avi)",
    requires={"av": "av"},
    extra="video",
    local_only=(
        "from_video opens local files only; download the files, or mount the bucket as "
        "a folder"
    ),
    metadata=False,
    options=("size",),
)
