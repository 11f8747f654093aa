"""`model/` of a run is what `transformers.pipeline` loads, by the very line that its card shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SampleRun = Callable[[str], Path]

TEXT = "garden river stone winter"


def load_as_the_card_says(run: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the card's Python where the card says that it works: beside the folder `model`."""
    monkeypatch.chdir(run)
    [code] = re.findall(r"```python\n(.*?)```", (run / "model" / "README.md").read_text(), re.DOTALL)
    space: dict[str, Any] = {}
    exec(code, space)
    return space


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mrpc", "token_classification", "mlm", "clm"])
def test_a_text_model_is_loaded_by_a_pipeline(
    name: str, sample_run: SampleRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = load_as_the_card_says(sample_run(name), monkeypatch)["predict"]
    text = f"{TEXT} {predict.tokenizer.mask_token}" if name == "mlm" else TEXT
    found = predict(text)
    assert isinstance(found, list)
    if name == "mrpc":
        assert found[0]["label"] in ("equivalent", "not_equivalent")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["image_classification", "semantic_segmentation", "detection"])
def test_an_image_model_is_loaded_by_a_pipeline(
    name: str, sample_run: SampleRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    from PIL import Image

    predict = load_as_the_card_says(sample_run(name), monkeypatch)["predict"]
    found = predict(Image.fromarray(np.zeros((64, 64, 3), dtype=np.uint8)))
    assert isinstance(found, list)


@pytest.mark.parametrize(
    "name", ["question_answering", "swag", "seq2seq", "two_tower", "multitask", "instance_segmentation"]
)
def test_without_a_pipeline_the_card_shows_how_the_run_is_used(name: str, sample_run: SampleRun) -> None:
    card = (sample_run(name) / "model" / "README.md").read_text()
    assert "pipeline(" not in card
    assert "recipe predict run INPUT" in card
    assert "model = run.model()" in card
