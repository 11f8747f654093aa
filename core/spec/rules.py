"""What keys of a spec demand of one another, beyond what each table says by itself.

A rule is a function that yields what it finds. It names the keys it reads, and is left out where one of them is
broken already, so that one mistake is reported once and hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeVar

from taskrecipe.core.errors import PluginError, RecipeError
from taskrecipe.core.recipe import reported_metrics
from taskrecipe.core.spec.findings import Finding, nearest
from taskrecipe.core.spec.keypath import KeyPath, named, overlap
from taskrecipe.core.spec.secrets import looks_secret

if TYPE_CHECKING:
    from taskrecipe.core.recipe import Recipe
    from taskrecipe.core.spec.spec import Spec

Findings = Iterator[Finding]
_Rule = TypeVar("_Rule", bound=Callable[..., Findings])

_SPEC_RULES: list[tuple[tuple[KeyPath, ...], Callable[[Spec], Findings]]] = []
_RECIPE_RULES: list[tuple[tuple[KeyPath, ...], Callable[[Recipe], Findings]]] = []

SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1

_DECEPTIVE = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]"
"""Control characters but for tab and line end, and those that turn the direction of writing."""


def broken_rules(spec: Spec, make_recipe: Callable[[Spec], Recipe], broken: Collection[KeyPath]) -> Findings:
    """What the rules find in `spec`, of which the values at `broken` are not to be trusted."""

    def intact(keys: tuple[KeyPath, ...]) -> bool:
        return not any(overlap(key, path) for key in keys for path in broken)

    for keys, rule in _SPEC_RULES:
        if intact(keys):
            yield from rule(spec)
    if intact((("recipe",), ("task",))):
        recipe = make_recipe(spec)
        objections = list(_guarded(_objections, recipe))
        yield from (objection for objection in objections if intact((objection.path,)))
        if objections:
            return  # there is no telling what it would say about the rest
        for keys, recipe_rule in _RECIPE_RULES:
            if intact(keys):
                yield from _guarded(recipe_rule, recipe)


def odd_values(values: Any, path: KeyPath = ()) -> Findings:
    """Values that no key should have: secrets, characters that hide what a text says, integers beyond 64 bits."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        here = (*path, key)
        if isinstance(key, str):
            yield from _odd_text(key, here, at_key=True)
        if isinstance(value, str):
            yield from _odd_text(value, here, at_key=False)
        elif isinstance(value, (dict, list)):
            yield from odd_values(value, here)
        elif isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            yield Finding(here, "out-of-range", f"{named(here)} must be an integer of 64 bits")


def _odd_text(text: str, path: KeyPath, *, at_key: bool) -> Findings:
    if looks_secret(text, path):
        advice = "a spec is shared: leave it out, and set HF_TOKEN, WANDB_API_KEY or the like"
        yield Finding(path, "secret", f"{_what(path, at_key)} looks like a secret; {advice}", at_key=at_key)
    if not text.isprintable() and (odd := re.search(_DECEPTIVE, text)):
        message = f"{_what(path, at_key)} has the character U+{ord(odd[0]):04X}, which hides what it says"
        yield Finding(path, "bad-character", message, at_key=at_key)


def _what(path: KeyPath, at_key: bool) -> str:
    return f"a key of {named(path[:-1]) or 'the spec'}" if at_key else named(path)


def _guarded(rule: Callable[[Recipe], Findings], recipe: Recipe) -> Findings:
    """Run a rule that asks the recipe; whatever else than our own errors it raises is the recipe's failure."""
    try:
        yield from rule(recipe)
    except RecipeError:
        raise
    except Exception as cause:
        kind = type(recipe)
        problem = f"{type(cause).__name__}: {cause}"
        raise PluginError(f"recipe {kind.__module__}:{kind.__qualname__} failed on this spec: {problem}") from cause


def _objections(recipe: Recipe) -> Findings:
    for key, reason in recipe.objections().items():
        yield Finding(tuple(key.split(".")), "conflict", reason)


