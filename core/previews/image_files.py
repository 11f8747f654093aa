"""Images of a preview with their shapes drawn on them: as files, or shown by terminals that can."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.description import DescribedImage
from taskrecipe.errors import UsageError
from taskrecipe.system.terminal import printable

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console

    from taskrecipe.previews.preview import Preview

COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#f032e6", "#808000", "#000075")
"""Colors of classes, in the order in which they appear; far apart, and dark enough for white text."""

SMALLEST_SIDE = 256
"""Smaller images are enlarged, so that shapes and labels can be seen."""

MASK_STRENGTH = 0.45
"""How opaque masks are."""


def class_colors(labels: Iterable[str]) -> dict[str, str]:
    """Give each label a color."""
    return {label: COLORS[number % len(COLORS)] for number, label in enumerate(dict.fromkeys(labels))}


def paint_masks(described: DescribedImage, colors: Mapping[str, str]) -> Image | None:
    """Return all masks as one transparent image; None if there are none."""
    from PIL import Image, ImageColor

    masked = [shape for shape in described.shapes if shape.mask is not None]
    if not masked:
        return None
    layer = np.zeros((described.image.height, described.image.width, 4), dtype=np.uint8)
    for shape in masked:
        layer[np.asarray(shape.mask, dtype=bool)] = (*ImageColor.getrgb(colors[shape.label])[:3], 255)
    layer[..., 3] = (layer[..., 3] * MASK_STRENGTH).astype(np.uint8)
    return Image.fromarray(layer)


def draw_shapes(described: DescribedImage, colors: Mapping[str, str]) -> Image:
    """Return the image with its masks, boxes and labels, enlarged if it is small."""
    from PIL import Image, ImageDraw, ImageFont

    image = described.image.convert("RGBA")
    if (layer := paint_masks(described, colors)) is not None:
        image = Image.alpha_composite(image.convert("L").convert("RGBA"), layer)  # colors of masks stay as they are
    scale = max(1, -(-SMALLEST_SIDE // max(image.size)))
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).convert("RGB")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(size=14)
    for shape in described.shapes:
        if shape.box is not None:
            left, top, right, bottom = (edge * scale for edge in shape.box)
            pen.rectangle((left, top, max(right, left), max(bottom, top)), outline=colors[shape.label], width=2)
            _draw_label(pen, (left, max(top - 18, 0)), shape.label, colors[shape.label], font)
    return image


def _draw_label(pen: Any, place: tuple[float, float], label: str, color: str, font: Any) -> None:
    text = printable(label)
    pen.rectangle(pen.textbbox(place, text, font=font), fill=color)
    pen.text(place, text, fill="white", font=font)


def write_images(preview: Preview, folder: Path) -> dict[int, Path]:
    """Write every shown image into a folder, and return the files by the number of the example."""
    written = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, example in enumerate(preview.examples):
            if isinstance(example.description, DescribedImage):
                path = folder / f"{example.split.replace('/', '-')}-{example.row}.png"
                path.write_bytes(encode_png(draw_shapes(example.description, preview.colors)))
                written[number] = path
    except OSError as error:
        raise UsageError(f"{printable(str(folder))}: images can't be written: {error.strerror}") from None
    return written


def encode_png(image: Image) -> bytes:
    """Return the bytes of a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


# Terminals ------------------------------------------------------------------------------------------------


def show_inline(png: bytes, console: Console) -> bool:
    """Show an image on a terminal that is known to be able to; return whether it was shown."""
    if not console.is_terminal or "TMUX" in os.environ or "STY" in os.environ:
        return False
    program = os.environ.get("TERM_PROGRAM", "")
    if "KITTY_WINDOW_ID" in os.environ or program == "ghostty":
        console.file.write("".join(_kitty_commands(png)) + "\n")
    elif program in ("iTerm.app", "WezTerm"):
        console.file.write(f"\x1b]1337;File=inline=1;size={len(png)}:{base64.b64encode(png).decode()}\x07\n")
    else:
        return False
    return True


def _kitty_commands(png: bytes) -> Iterator[str]:
    """Yield the commands that send an image to kitty, which takes it in parts of 4096 characters."""
    text = base64.b64encode(png).decode()
    parts = [text[start : start + 4096] for start in range(0, len(text), 4096)]
    for number, part in enumerate(parts):
        begin = "a=T,f=100," if number == 0 else ""
        yield f"\x1b_G{begin}m={int(number < len(parts) - 1)};{part}\x1b\\"
