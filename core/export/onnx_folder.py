"""`--to onnx`: a graph, the processor, the labels, and a predict.py that runs them without torch."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.export.check_batches import CheckRows, load_check_rows
from taskrecipe.export.hf_folder import CARD
from taskrecipe.export.onnx_graph import Call, record_call, write_graph
from taskrecipe.export.portable_spec import SPEC
from taskrecipe.export.round_trip import Check, check_onnx
from taskrecipe.export.tensors import as_arrays
from taskrecipe.run.export import RECIPE, load_exported_model
from taskrecipe.run.folder_names import MODEL
from taskrecipe.system.library_output import quiet_libraries

if TYPE_CHECKING:
    import torch

    from taskrecipe.export.model_card import Card
    from taskrecipe.recipe import Recipe
    from taskrecipe.run.handle import Run

GRAPH, LABELS, SCRIPT, PIXELS = "model.onnx", "labels.json", "predict.py", "pixels.py"

LENGTHS = ("max_length", "length", "source_length")
"""Options of recipes that say how many tokens a text is cut to."""


def write_onnx_folder(run: Run, folder: Path) -> Check:
    """Write the model as ONNX into an empty folder, run it in a fresh process, and compare the outputs."""
    from taskrecipe.export.run_card import card_of_run

    recipe, model = run.recipe, run.folder / MODEL
    parts = load_check_rows(recipe, model)
    module = load_exported_model(recipe, model, merged=True)
    calls = [record_call(recipe, module, batch) for part in parts for batch in (part.batch, part.first)]
    write_graph(recipe, module, _choose_example(calls), folder / GRAPH)
    for name in (RECIPE, SPEC):
        shutil.copyfile(model / name, folder / name)
    card = card_of_run(run)
    _write_processor(recipe, folder)
    script = _write_script(recipe, card, folder)
    (folder / CARD).write_text(_describe_folder(card, calls[0], script), encoding="utf-8")
    return _check_graph(folder / GRAPH, parts, module, run)


def _choose_example(calls: list[Call]) -> Call:
    """Return the call with the most rows: a size of 1 would be taken as fixed."""
    return max(calls, key=lambda call: min(len(tensor) for tensor in call.inputs.values()))


def _check_graph(path: Path, parts: list[CheckRows], module: torch.nn.Module, run: Run) -> Check:
    """Compare the graph with the run's own model, on all rows and on one row alone, which has other sizes."""
    own = run.model()
    batches = [batch for part in parts for batch in (part.batch, part.first)]
    inputs = [as_arrays(record_call(run.recipe, module, batch).inputs) for batch in batches]
    expected = [as_arrays(record_call(run.recipe, own, batch).outputs) for batch in batches]
    return check_onnx(path, inputs, expected, sum(len(part.rows) for part in parts))


def _write_processor(recipe: Recipe, folder: Path) -> None:
    """Write the processor. A tokenizer cuts texts to the length that the recipe does, without being told to."""
    (folder / LABELS).write_text(json.dumps(recipe.labels), encoding="utf-8")
    if recipe.processor is None:
        return
    with quiet_libraries("transformers"):
        recipe.processor.save_pretrained(folder)
    if (folder / "tokenizer.json").exists():
        _limit_tokenizer(recipe, folder / "tokenizer.json")


def _limit_tokenizer(recipe: Recipe, path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    given = [getattr(recipe.options, name) for name in LENGTHS if getattr(recipe.options, name, None)]
    longest = min([*given, recipe.processor.model_max_length])
    tokenizer.no_padding()
    stride = getattr(recipe.options, "stride", 0)
    tokenizer.enable_truncation(longest, stride=stride, strategy="only_second" if stride else "longest_first")
    tokenizer.save(str(path))


def _write_script(recipe: Recipe, card: Card, folder: Path) -> bool:
    """Write predict.py for the task of the model; return whether there is one."""
    script = _find_script(card.task.tag) if card.task and card.task.has_script else None
    if script is None or not ((folder / "tokenizer.json").exists() or (folder / "preprocessor_config.json").exists()):
        return False
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    if "from pixels import" in script:
        name = "pixels" if _reads_the_same(recipe, folder) else "pixels-by-transformers"
        (folder / PIXELS).write_text(_find_script(name) or "", encoding="utf-8")
    return True


def _find_script(name: str) -> str | None:
    path = files("taskrecipe.export") / "scripts" / f"{name}.py.txt"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _reads_the_same(recipe: Recipe, folder: Path) -> bool:
    """Whether the short pixels.py gives what the model's image processor gives, on an image of odd sizes."""
    import numpy as np
    from PIL import Image

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (77, 111, 3), dtype=np.uint8))
    expected = recipe.processor(image)
    if "pixel_mask" in expected:
        return False
    space: dict[str, Any] = {"__file__": str(folder / PIXELS), "__name__": "pixels"}
    (folder / "image.png").unlink(missing_ok=True)
    try:
        image.save(folder / "image.png")
        exec(_find_script("pixels") or "", space)  # noqa: S102 - a file of this package
        found = space["read_image"](folder / "image.png")["pixel_values"][0]
    except (KeyError, TypeError, ValueError):  # a processor with other settings than the short script knows
        return False
    finally:
        (folder / "image.png").unlink(missing_ok=True)
    wanted = np.asarray(expected["pixel_values"][0])
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() < 1e-5)


def _describe_folder(card: Card, call: Call, script: bool) -> str:
    """Return the card with the use of this folder instead of that of transformers."""
    from taskrecipe.export.model_card import write_card

    inputs = "\n".join(
        f"| {name} | {str(tensor.dtype).removeprefix('torch.')} | {_describe_shape(tensor, call.sizes()[name])} |"
        for name, tensor in call.inputs.items()
    )
    use = f"`{GRAPH}` takes these inputs, and gives {', '.join(f'`{name}`' for name in call.outputs)}:\n\n"
    use += f"| input | type | shape |\n|---|---|---|\n{inputs}"
    if script:
        use = f"`python {SCRIPT} INPUT` prints the answer as JSON; its first lines say what it takes.\n\n{use}"
    return write_card(card, use)


def _describe_shape(tensor: torch.Tensor, varying: dict[int, str]) -> str:
    return " x ".join(varying.get(place, str(size)) for place, size in enumerate(tensor.shape))
