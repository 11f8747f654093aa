"""Opening images from untrusted files: known formats only, complete, of limited size, turned upright, in RGB.

Transparency is dropped, as transformers' pipelines do. Palettes, grayscale, CMYK and 16-bit pixels become 8-bit RGB.
Of an animation only the first frame is used. Any other image is a `DataError`.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np

from taskrecipe.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset
    from PIL import Image as PillowImage
    from PIL.ImageFile import ImageFile

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Pillow's formats that are opened. Its many others are old and rare, and their decoders are open to attacks."""

LOSSLESS_FORMATS = ("PNG", "BMP", "TIFF")
"""Formats of maps, whose pixels are class numbers: others change numbers when they compress."""

ORIENTATION_TAG = 0x0112

THREADS = 8
"""Rows that are read at the same time. Most of the time goes into waiting for files and decoding outside of Python."""

_CHUNK = 256
"""Rows that are held in memory at a time while a column is read: their images may be bytes in the table."""

_END_MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
_TAIL_BYTES = 64

Result = TypeVar("Result")

Source = str | Path | bytes | Mapping[str, Any]
"""A file, its bytes, or a value of an encoded `Image` column: {"path": …, "bytes": …}."""


@dataclass(frozen=True)
class Orientation:
    """How an image was turned upright, so that its boxes and maps can be turned too."""

    tag: int
    """EXIF's number, 1 (as stored) to 8."""
    width: int
    """The width of the image as stored, before it is turned."""
    height: int

    @property
    def is_turned(self) -> bool:
        """Whether the upright image differs from the stored one."""
        return self.tag != 1

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the upright image."""
        return (self.height, self.width) if self.tag >= 5 else (self.width, self.height)

    def turn_points(self, points: np.ndarray) -> np.ndarray:
        """Turn points (…, 2) in pixels of the stored image."""
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

    def turn_boxes(self, boxes: np.ndarray) -> np.ndarray:
        """Turn boxes (…, 4) of x, y, width, height in pixels of the stored image."""
        one, other = self.turn_points(boxes[..., :2]), self.turn_points(boxes[..., :2] + boxes[..., 2:])
        return np.concatenate([np.minimum(one, other), np.abs(one - other)], axis=-1)

    def turn_maps(self, maps: np.ndarray) -> np.ndarray:
        """Turn maps (…, height, width) that have a value for every pixel of the stored image."""
        swapped = maps.swapaxes(-2, -1)
        return {
            1: maps,
            2: maps[..., ::-1],
            3: maps[..., ::-1, ::-1],
            4: maps[..., ::-1, :],
            5: swapped,
            6: swapped[..., ::-1],
            7: swapped[..., ::-1, ::-1],
            8: swapped[..., ::-1, :],
        }[self.tag]


def open_rgb(source: Source) -> tuple[PillowImage.Image, Orientation]:
    """Decode an image into upright 8-bit RGB, and return how it was turned. Raise `DataError` if that is impossible."""
    from PIL import ImageOps

    with _open_image(source) as image:
        orientation = _read_orientation(image)
        return _convert_to_rgb(ImageOps.exif_transpose(image) if orientation.is_turned else image), orientation


def open_class_map(source: Source) -> np.ndarray:
    """Decode an image whose pixels are class numbers, (height, width), as stored. Raise `DataError` for any other."""
    with _open_image(source, LOSSLESS_FORMATS) as image:
        numbers = np.array(image)
        if numbers.ndim != 2 or numbers.dtype.kind not in "bu":
            raise DataError(f"must have one class number for each pixel, but its mode is {image.mode}")
        return numbers


def image_size(source: Source) -> tuple[int, int]:
    """Return the width and height of an image as stored. Only its header is read."""
    with _open_image(source) as image:
        return image.size


def check_image(source: Source) -> Orientation:
    """Refuse an image that `open_rgb` would refuse. A file that has its end marker is complete, and is not decoded."""
    with _open_image(source) as image:
        orientation = _read_orientation(image)
        if not _has_end_marker(image):
            image.load()
        return orientation


def read_image_rows(
    rows: Dataset, split: str, columns: str | list[str], read: Callable[[dict[str, Any]], Result]
) -> list[Result]:
    """Apply `read` to every row of these image columns in threads, and return the results in row order.

    A `DataError` of `read` is raised with the split, the row and the last column; of several, that of the first row.
    """
    names = [columns] if isinstance(columns, str) else columns
    encoded = rows.select_columns(names)
    for name in names:
        encoded = keep_encoded(encoded, name)
    results: list[Result] = []
    with ThreadPoolExecutor(THREADS) as pool:
        for chunk in _split_into_chunks(encoded):
            for result in pool.map(_catch_data_error, [read] * len(chunk), chunk):
                if isinstance(result, DataError):
                    raise DataError(str(result), split=split, row=len(results), column=names[-1]) from None
                results.append(result)
    return results


def keep_encoded(rows: Dataset, column: str = "image") -> Dataset:
    """Return the rows with images as `Source`. The decoder of `datasets` opens any format and drops orientations."""
    from datasets import Image

    return rows.cast_column(column, Image(decode=False))


def _catch_data_error(read: Callable[[dict[str, Any]], Result], row: dict[str, Any]) -> Result | DataError:
    try:
        return read(row)
    except DataError as error:
        return error


def _split_into_chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk


@contextmanager
def _open_image(source: Source, formats: tuple[str, ...] = FORMATS) -> Iterator[ImageFile]:
    """Open an image. Any error inside the block becomes a `DataError` that names the file."""
    from PIL import Image

    path, content = _split_source(source)
    with _PILLOW_WARNINGS:
        try:
            with _open_stream(path, content) as stream, Image.open(stream, formats=formats) as image:
                yield image
        except Exception as error:  # Pillow's decoders raise errors of any type for a damaged file
            cause = _explain_error(error, formats)
            raise DataError(f"the image {path!r} {cause}" if path else f"the image {cause}") from error


class _PillowWarnings:
    """Filters for Pillow's warnings, set by the first thread that enters and restored by the last that leaves.

    `warnings.catch_warnings` alone is not safe in threads: each would restore what another has set.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._filters = ExitStack()

    def __enter__(self) -> None:
        from PIL import Image

        with self._lock:
            self._entered += 1
            if self._entered == 1:
                self._filters.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", UserWarning)  # odd metadata, which is not read
                warnings.simplefilter("error", Image.DecompressionBombWarning)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                self._filters.close()


