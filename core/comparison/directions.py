"""Which way each metric of a run is better, from its recipe, without loading anything heavy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from taskrecipe.errors import RecipeError

if TYPE_CHECKING:
    from taskrecipe.comparison.run_summary import RunSummary
    from taskrecipe.recipe import Direction

_known: dict[str, dict[str, Direction]] = {}
"""Of specs that differ neither in recipe nor in what it reports, one is asked."""


def find_directions(run: RunSummary) -> dict[str, Direction]:
    """Return the direction of every metric that a run reports; of a recipe that is not installed, only the loss."""
    asked = {key: run.spec.get(key) for key in ("recipe", "task", "evaluate", "data")}
    key = json.dumps(asked, sort_keys=True, default=str)
    if key not in _known:
        _known[key] = _ask_recipe(run)
    return _known[key]


def _ask_recipe(run: RunSummary) -> dict[str, Direction]:
    from taskrecipe.plugins.registry import installed
    from taskrecipe.recipe import reported_metrics
    from taskrecipe.spec.spec import Spec

    try:
        spec = Spec.model_validate(run.spec)
        return {"loss": "min", **reported_metrics(installed().recipe(spec.recipe)(spec))}
    except (RecipeError, ValueError):
        return {"loss": "min"}
