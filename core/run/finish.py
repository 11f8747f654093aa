"""The end of a run: the best weights are exported with their card, and the results and the report are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taskrecipe.errors import Interrupted
from taskrecipe.export.model_card import write_card
from taskrecipe.export.portable_spec import SPEC as PORTABLE_SPEC
from taskrecipe.export.portable_spec import write_portable_spec
from taskrecipe.export.run_card import has_chat_template, make_card
from taskrecipe.run.conclusion import Conclusion
from taskrecipe.run.expectations import check_expectations, describe_unmet
from taskrecipe.run.export import export_model
from taskrecipe.run.folder_names import RESULTS
from taskrecipe.run.results import make_results
from taskrecipe.spec.resolve import Resolved
from taskrecipe.training.ema import evaluation_weights
from taskrecipe.training.events import Event, Reported, Warned
from taskrecipe.training.exchange import broadcast_json
from taskrecipe.training.sharding import help_gather, whole_weights
from taskrecipe.training.state import saved_weights


def finish_run(
    conclusion: Conclusion, resolved: Resolved, hub: Mapping[str, Any], loading_seconds: float
) -> str | None:
    """Export the best weights and write the results; return what `[expect]` says and was not met.

    All processes take part; the main one writes. A run that was stopped early exports nothing. If a signal did it,
    raise `Interrupted`.
    """
    loop, folder, found = conclusion.loop, conclusion.folder, None
    about = {"name": folder.name, "hub": hub}
    timings = {"loading": loading_seconds, **loop.progress.seconds, "conclusion": conclusion.seconds}
    results = make_results(conclusion, about, timings)
    if not loop.is_stopped:
        _export_weights(conclusion, resolved, results)
    if loop.accelerator.is_main_process:
        if loop.is_stopped:
            is_paused = loop.control.paused and not loop.control.signum
            results |= {"reason": loop.control.stopping, "paused": is_paused}
        else:
            results["expect"] = check_expectations(loop.spec.expect, results, folder.checkpoints)
            found = describe_unmet(results["expect"])
        folder.write_json(RESULTS, results)
    unmet: str | None = broadcast_json(found)
    if loop.control.signum:
        raise _interrupted(conclusion, loop.control.signum)
    return unmet


def _interrupted(conclusion: Conclusion, signum: int) -> Interrupted:
    step, reason = conclusion.loop.progress.step, conclusion.loop.control.stopping
    saved = f"checkpoint saved after update {step}" if step else "no update was taken"
    return Interrupted(signum, f"{reason}; {saved}. Continue with: recipe resume {conclusion.folder.path}")


def _export_weights(conclusion: Conclusion, resolved: Resolved, results: dict[str, Any]) -> None:
    """Export the weights, which are the best ones since the conclusion. All processes take part, one writes."""
    state, effects = conclusion.loop.state, conclusion.prepared.effects
    names = saved_weights(state.module, effects)
    with evaluation_weights(state.module, state.optimizer, state.ema):
        if conclusion.loop.accelerator.is_main_process:
            with conclusion.folder.replacing_model() as target, whole_weights(state.module, names, target):
                _write_model(conclusion, resolved, results, target)
        else:
            help_gather(state.module, names)


def _write_model(conclusion: Conclusion, resolved: Resolved, results: dict[str, Any], target: Path) -> None:
    """Write the model with its card and its spec into a folder."""
    module, prepared = conclusion.loop.state.module, conclusion.prepared
    base = prepared.loaded.source
    whole = export_model(module, prepared.recipe, prepared.effects, target, base=base, step=conclusion.step)
    architecture = type(module).__name__ if whole else None
    card = make_card(resolved, results, base, architecture, conclusion.folder.path)
    card = replace(card, is_chat=has_chat_template(target))
    (target / "README.md").write_text(write_card(card), encoding="utf-8")
    (target / PORTABLE_SPEC).write_text(write_portable_spec(resolved), encoding="utf-8")


def write_run_report(folder: Path, step: int) -> Event:
    """Write the report of a run that has finished. Whatever goes wrong is a warning: the run is done."""
    try:
        from taskrecipe.report.write import write_report

        return Reported(step, str(write_report([folder])))
    except Exception as error:
        return Warned(step, f"no report was written: {type(error).__name__}: {error}")