_PILLOW_WARNINGS = _PillowWarnings()


def _split_source(source: Source | None) -> tuple[str, bytes | None]:
    if source is None:
        raise DataError("there is no image")
    if isinstance(source, bytes):
        return "", source
    if isinstance(source, Mapping):
        return source.get("path") or "", source.get("bytes")
    return str(source), None


def _open_stream(path: str, content: bytes | None) -> BinaryIO:
    file = Path(path)
    if content is None and not path:
        raise DataError("is neither a file nor bytes")
    if content is None and file.exists() and not file.is_file():
        raise DataError("is not a file")  # opening a pipe would hang
    if not (file.stat().st_size if content is None else content):
        raise DataError("is empty: it has 0 bytes")
    return file.open("rb") if content is None else io.BytesIO(content)


def _explain_error(error: Exception, formats: tuple[str, ...]) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, Image.DecompressionBombWarning | Image.DecompressionBombError):
        return f"has more than {Image.MAX_IMAGE_PIXELS:,} pixels, which is refused as a decompression bomb"
    if isinstance(error, UnidentifiedImageError):
        return f"is damaged, or not one of {', '.join(formats)}"
    return f"can't be read: {error or type(error).__name__}"


def _read_orientation(image: PillowImage.Image) -> Orientation:
    tag = image.getexif().get(ORIENTATION_TAG, 1)
    return Orientation(tag if tag in range(1, 9) else 1, *image.size)


def _convert_to_rgb(image: PillowImage.Image) -> PillowImage.Image:
    if image.mode.startswith("I"):
        image = _reduce_to_eight_bits(image)
    elif image.mode == "F":
        raise DataError("has 32-bit floats for pixels, whose range is unknown; save it with 8 or 16 bits")
    elif image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # otherwise Pillow warns of palettes with transparency
    return image.convert("RGB")


def _reduce_to_eight_bits(image: PillowImage.Image) -> PillowImage.Image:
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise DataError("has pixels of more than 16 bits; save it with 8 or 16")
    return Image.fromarray((pixels >> 8).astype(np.uint8))


def _has_end_marker(image: ImageFile) -> bool:
    marker = _END_MARKERS.get(image.format or "")
    stream = image.fp
    if marker is None or stream is None:
        return False
    end = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, end - _TAIL_BYTES))
    return marker in stream.read()
