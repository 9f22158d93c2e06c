"""The record of folders of images, and the names of images in them."""

from loadax.sources.format import Format

# File extensions of images, in any case.
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")

FORMAT = Format(
    "from_images",
    "a folder of images",
    opener="loadax.sources.images.folder:open_images",
    requires={
        "opencv-python-headless": "cv2",
        "pillow": "PIL.Image",
        "simplejpeg": "simplejpeg",
    },
    extra="images",
    is_folder=True,
    options=("size",),
)