def _reads(*keys: str) -> Callable[[_Rule], _Rule]:
    """Register a rule about the spec, with the keys it reads."""

    def register(rule: _Rule) -> _Rule:
        _SPEC_RULES.append((tuple(tuple(key.split(".")) for key in keys), rule))
        return rule

    return register


def _asks_recipe(*keys: str) -> Callable[[_Rule], _Rule]:
    """Register a rule that asks the recipe, with the keys it reads beside `recipe` and `[task]`."""

    def register(rule: _Rule) -> _Rule:
        _RECIPE_RULES.append((tuple(tuple(key.split(".")) for key in keys), rule))
        return rule

    return register


@_reads("optimizer", "schedule.name")
def _one_schedule(spec: Spec) -> Findings:
    name = spec.optimizer.name
    if spec.optimizer.has_own_schedule and spec.schedule.name != "constant":
        message = f"optimizer '{name}' changes its rate by itself; [schedule].name must be 'constant' beside it"
        yield Finding(("optimizer", "name"), "conflict", message)


@_reads("train.epochs", "train.updates")
def _ends(spec: Spec) -> Findings:
    if spec.train.epochs is None and spec.train.updates is None:
        yield Finding(("train",), "missing-key", "[train] needs 'epochs' or 'updates': how long to train")


@_reads("data.streaming", "train.updates", "train.epochs")
def _stream_ends(spec: Spec) -> Findings:
    if spec.data.streaming and spec.train.updates is None and spec.train.epochs is not None:
        message = "[data].streaming needs [train].updates: how many rows there are is not known beforehand"
        yield Finding(("data", "streaming"), "conflict", message)


@_reads("data.streaming", "train.order")
def _stream_has_no_buckets(spec: Spec) -> Findings:
    if spec.data.streaming and spec.train.order == "bucketed":
        message = "[train].order can't be 'bucketed' with [data].streaming: lengths are not known beforehand"
        yield Finding(("train", "order"), "conflict", message, "shuffled")


@_reads("model.name", "model.type", "data.sample")
def _one_model(spec: Spec) -> Findings:
    name, kind = spec.model.name, spec.model.type
    if name and kind:
        yield Finding(("model", "type"), "conflict", "[model] takes 'name' or 'type', not both")
    elif not (name or kind or spec.data.sample):
        yield Finding(
            ("model",), "missing-key", "[model] needs 'name' (a hub id or folder) or 'type' (an architecture)"
        )


@_reads("data.path", "data.files")
def _one_data_set(spec: Spec) -> Findings:
    if spec.data.path and spec.data.files:
        yield Finding(("data", "path"), "conflict", "[data] takes 'path' (a hub id) or 'files', not both")


@_asks_recipe("data.path", "data.files", "data.sample")
def _data_is_named(recipe: Recipe) -> Findings:
    data = recipe.spec.data
    if not (data.path or data.files or data.sample or recipe.parts()):
        yield Finding(("data",), "missing-key", "[data] needs 'path' (a hub id) or 'files' (local ones)")


@_reads("data.path", "data.name", "data.revision")
def _data_keys_have_an_effect(spec: Spec) -> Findings:
    for key in ("name", "revision"):
        if getattr(spec.data, key) and not spec.data.path:
            yield Finding(
                ("data", key), "no-effect", f"[data].{key} is for a hub id, and [data] has no 'path'", at_key=True
            )


@_reads("model.name", "model.revision")
def _model_revision_has_an_effect(spec: Spec) -> Findings:
    if spec.model.revision and not spec.model.name:
        message = "[model].revision is for a hub id, and [model] has no 'name'"
        yield Finding(("model", "revision"), "no-effect", message, at_key=True)


@_reads("train.updates", "schedule.warmup")
def _warmup_ends(spec: Spec) -> Findings:
    warmup, updates = spec.schedule.warmup, spec.train.updates
    if isinstance(warmup, int) and updates is not None and warmup > updates:
        message = f"[schedule].warmup is {warmup} updates, but [train].updates ends training after {updates}"
        yield Finding(("schedule", "warmup"), "warmup", message)


