"""Opening pictures that nobody vouches for: known formats only, whole, of sane size, upright and in RGB.

What becomes of the odd ones: transparency is dropped, as transformers' pipelines do; palettes, greys, CMYK
and 16-bit pixels become 8-bit RGB; of an animation the first frame counts. The rest is a `DataError`.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from taskrecipe.core.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset
    from PIL import Image as PillowImage
    from PIL.ImageFile import ImageFile

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Pillow's formats that are opened; its many others are old, rare, and a way in for hostile files."""

ORIENTATION_TAG = 0x0112

_END_MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
_TAIL_BYTES = 64

Source = str | Path | bytes | Mapping[str, Any]
"""A file, its bytes, or what an undecoded `Image` column holds: {"path": …, "bytes": …}."""


@dataclass(frozen=True)
class Orientation:
    """How a picture was turned upright, so that what was drawn on the stored one can turn with it."""

    tag: int
    """EXIF's number, 1 (as stored) to 8."""
    width: int
    """Of the picture as stored, before turning."""
    height: int

    @property
    def turned(self) -> bool:
        """Whether the upright picture differs from the stored one."""
        return self.tag != 1

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the upright picture."""
        return (self.height, self.width) if self.tag >= 5 else (self.width, self.height)

    def points(self, points: np.ndarray) -> np.ndarray:
        """Turn points (…, 2) in pixels of the stored picture."""
        x, y = points[..., 0], points[..., 1]
        right, bottom = self.width - x, self.height - y
        turned = {
            2: (right, y),
            3: (right, bottom),
            4: (x, bottom),
            5: (y, x),
            6: (bottom, x),
            7: (bottom, right),
        }
        return np.stack({1: (x, y), 8: (y, right), **turned}[self.tag], axis=-1)

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Turn boxes (…, 4) of x, y, width, height in pixels of the stored picture."""
        one, other = self.points(boxes[..., :2]), self.points(boxes[..., :2] + boxes[..., 2:])
        return np.concatenate([np.minimum(one, other), np.abs(one - other)], axis=-1)


def open_rgb(source: Source) -> tuple[PillowImage.Image, Orientation]:
    """Decode a picture into upright 8-bit RGB, and say how it was turned; what can't be is a `DataError`."""
    from PIL import ImageOps

    with _safely(source) as image:
        orientation = _orientation(image)
        return _rgb(ImageOps.exif_transpose(image) if orientation.turned else image), orientation


def size(source: Source) -> tuple[int, int]:
    """Width and height of a picture as stored, from its header alone."""
    with _safely(source) as image:
        return image.size


def check_image(source: Source) -> Orientation:
    """Refuse what `open_rgb` would refuse, mostly without decoding: a file that has its end is whole."""
    with _safely(source) as image:
        orientation = _orientation(image)
        if not _has_its_end(image):
            image.load()
        return orientation


def check_images(rows: Dataset, split: str, column: str = "image") -> None:
    """Refuse pictures of `column` that can't be opened, naming split and row."""
    for row, source in enumerate(undecoded(rows, column)[column]):
        try:
            if source is None:
                raise DataError("there is no picture")
            check_image(source)
        except DataError as error:
            raise DataError(str(error), split=split, row=row, column=column) from None


def undecoded(rows: Dataset, column: str = "image") -> Dataset:
    """The same rows, pictures as `Source`s: datasets' own decoding opens any format, and hides turns."""
    from datasets import Image

    return rows.cast_column(column, Image(decode=False))


@contextmanager
def _safely(source: Source) -> Iterator[ImageFile]:
    """Open a picture; whatever goes wrong with it inside the block becomes a `DataError` that names it."""
    from PIL import Image

    path, content = _parts(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # odd metadata, which we don't read
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with _stream(path, content) as stream, Image.open(stream, formats=FORMATS) as image:
                yield image
        except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
            raise DataError(
                f"the picture {path!r} {_cause(error)}" if path else f"the picture {_cause(error)}"
            ) from error


def _parts(source: Source) -> tuple[str, bytes | None]:
    if isinstance(source, bytes):
        return "", source
    if isinstance(source, Mapping):
        return source.get("path") or "", source.get("bytes")
    return str(source), None


def _stream(path: str, content: bytes | None) -> BinaryIO:
    file = Path(path)
    if content is None and not path:
        raise DataError("is neither a file nor bytes")
    if content is None and file.exists() and not file.is_file():
        raise DataError("is not a file")  # and opening a pipe would hang
    if not (file.stat().st_size if content is None else content):
        raise DataError("is empty: it has 0 bytes")
    return file.open("rb") if content is None else io.BytesIO(content)


def _cause(error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError):
        return f"has more than {Image.MAX_IMAGE_PIXELS:,} pixels, which is refused as a decompression bomb"
    if isinstance(error, UnidentifiedImageError):
        return f"is damaged, or not one of {', '.join(FORMATS)}"
    return f"can't be read: {error or type(error).__name__}"


def _orientation(image: PillowImage.Image) -> Orientation:
    tag = image.getexif().get(ORIENTATION_TAG, 1)
    return Orientation(tag if tag in range(1, 9) else 1, *image.size)


def _rgb(image: PillowImage.Image) -> PillowImage.Image:
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    elif image.mode == "F":
        raise DataError("has 32-bit floats for pixels, whose range nobody knows; save it with 8 or 16 bits")
    elif image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # Pillow warns of palettes with transparency otherwise
    return image.convert("RGB")


def _eight_bits(image: PillowImage.Image) -> PillowImage.Image:
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise DataError("has pixels of more than 16 bits; save it with 8 or 16")
    return Image.fromarray((pixels >> 8).astype(np.uint8))


def _has_its_end(image: ImageFile) -> bool:
    marker = _END_MARKERS.get(image.format or "")
    stream = image.fp
    if marker is None or stream is None:
        return False
    end = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, end - _TAIL_BYTES))
    return marker in stream.read()
