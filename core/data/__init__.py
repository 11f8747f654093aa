"""Rows: where they come from and how they are checked. The names below are for authors of recipes."""

from typing import TYPE_CHECKING

from taskrecipe.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from taskrecipe.data.cache import map_rows
    from taskrecipe.data.columns import require_columns
    from taskrecipe.data.image_facts import check_images
    from taskrecipe.data.images import (
        Orientation,
        check_image,
        image_size,
        keep_encoded,
        open_class_map,
        open_rgb,
        read_image_rows,
    )
    from taskrecipe.data.labels import (
        add_labels,
        align_labels,
        check_classes,
        check_numbers,
        count_labels,
        label_ids,
        learn_classes,
    )
    from taskrecipe.data.text import check_text

__all__ = [
    "Orientation",
    "add_labels",
    "align_labels",
    "check_classes",
    "check_image",
    "check_images",
    "check_numbers",
    "check_text",
    "count_labels",
    "image_size",
    "keep_encoded",
    "label_ids",
    "learn_classes",
    "map_rows",
    "open_class_map",
    "open_rgb",
    "read_image_rows",
    "require_columns",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "taskrecipe.data.cache": ["map_rows"],
        "taskrecipe.data.columns": ["require_columns"],
        "taskrecipe.data.image_facts": ["check_images"],
        "taskrecipe.data.images": [
            "Orientation",
            "check_image",
            "image_size",
            "keep_encoded",
            "open_class_map",
            "open_rgb",
            "read_image_rows",
        ],
        "taskrecipe.data.labels": [
            "add_labels",
            "align_labels",
            "check_classes",
            "check_numbers",
            "count_labels",
            "label_ids",
            "learn_classes",
        ],
        "taskrecipe.data.text": ["check_text"],
    },
)
