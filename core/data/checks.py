"""Let a recipe learn from rows and check them once: on the same rows, a second run recalls what came of it.

What comes of it are warnings and plain values that the recipe sets on itself. If a recipe sets anything else, such as
rows, or if rows are refused, nothing is recalled, and every run looks again.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from taskrecipe.data.cache_key import describe_recipe
from taskrecipe.data.facts import keep_fact, look_up_fact, make_key
from taskrecipe.data.file_digest import SMALL_BYTES
from taskrecipe.data.row_digest import fingerprint, image_columns
from taskrecipe.optional import HasParts
from taskrecipe.system.python_warnings import collect_warnings

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.recipe import Recipe

_TABLES = {"recipe", "seed", "task", "model", "data", "evaluate", "predict", "techniques"}
"""What of a spec a check may look at. The rest says how rows are trained on."""


def learn_from_rows(recipe: Recipe, rows: Dataset) -> None:
    """Let the recipe learn from the training rows, or recall what it has learned from them."""
    _act_once(recipe, _name_question(recipe, rows, "learn", "train"), partial(recipe.learn, rows))


def check_rows(recipe: Recipe, rows: Dataset, split: str) -> None:
    """Let the recipe check rows, or recall that it has, and what it warned of."""
    _act_once(recipe, _name_question(recipe, rows, "check", split), partial(recipe.check, rows, split))


def _act_once(recipe: Recipe, key: str | None, act: Callable[[], None]) -> None:
    """Call `act`, which may change the recipe's attributes; or change them as it did the last time."""
    if key is None:
        act()
        return
    known = look_up_fact(key)
    if known is None:
        known = _watch(recipe, act)
        if known["values"] is not None:
            keep_fact(key, known)
    else:
        vars(recipe).update(known["values"])
    for note in known["notes"]:
        warnings.warn(note, stacklevel=3)


def _watch(recipe: Recipe, act: Callable[[], None]) -> dict[str, Any]:
    """Call `act` and return its warnings, and the values it has set; None for these if they can't be kept."""
    before, written = dict(vars(recipe)), _write_values(recipe, id)
    try:
        with collect_warnings() as notes:
            act()
    except BaseException:
        for note in notes:
            warnings.warn(note, stacklevel=4)
        raise
    changed = {name: text for name, text in _write_values(recipe, id).items() if written.get(name) != text}
    values = {name: getattr(recipe, name) for name in changed}
    is_plain = vars(recipe).keys() >= before.keys() and _is_json(values)
    return {"notes": notes, "values": values if is_plain else None}


def _name_question(recipe: Recipe, rows: Dataset, what: str, split: str) -> str | None:
    """Return a hash of all that the answer depends on; None if asking again is as quick, or it is not known."""
    if isinstance(recipe, HasParts) or (rows.data.nbytes < SMALL_BYTES and not image_columns(rows)):
        return None
    try:
        about = [what, split, fingerprint(rows), describe_recipe(recipe)]
    except OSError:  # the recipe says better which file can't be read
        return None
    spec = recipe.spec.model_dump(mode="json", include=_TABLES)
    return make_key([*about, spec, _write_values(recipe, lambda value: type(value).__qualname__)])


def _write_values(recipe: Recipe, name_object: Callable[[Any], Any]) -> dict[str, str]:
    """Return the recipe's attributes as text, to see which of them differ. Objects are only named."""
    return {name: json.dumps(value, default=name_object) for name, value in vars(recipe).items()}


def _is_json(values: Any) -> bool:
    """Whether values are the same after they were written and read."""
    try:
        return bool(json.loads(json.dumps(values)) == values)
    except (TypeError, ValueError):
        return False
