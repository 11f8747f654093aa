"""`--to hf`: one model in the Hugging Face layout, with the parts of techniques merged into it, and its card."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.export.check_batches import load_check_rows
from taskrecipe.export.model_card import write_card
from taskrecipe.export.portable_spec import SPEC
from taskrecipe.export.round_trip import Check, check_model_folder
from taskrecipe.export.run_card import card_of_run
from taskrecipe.run.export import BASE, export_model, exported_source, load_exported_model, read_about
from taskrecipe.run.folder_names import MODEL

if TYPE_CHECKING:
    from taskrecipe.run.handle import Run

CARD = "README.md"

NOT_EXPORTED = (".*", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.py")
"""Files that a run never writes into its model: hidden ones, pickles and code that someone has put there."""


def write_hf_folder(run: Run, folder: Path, place: str | None = None) -> Check:
    """Write the model into an empty folder, load it again in a fresh process, and compare the outputs.

    `place` is the hub id that it will have, which its card then shows.
    """
    model = run.folder / MODEL
    parts = load_check_rows(run.recipe, model)
    about = read_about(model)
    if BASE in about:
        merged = load_exported_model(run.recipe, model, merged=True)
        export_model(merged, run.recipe, [], folder, base=exported_source(model), step=about["step"])
        shutil.copyfile(model / SPEC, folder / SPEC)
    else:
        shutil.copytree(model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*NOT_EXPORTED))
    (folder / CARD).write_text(write_card(card_of_run(run, place)), encoding="utf-8")
    return check_model_folder(run.folder, folder, run.model(), parts)