@_reads("train.batch_size", "train.accumulate", "launch.processes")
def _batch_splits_evenly(spec: Spec) -> Findings:
    size, accumulate, processes = spec.train.batch_size, spec.train.accumulate, spec.launch.processes
    if size % (accumulate * processes):
        parts = f"{accumulate} micro-batches" + (f" on each of {processes} processes" if processes > 1 else "")
        message = f"[train].batch_size {size} can't be split into {parts} of equal size"
        at = ("train", "accumulate") if size % processes == 0 else ("launch", "processes")
        yield Finding(at, "uneven-batch", message, _even_split(size, accumulate, processes))


def _even_split(size: int, accumulate: int, processes: int) -> str | None:
    """The nearest number of micro-batches that would do."""
    if size % processes:
        return None
    rest = size // processes
    small = [count for count in range(1, isqrt(rest) + 1) if rest % count == 0]
    return str(min([*small, *(rest // count for count in small)], key=lambda count: abs(count - accumulate)))


@_reads("train.precision", "launch.device")
def _device_has_precision(spec: Spec) -> Findings:
    # With device "auto" this is known only where the spec is run.
    if spec.launch.device == "cpu" and spec.train.precision in ("fp16", "fp8"):
        message = f"[train].precision '{spec.train.precision}' needs an accelerator, and [launch].device is 'cpu'"
        yield Finding(("train", "precision"), "precision", message, "bf16")


@_reads("evaluate.patience", "evaluate.every")
def _patience_can_end(spec: Spec) -> Findings:
    if spec.evaluate.patience is not None and spec.evaluate.every == "end":
        message = "[evaluate].patience has no effect: every = 'end' evaluates once, when training is over"
        yield Finding(("evaluate", "patience"), "no-effect", message, at_key=True)


@_asks_recipe("train.label_smoothing")
def _labels_can_be_smoothed(recipe: Recipe) -> Findings:
    if recipe.spec.train.label_smoothing and not recipe.smooths_labels:
        message = f"recipe '{recipe.spec.recipe}' has no labels to smooth; leave [train].label_smoothing out"
        yield Finding(("train", "label_smoothing"), "no-effect", message, at_key=True)


@_asks_recipe("data.files", "data.splits", "data.limit", "evaluate.splits")
def _splits_exist(recipe: Recipe) -> Findings:
    data, chosen = recipe.spec.data, recipe.spec.evaluate.splits or []
    known = list(dict.fromkeys([*recipe.splits(), *data.files, *data.splits]))
    named_splits: list[tuple[KeyPath, str, bool]] = [(("data", "limit", split), split, True) for split in data.limit]
    named_splits += [(("evaluate", "splits", index), split, False) for index, split in enumerate(chosen)]
    for path, split, at_key in named_splits:
        if split not in known:
            message = f"{named(path[:2])} names the split '{split}'; there are {', '.join(known)}"
            yield Finding(path, "unknown-split", message, nearest(split, known), at_key)


@_asks_recipe("evaluate.best", "evaluate.splits")
def _best_is_reported(recipe: Recipe) -> Findings:
    best, reported = recipe.spec.evaluate.best, reported_metrics(recipe)
    if best is not None and best not in reported:
        task = getattr(recipe.options, "name", None)
        which = f"recipe '{recipe.spec.recipe}'" + (f" (task {task})" if isinstance(task, str) else "")
        message = f"{which} reports {', '.join(reported)}; [evaluate].best is '{best}'"
        of_other_split = next((name for name in reported if name.endswith(f"/{best}")), None)
        yield Finding(("evaluate", "best"), "unknown-metric", message, of_other_split or nearest(best, reported))


@_asks_recipe("callbacks", "evaluate.splits")
def _callbacks_hear_what_is_reported(recipe: Recipe) -> Findings:
    reported = reported_metrics(recipe)
    for number, callback in enumerate(recipe.spec.callbacks):
        for metric in callback.metrics():
            if metric not in reported:
                message = f"callback '{callback.name}' listens for '{metric}'; reported are {', '.join(reported)}"
                yield Finding(("callbacks", number), "unknown-metric", message)
