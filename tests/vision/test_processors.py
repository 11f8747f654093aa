"""Image processors give images of the size that the model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageClassification

from taskrecipe.model import ModelSource
from taskrecipe.vision.processors import load_image_processor, load_sized_processor

SMALL: dict[str, dict[str, Any]] = {
    "vit": {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24},
    "deit": {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24},
    "convnext": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
    "mobilenet_v2": {"depth_multiplier": 0.1},
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_model_built_from_its_type_sees_images_of_its_size(kind: str) -> None:
    source = ModelSource(None, kind, config_values={**SMALL[kind], "image_size": 64})
    pixels = load_sized_processor(source)(Image.new("RGB", (120, 80)))["pixel_values"][0]
    assert pixels.shape == (3, 64, 64)
    with torch.no_grad():
        outputs = source.model(AutoModelForImageClassification).eval()(torch.tensor(np.array([pixels])))
    assert outputs.logits.shape == (1, 2)


def test_a_model_that_comes_with_a_processor_keeps_its_size(tmp_path: Path) -> None:
    source = ModelSource(None, "vit", config_values={**SMALL["vit"], "image_size": 64})
    source.config().save_pretrained(tmp_path)
    load_image_processor(source, size={"height": 48, "width": 48}).save_pretrained(tmp_path)
    assert load_sized_processor(ModelSource(str(tmp_path))).size["height"] == 48
    changed = ModelSource(str(tmp_path), config_values={"image_size": 96})
    assert load_sized_processor(changed).size["height"] == 96
