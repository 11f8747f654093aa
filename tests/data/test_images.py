"""Hostile images are refused by name, odd ones become upright RGB, and boxes turn with them."""

from __future__ import annotations

import io
import os
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image

from taskrecipe.data.image_facts import check_images
from taskrecipe.data.images import (
    ORIENTATION_TAG,
    Orientation,
    check_image,
    image_size,
    open_class_map,
    open_rgb,
    read_image_rows,
)
from taskrecipe.errors import DataError


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_png_mode_becomes_rgb(mode: str) -> None:
    image, orientation = open_rgb(encoded(noise(7, 5, mode)))
    assert (image.mode, image.size, orientation) == ("RGB", (7, 5), Orientation(1, 7, 5))


def test_cmyk_becomes_rgb() -> None:
    image, _ = open_rgb(encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = image.getpixel((1, 1))
    assert image.mode == "RGB"
    assert red > 200
    assert green < 60
    assert blue < 60


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    image, _ = open_rgb(encoded(Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], dtype=np.uint16))))
    assert [image.getpixel((x, 0))[0] for x in range(3)] == [0, 0x80, 0xFF]


def test_palette_with_transparency_raises_no_warning() -> None:
    image = noise(4, 4).convert("P", palette=Image.Palette.ADAPTIVE, colors=8)
    assert open_rgb(encoded(image, transparency=bytes(range(8))))[0].mode == "RGB"


def test_thirty_thousand_by_one_and_one_by_one_open() -> None:
    assert open_rgb(encoded(noise(30000, 1)))[0].size == (30000, 1)
    assert open_rgb(encoded(noise(1, 1)))[0].size == (1, 1)


@pytest.mark.parametrize("tag", range(1, 9))
def test_boxes_and_maps_turn_with_the_image(tag: int) -> None:
    stored = np.zeros((30, 40, 3), dtype=np.uint8)
    x, y, width, height = box = (4, 6, 9, 5)
    stored[y : y + height, x : x + width] = 255
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = tag

    upright, orientation = open_rgb(encoded(Image.fromarray(stored), "PNG", exif=exif.tobytes()))

    left, top, right, bottom = upright.convert("L").getbbox()
    turned = orientation.turn_boxes(np.array([box], dtype=np.float64))[0]
    assert np.array_equal(orientation.turn_maps(stored[..., 0]), np.asarray(upright)[..., 0])
    assert upright.size == orientation.size
    assert turned.tolist() == [left, top, right - left, bottom - top]


def test_an_orientation_that_exif_does_not_know_is_none() -> None:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 77
    assert open_rgb(encoded(noise(3, 2), "JPEG", exif=exif.tobytes()))[1] == Orientation(1, 3, 2)


def test_sources_may_be_paths_bytes_and_undecoded_values(tmp_path: Path) -> None:
    content = encoded(noise(3, 2))
    path = tmp_path / "a.png"
    path.write_bytes(content)
    sources = (
        path,
        str(path),
        content,
        {"path": str(path), "bytes": None},
        {"path": "gone.png", "bytes": content},
    )
    assert {open_rgb(source)[0].tobytes() for source in sources} == {noise(3, 2).tobytes()}
    assert {image_size(source) for source in sources} == {(3, 2)}


HALF_JPEG = encoded(noise(64, 64), "JPEG")[:-900]
BOMB = encoded(Image.new("1", (10_000, 9_000)))

REFUSED = {
    "empty": (b"", "is empty"),
    "not an image": (b"<html></html>" * 9, "not one of JPEG, PNG"),
    "truncated jpeg": (HALF_JPEG, "truncated"),
    "truncated png": (encoded(noise(64, 64))[:-900], "can't be read"),
    "truncated webp": (encoded(noise(64, 64), "WEBP")[:-900], "can't be read|damaged"),
    "bomb": (BOMB, "decompression bomb"),
    "format not allowed": (encoded(noise(8, 8), "PCX"), "not one of JPEG, PNG"),
    "neither": ({"path": None, "bytes": None}, "neither a file nor bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_images_are_refused(name: str) -> None:
    source, message = REFUSED[name]
    for opened in (open_rgb, check_image):
        with pytest.raises(DataError, match=message):
            opened(source)


def test_float_pixels_are_refused() -> None:
    with pytest.raises(DataError, match="32-bit floats"):
        open_rgb(encoded(Image.fromarray(np.ones((2, 2), dtype=np.float32)), "TIFF"))


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png' is missing"):
        open_rgb(tmp_path / "gone.png")
    with pytest.raises(DataError, match="is not a file"):
        open_rgb(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is not a file"):
        open_rgb(tmp_path / "pipe")


def test_a_whole_image_with_bytes_after_its_end_passes() -> None:
    check_image(encoded(noise(8, 8), "JPEG") + b"\0" * 500)


def image_rows(*images: object) -> Dataset:
    return Dataset.from_dict({"image": list(images)}, features=Features({"image": ImageFeature()}))


GOOD = {"bytes": encoded(noise(8, 8)), "path": None}
BAD = {"bytes": HALF_JPEG, "path": None}


@pytest.mark.parametrize("bad", [BAD, None])
def test_checking_a_column_names_split_row_and_column(bad: object) -> None:
    with pytest.raises(DataError) as caught:
        check_images(image_rows(GOOD, bad), "train")
    assert (caught.value.split, caught.value.row, caught.value.column) == ("train", 1, "image")


@pytest.mark.parametrize("row", [3, 400])
def test_of_several_bad_rows_the_first_is_named(row: int) -> None:
    images = [GOOD] * row + [BAD] + [GOOD, {"bytes": b"", "path": None}] * 50
    with pytest.raises(DataError, match="truncated") as caught:
        check_images(image_rows(*images), "train")
    assert caught.value.row == row


def test_rows_are_read_at_the_same_time_and_returned_in_order() -> None:
    images = [{"bytes": encoded(noise(width, 1)), "path": None} for width in range(1, 301)]
    meeting = threading.Barrier(2)  # a single thread would wait here until the time is over

    def read(row: dict[str, object]) -> int:
        width = image_size(row["image"])[0]
        if width <= 2:
            meeting.wait(timeout=10)
            time.sleep(0.02 if width == 1 else 0)
        return width

    assert read_image_rows(image_rows(*images), "train", "image", read) == list(range(1, 301))


def test_threads_leave_the_filters_of_warnings_as_they_were() -> None:
    before = list(warnings.filters)
    with pytest.raises(DataError, match="decompression bomb"):
        check_images(image_rows(*[GOOD] * 200, {"bytes": BOMB, "path": None}, *[GOOD] * 100), "train")
    assert warnings.filters == before


def test_class_maps_keep_their_numbers() -> None:
    for dtype, most in ((np.uint8, 255), (np.uint16, 65535)):
        numbers = np.array([[0, 1, most]], dtype=dtype)
        assert open_class_map(encoded(Image.fromarray(numbers))).tolist() == numbers.tolist()
    palette = Image.fromarray(np.array([[0, 3]], dtype=np.uint8), "L").convert("P")
    palette.putpalette([9] * 768)
    assert open_class_map(encoded(palette)).tolist() == [[0, 3]]


def test_class_maps_of_colors_or_of_a_lossy_format_are_refused() -> None:
    with pytest.raises(DataError, match="must have one class number for each pixel, but its mode is RGB"):
        open_class_map(encoded(noise(2, 2)))
    with pytest.raises(DataError, match="not one of PNG, BMP, TIFF"):
        open_class_map(encoded(noise(8, 8, "L"), "JPEG"))
