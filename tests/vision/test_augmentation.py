"""Augmentation: what is known of an image moves with it, by the given randomness alone."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from taskrecipe.vision.augmentation import STILL_THERE, Augment, Scene
from taskrecipe.vision.sample_images import draw_image, draw_images

ALL = Augment(flip=0.5, scale=0.4, crop=0.7, color=0.0)


def make_scene(seed: int, size: int = 64) -> Scene:
    """An image in which the masks are painted white, so that pixels tell where they went."""
    image = draw_image(np.random.default_rng(seed), size, fewest=1, most=3)
    pixels = np.where(image.masks.any(0)[..., None], 255, 0).astype(np.uint8).repeat(3, axis=-1)
    corners = np.concatenate([image.boxes[:, :2], image.boxes[:, :2] + image.boxes[:, 2:]], axis=1)
    return Scene(Image.fromarray(pixels), image.classes, corners, image.masks, image.class_map, outside=255)


def tight(mask: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@pytest.mark.parametrize("seed", range(40))
def test_boxes_masks_and_maps_follow_the_pixels(seed: int) -> None:
    scene = ALL.apply(make_scene(seed), np.random.default_rng(seed))
    width, height = scene.image.size
    assert scene.masks.shape == (len(scene.boxes), height, width)
    assert scene.class_map.shape == (height, width)
    assert len(scene.labels) == len(scene.boxes)
    white = np.asarray(scene.image)[..., 0] == 255
    inside = scene.class_map != 255
    assert (white[inside] == (scene.class_map > 0)[inside]).all()
    assert not white[~inside].any()
    for mask, box, label in zip(scene.masks, scene.boxes, scene.labels, strict=True):
        assert white[mask].all()
        assert (scene.class_map[mask] == label + 1).all()
        # The box of what was cut is the cut box, which may be looser than what is left, but never tighter.
        left, top, right, bottom = tight(mask)
        assert box[0] <= left
        assert box[1] <= top
        assert box[2] >= right
        assert box[3] >= bottom
        assert (box >= 0).all()
        assert (box[2:] <= [width, height]).all()


def test_a_box_is_kept_while_enough_of_it_is_in_sight() -> None:
    scene = Scene(Image.new("RGB", (100, 100)), np.array([0, 1]), np.array([[0.0, 0, 40, 40], [60, 60, 80, 80]]))
    share = int(40 * (1 - STILL_THERE))
    assert scene.take_window(share, 0, (50, 90)).labels.tolist() == [0, 1]
    assert scene.take_window(share + 1, 0, (50, 90)).labels.tolist() == [1]


def test_a_mirrored_image_mirrored_is_itself() -> None:
    scene = make_scene(3)
    again = scene.mirror().mirror()
    assert np.array_equal(np.asarray(again.image), np.asarray(scene.image))
    assert np.allclose(again.boxes, scene.boxes)
    assert np.array_equal(again.masks, scene.masks)
    assert not np.allclose(scene.mirror().boxes, scene.boxes)


def test_the_same_randomness_gives_the_same_image() -> None:
    augment = Augment(flip=0.5, scale=0.4, crop=0.7, color=0.3)
    one, same, other = (augment.apply(make_scene(1), np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert np.array_equal(np.asarray(one.image), np.asarray(same.image))
    assert np.array_equal(one.boxes, same.boxes)
    assert one.image.size != other.image.size or not np.array_equal(np.asarray(one.image), np.asarray(other.image))


def test_nothing_is_changed_where_nothing_is_asked() -> None:
    scene = make_scene(2)
    same = Augment(flip=0.0).apply(scene, np.random.default_rng(0))
    assert np.array_equal(np.asarray(same.image), np.asarray(scene.image))
    assert np.array_equal(same.boxes, scene.boxes)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1)])
def test_the_thinnest_images_are_varied_too(size: tuple[int, int]) -> None:
    for seed in range(20):
        scene = ALL.apply(Scene(Image.new("RGB", size)), np.random.default_rng(seed))
        assert min(scene.image.size) >= 1


def test_colors_change_and_boxes_stay() -> None:
    image = draw_images(1, 48, (0,))[0]
    scene = Scene(Image.fromarray(image.pixels), image.classes, image.boxes)
    varied = Augment(flip=0.0, color=0.5).apply(scene, np.random.default_rng(0))
    assert np.array_equal(varied.boxes, scene.boxes)
    assert not np.array_equal(np.asarray(varied.image), image.pixels)
