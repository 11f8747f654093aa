"""Numbers about the objects of many images, from preprocessed rows and without a loop over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

SMALL_SIDE = 8
"""Objects whose side is shorter than this many pixels of the model's image are hard to find."""


def summarize_objects(rows: Dataset, image_size: int) -> dict[str, str]:
    """Say how many objects images have, and how large they are in pixels of the image that the model sees."""
    import pyarrow.compute as pc

    table = rows.select_columns(["width", "height", "areas"]).with_format("arrow")[:]
    counts = pc.list_value_length(table["areas"]).to_numpy()
    if not counts.sum():
        return {"objects": "none"}
    longest = np.maximum(table["width"].to_numpy(), table["height"].to_numpy())
    sides = np.sqrt(pc.list_flatten(table["areas"]).to_numpy()) * np.repeat(image_size / longest, counts)
    small = float((sides < SMALL_SIDE).mean())
    return {
        "objects an image": f"{counts.mean():.1f} on average, {counts.max()} at most, "
        f"{int((counts == 0).sum()):,} images without any",
        "object sides": f"{_list_quantiles(sides)} pixels at image_size = {image_size}; "
        f"{100 * small:.1f} % are below {SMALL_SIDE}",
    }


def _list_quantiles(values: Any) -> str:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return f"p5 {low:.0f}, p50 {middle:.0f}, p95 {high:.0f}"
