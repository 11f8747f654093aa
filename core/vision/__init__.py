"""Helpers for authors of recipes on images: samples, augmentation, boxes, masks, losses, descriptions."""

from typing import TYPE_CHECKING

from taskrecipe.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from taskrecipe.vision import detection_losses, mask_losses
    from taskrecipe.vision.augmentation import Augment, Scene
    from taskrecipe.vision.average_precision import MOST_PREDICTIONS
    from taskrecipe.vision.batch_norm import find_batch_norms, freeze_batch_norm
    from taskrecipe.vision.boxes import Format, as_boxes, from_centers, to_centers, to_sizes
    from taskrecipe.vision.description import describe_objects, describe_pixels, restore_pixels
    from taskrecipe.vision.detection_losses import to_full_precision
    from taskrecipe.vision.drawing import color_map, draw_shapes
    from taskrecipe.vision.masks import OutlineReader, boxes_around, pack_masks, scale_masks, unpack_masks
    from taskrecipe.vision.object_recipe import NO_CLASS, ObjectOptions, ObjectRecipe
    from taskrecipe.vision.objects import ObjectReader
    from taskrecipe.vision.processors import load_image_processor, load_sized_processor, load_square_processor
    from taskrecipe.vision.sample_images import SHAPE_NAMES, draw_image, draw_images, make_sample_splits

_MODULES = {
    "taskrecipe.vision.augmentation": ["Augment", "Scene"],
    "taskrecipe.vision.average_precision": ["MOST_PREDICTIONS"],
    "taskrecipe.vision.batch_norm": ["find_batch_norms", "freeze_batch_norm"],
    "taskrecipe.vision.boxes": ["Format", "as_boxes", "from_centers", "to_centers", "to_sizes"],
    "taskrecipe.vision.description": ["describe_objects", "describe_pixels", "restore_pixels"],
    "taskrecipe.vision.detection_losses": ["to_full_precision"],
    "taskrecipe.vision.drawing": ["color_map", "draw_shapes"],
    "taskrecipe.vision.masks": ["OutlineReader", "boxes_around", "pack_masks", "scale_masks", "unpack_masks"],
    "taskrecipe.vision.object_recipe": ["NO_CLASS", "ObjectOptions", "ObjectRecipe"],
    "taskrecipe.vision.objects": ["ObjectReader"],
    "taskrecipe.vision.processors": ["load_image_processor", "load_sized_processor", "load_square_processor"],
    "taskrecipe.vision.sample_images": ["SHAPE_NAMES", "draw_image", "draw_images", "make_sample_splits"],
}

__all__ = [
    "MOST_PREDICTIONS",
    "NO_CLASS",
    "SHAPE_NAMES",
    "Augment",
    "Format",
    "ObjectOptions",
    "ObjectReader",
    "ObjectRecipe",
    "OutlineReader",
    "Scene",
    "as_boxes",
    "boxes_around",
    "color_map",
    "describe_objects",
    "describe_pixels",
    "detection_losses",
    "draw_image",
    "draw_images",
    "draw_shapes",
    "find_batch_norms",
    "freeze_batch_norm",
    "from_centers",
    "load_image_processor",
    "load_sized_processor",
    "load_square_processor",
    "make_sample_splits",
    "mask_losses",
    "pack_masks",
    "restore_pixels",
    "scale_masks",
    "to_centers",
    "to_full_precision",
    "to_sizes",
    "unpack_masks",
]

# The two modules of losses are found as submodules: their functions have the same names.
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
