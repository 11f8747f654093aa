"""Rules about several keys of a spec together, and about a spec and its recipe.

A rule is a function that yields findings. It names the keys that it reads, and is skipped if one of them is broken
already: so one mistake is reported once and hides no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeVar

from taskrecipe.errors import PluginError, RecipeError
from taskrecipe.recipe import evaluated_splits, final_splits, reported_metrics, reported_name
from taskrecipe.spec.data_rules import find_unread_columns, find_unused_splits
from taskrecipe.spec.deepspeed import find_deepspeed_problems
from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import KeyPath, name_key, paths_overlap
from taskrecipe.spec.submission import find_submission_problems
from taskrecipe.spec.sweep import Bounds
from taskrecipe.system.secrets import looks_secret
from taskrecipe.system.suggestions import closest

if TYPE_CHECKING:
    from taskrecipe.plugins.registry import Plugin, Registry
    from taskrecipe.recipe import Recipe
    from taskrecipe.spec.spec import Spec

Findings = Iterator[Finding]
_Rule = TypeVar("_Rule", bound=Callable[..., Findings])

_SPEC_RULES: list[tuple[tuple[KeyPath, ...], Callable[[Spec], Findings]]] = []
_CLASS_RULES: list[tuple[tuple[KeyPath, ...], Callable[[Spec, type[Recipe]], Findings]]] = []
"""They need only the recipe's class, so they are checked even if its options are wrong."""
_RECIPE_RULES: list[tuple[tuple[KeyPath, ...], Callable[[Recipe], Findings]]] = []

SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1

_DECEPTIVE = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]"
"""Control characters except tab and line feed, and characters that change the direction of text."""


def find_broken_rules(spec: Spec, registry: Registry, broken: Collection[KeyPath]) -> Findings:
    """Yield what the rules find in `spec`. Values at the paths `broken` are wrong and already reported."""

    def intact(keys: tuple[KeyPath, ...]) -> bool:
        return not any(paths_overlap(key, path) for key in keys for path in broken)

    for keys, rule in _SPEC_RULES:
        if intact(keys):
            yield from rule(spec)
    if not intact((("recipe",),)):
        return
    plugin = registry.find("recipes", spec.recipe)
    kind: type[Recipe] = plugin.load()
    for keys, class_rule in _CLASS_RULES:
        if intact(keys):
            yield from class_rule(spec, kind)
    if intact((("task",),)):
        yield from _ask_recipe(_make_recipe(plugin, kind, spec), intact)


def _ask_recipe(recipe: Recipe, intact: Callable[[tuple[KeyPath, ...]], bool]) -> Findings:
    objections = list(_guard(_objections, recipe))
    yield from (objection for objection in objections if intact((objection.path,)))
    if objections:
        return  # a recipe that objects to its spec may answer further questions wrongly
    for keys, rule in _RECIPE_RULES:
        if intact(keys):
            yield from (finding for finding in _guard(rule, recipe) if intact((finding.path,)))


def _make_recipe(plugin: Plugin, kind: type[Recipe], spec: Spec) -> Recipe:
    try:
        return kind(spec)
    except RecipeError:
        raise
    except Exception as cause:
        raise PluginError(f"{plugin.describe()} failed on this spec: {type(cause).__name__}: {cause}") from cause


def find_odd_values(values: Any, path: KeyPath = ()) -> Findings:
    """Yield values that no key may have: secrets, characters that hide what a text says, integers beyond 64 bits."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        here = (*path, key)
        if isinstance(key, str):
            yield from _odd_text(key, here, at_key=True)
        if isinstance(value, str):
            yield from _odd_text(value, here, at_key=False)
        elif isinstance(value, (dict, list)):
            yield from find_odd_values(value, here)
        elif isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            yield Finding(here, "out-of-range", f"{name_key(here)} must be an integer of 64 bits")


def _odd_text(text: str, path: KeyPath, *, at_key: bool) -> Findings:
    if looks_secret(text, path):
        advice = "specs are shared: remove it, and set an environment variable such as HF_TOKEN or WANDB_API_KEY"
        yield Finding(path, "secret", f"{_what(path, at_key)} looks like a secret; {advice}", at_key=at_key)
    if not text.isprintable() and (odd := re.search(_DECEPTIVE, text)):
        message = f"{_what(path, at_key)} has the character U+{ord(odd[0]):04X}, which hides what it says"
        yield Finding(path, "bad-character", message, at_key=at_key)


def _what(path: KeyPath, at_key: bool) -> str:
    return f"a key of {name_key(path[:-1]) or 'the spec'}" if at_key else name_key(path)


def _guard(rule: Callable[[Recipe], Findings], recipe: Recipe) -> Findings:
    """Run a rule that calls the recipe; any error but our own becomes a `PluginError`."""
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
    """Register a rule that asks the recipe, with the keys it reads besides `recipe` and `[task]`."""

    def register(rule: _Rule) -> _Rule:
        _RECIPE_RULES.append((tuple(tuple(key.split(".")) for key in keys), rule))
        return rule

    return register


def _looks_at_class(*keys: str) -> Callable[[_Rule], _Rule]:
    """Register a rule about the spec and the recipe's class, with the keys it reads besides `recipe`."""

    def register(rule: _Rule) -> _Rule:
        _CLASS_RULES.append((tuple(tuple(key.split(".")) for key in keys), rule))
        return rule

    return register


@_reads("optimizer", "schedule.name")
def _one_schedule(spec: Spec) -> Findings:
    name = spec.optimizer.name
    if spec.optimizer.has_own_schedule and spec.schedule.name != "constant":
        message = f"optimizer '{name}' has its own schedule: set [schedule].name = \"constant\""
        yield Finding(("optimizer", "name"), "conflict", message)


@_reads("train.epochs", "train.updates")
def _ends(spec: Spec) -> Findings:
    if spec.train.epochs is None and spec.train.updates is None:
        yield Finding(("train",), "missing-key", "[train] needs 'epochs' or 'updates': how long to train")


@_reads("data.streaming", "train.updates", "train.epochs")
def _stream_ends(spec: Spec) -> Findings:
    if spec.data.streaming and spec.train.updates is None and spec.train.epochs is not None:
        message = "[data].streaming needs [train].updates: the number of rows of a stream is not known"
        yield Finding(("data", "streaming"), "conflict", message)


@_reads("data.streaming", "train.order")
def _stream_has_no_buckets(spec: Spec) -> Findings:
    if spec.data.streaming and spec.train.order == "bucketed":
        message = "[train].order can't be 'bucketed' with [data].streaming: the lengths of its rows are not known"
        yield Finding(("train", "order"), "conflict", message, "shuffled")


@_reads("data.streaming", "data.workers")
def _stream_has_no_workers(spec: Spec) -> Findings:
    if spec.data.streaming and spec.data.workers:
        yield Finding(("data", "workers"), "no-effect", "[data].workers has no effect on a stream", at_key=True)


@_reads("model.name", "model.type")
def _one_model(spec: Spec) -> Findings:
    if spec.model.name and spec.model.type:
        yield Finding(("model", "type"), "conflict", "[model] takes 'name' or 'type', not both")


@_looks_at_class("model", "data.sample")
def _model_is_named(spec: Spec, recipe: type[Recipe]) -> Findings:
    model, is_named = spec.model, bool(spec.model.name or spec.model.type)
    if recipe.uses_model and not (is_named or spec.data.sample):
        message = "[model] needs 'name' (a hub id or folder) or 'type' (an architecture)"
        yield Finding(("model",), "missing-key", message)
    if not recipe.uses_model and (is_named or model.config):
        message = f"recipe '{spec.recipe}' builds its own model; leave [model] out"
        yield Finding(("model",), "no-effect", message)


@_reads("model", "techniques")
def _quantized_weights_are_not_trained(spec: Spec) -> Findings:
    if spec.model.quantize and not any(technique.trains_quantized for technique in spec.techniques):
        message = "[model].quantize makes weights that can't be trained: add technique 'lora', or leave the key out"
        yield Finding(("model", "quantize"), "conflict", message, at_key=True)


@_reads("model", "techniques", "data.sample")
def _techniques_find_pretrained_weights(spec: Spec) -> Findings:
    names = [technique.name for technique in spec.techniques if technique.needs_pretrained]
    from_random = "type" if spec.model.type else None if spec.model.pretrained else "pretrained"
    if names and from_random and not spec.data.sample:
        message = f"technique '{names[0]}' needs pretrained weights; [model].{from_random} starts from random ones"
        yield Finding(("model", from_random), "conflict", message, at_key=True)


@_looks_at_class("model", "techniques")
def _techniques_find_a_model(spec: Spec, recipe: type[Recipe]) -> Findings:
    for number, technique in enumerate(spec.techniques):
        if technique.needs_pretrained and not recipe.uses_model:
            message = f"recipe '{spec.recipe}' builds its own model; '{technique.name}' needs a pretrained one"
            yield Finding(("techniques", number, "name"), "conflict", message)


@_reads("data.path", "data.files")
def _one_data_set(spec: Spec) -> Findings:
    if spec.data.path and spec.data.files:
        yield Finding(("data", "path"), "conflict", "[data] takes 'path' (a hub id) or 'files', not both")


@_looks_at_class("data.path", "data.files", "data.sample")
def _data_is_named(spec: Spec, recipe: type[Recipe]) -> Findings:
    from taskrecipe.optional import HasParts

    data = spec.data
    if not (data.path or data.files or data.sample or issubclass(recipe, HasParts)):
        yield Finding(("data",), "missing-key", "[data] needs 'path' (a hub id) or 'files' (local ones)")


@_reads("data.path", "data.name", "data.revision")
def _data_keys_have_an_effect(spec: Spec) -> Findings:
    for key in ("name", "revision"):
        if getattr(spec.data, key) and not spec.data.path:
            yield Finding(
                ("data", key), "no-effect", f"[data].{key} has no effect without a hub id in [data].path", at_key=True
            )


@_reads("model.name", "model.revision")
def _model_revision_has_an_effect(spec: Spec) -> Findings:
    if spec.model.revision and not spec.model.name:
        message = "[model].revision has no effect without a hub id in [model].name"
        yield Finding(("model", "revision"), "no-effect", message, at_key=True)


@_reads("train.updates", "schedule.warmup")
def _warmup_ends(spec: Spec) -> Findings:
    warmup, updates = spec.schedule.warmup, spec.train.updates
    if isinstance(warmup, int) and updates is not None and warmup > updates:
        message = f"[schedule].warmup is {warmup} updates, but [train].updates ends training after {updates}"
        yield Finding(("schedule", "warmup"), "warmup", message)


@_reads("train.batch_size", "train.accumulate", "launch.processes")
def _batch_splits_evenly(spec: Spec) -> Findings:
    size, processes = spec.train.batch_size, spec.launch.processes
    accumulate = spec.train.first_accumulate
    if size % (accumulate * processes):
        parts = f"{accumulate} micro-batches" + (f" on each of {processes} processes" if processes > 1 else "")
        message = f"[train].batch_size {size} can't be split into {parts} of equal size"
        at = ("train", "accumulate") if size % processes == 0 else ("launch", "processes")
        yield Finding(at, "uneven-batch", message, _even_split(size, accumulate, processes))


def _even_split(size: int, accumulate: int, processes: int) -> str | None:
    """Return the closest number of micro-batches that fits."""
    if size % processes:
        return None
    rest = size // processes
    small = [count for count in range(1, isqrt(rest) + 1) if rest % count == 0]
    return str(min([*small, *(rest // count for count in small)], key=lambda count: abs(count - accumulate)))


@_reads("submit", "train.batch_size", "train.accumulate")
def _submission_is_possible(spec: Spec) -> Findings:
    yield from find_submission_problems(spec)


@_reads("train.precision", "launch.device")
def _device_has_precision(spec: Spec) -> Findings:
    # With device "auto" this is known only on the machine that runs the spec.
    if spec.launch.device == "cpu" and spec.train.precision in ("fp16", "fp8"):
        message = f"[train].precision '{spec.train.precision}' needs an accelerator, and [launch].device is 'cpu'"
        yield Finding(("train", "precision"), "precision", message, "bf16")


@_reads("launch.shard", "launch.offload")
def _offload_has_an_effect(spec: Spec) -> Findings:
    if spec.launch.offload and spec.launch.shard == "none":
        message = '[launch].offload has no effect without [launch].shard = "full" or "gradients"'
        yield Finding(("launch", "offload"), "no-effect", message, at_key=True)


@_reads("launch.shard", "model.quantize", "train.compile", "train.precision", "optimizer")
def _shards_can_be_trained(spec: Spec) -> Findings:
    if spec.launch.shard == "none":
        return
    if spec.model.quantize:
        message = "[model].quantize packs several weights into a number, which can't be divided by [launch].shard"
        yield Finding(("model", "quantize"), "conflict", message, at_key=True)
    if spec.train.compile:
        message = "[train].compile does not work with [launch].shard yet"
        yield Finding(("train", "compile"), "conflict", message, "false")
    if spec.train.precision in ("fp16", "fp8"):
        message = f"[train].precision '{spec.train.precision}' does not work with [launch].shard"
        yield Finding(("train", "precision"), "conflict", message, "bf16")
    if spec.optimizer.needs_whole_weights:
        message = f"optimizer '{spec.optimizer.name}' needs whole weights, which [launch].shard divides"
        yield Finding(("optimizer", "name"), "conflict", message, "adamw")


@_reads("launch.engine", "launch.shard", "launch.processes", "train", "optimizer")
def _deepspeed_can_train(spec: Spec) -> Findings:
    yield from find_deepspeed_problems(spec)


@_looks_at_class("launch.engine")
def _deepspeed_changes_all_weights(spec: Spec, kind: type[Recipe]) -> Findings:
    if spec.launch.engine == "deepspeed" and not kind.uses_all_weights:
        message = (
            f"DeepSpeed changes weights that get no gradient too, and updates of {spec.recipe!r} leave some unused"
        )
        yield Finding(("launch", "engine"), "conflict", message, "torch")


@_reads("evaluate.patience", "evaluate.every")
def _patience_can_end(spec: Spec) -> Findings:
    if spec.evaluate.patience is not None and spec.evaluate.every == "end":
        message = "[evaluate].patience has no effect: every = 'end' evaluates once, after training"
        yield Finding(("evaluate", "patience"), "no-effect", message, at_key=True)


@_asks_recipe("train.label_smoothing")
def _labels_can_be_smoothed(recipe: Recipe) -> Findings:
    if recipe.spec.train.label_smoothing and not recipe.smooths_labels:
        message = f"recipe '{recipe.spec.recipe}' has no labels to smooth; leave [train].label_smoothing out"
        yield Finding(("train", "label_smoothing"), "no-effect", message, at_key=True)


@_asks_recipe("data.files", "data.splits", "data.limit", "evaluate.splits", "evaluate.final")
def _splits_exist(recipe: Recipe) -> Findings:
    data, evaluate = recipe.spec.data, recipe.spec.evaluate
    at_the_hub = [] if data.files else evaluate.final  # which splits a data set has is known once it is loaded
    known = list(dict.fromkeys([*recipe.splits(), *data.files, *data.splits, *at_the_hub]))
    named_splits: list[tuple[KeyPath, str, bool]] = [(("data", "limit", split), split, True) for split in data.limit]
    for key, chosen in (("splits", evaluate.splits or []), ("final", evaluate.final)):
        named_splits += [(("evaluate", key, index), split, False) for index, split in enumerate(chosen)]
    for path, split, at_key in named_splits:
        if split not in known:
            message = f"{name_key(path[:2])} names the split '{split}'; the splits are {', '.join(known)}"
            yield Finding(path, "unknown-split", message, closest(split, known), at_key)


@_asks_recipe("data.columns")
def _columns_are_read(recipe: Recipe) -> Findings:
    yield from find_unread_columns(recipe)


@_asks_recipe("data.files", "data.splits", "evaluate.splits")
def _splits_are_used(recipe: Recipe) -> Findings:
    yield from find_unused_splits(recipe)


@_asks_recipe("evaluate.best", "evaluate.splits")
def _best_is_reported(recipe: Recipe) -> Findings:
    best, reported = recipe.spec.evaluate.best, reported_metrics(recipe)
    if best is not None and best not in reported:
        task = getattr(recipe.options, "name", None)
        which = f"recipe '{recipe.spec.recipe}'" + (f" (task {task})" if isinstance(task, str) else "")
        message = f"{which} reports {', '.join(reported)}; [evaluate].best is '{best}'"
        of_other_split = next((name for name in reported if name.endswith(f"/{best}")), None)
        yield Finding(("evaluate", "best"), "unknown-metric", message, of_other_split or closest(best, reported))


@_asks_recipe("evaluate.splits", "evaluate.final")
def _final_splits_are_evaluated_once(recipe: Recipe) -> Findings:
    for index, split in enumerate(recipe.spec.evaluate.final):
        if split in evaluated_splits(recipe):
            message = f"[evaluate].final names '{split}', which is evaluated during training already"
            yield Finding(("evaluate", "final", index), "conflict", message)


@_asks_recipe("evaluate.best", "evaluate.splits", "evaluate.choose_on_test")
def _test_split_does_not_choose(recipe: Recipe) -> Findings:
    evaluate, reported = recipe.spec.evaluate, reported_metrics(recipe)
    best = evaluate.best or next(iter(reported))
    tests = [split for split in evaluated_splits(recipe) if split.rpartition("/")[2].startswith("test")]
    split = next((split for split in tests if best.startswith(f"{split}/")), None)
    if split and best in reported and not evaluate.choose_on_test:
        message = (
            f"the best checkpoint would be chosen by '{best}', on the test split: what is measured there is then too "
            f'optimistic. Evaluate it once, at the end: [evaluate] final = ["{split}"]; or set choose_on_test = true'
        )
        yield Finding(("evaluate", "best" if evaluate.best else "splits"), "conflict", message)


@_asks_recipe("callbacks", "evaluate.splits")
def _callbacks_need_reported_metrics(recipe: Recipe) -> Findings:
    reported = reported_metrics(recipe)
    for number, callback in enumerate(recipe.spec.callbacks):
        for metric in callback.metrics():
            if metric not in reported:
                message = f"callback '{callback.name}' needs the metric '{metric}'; reported are {', '.join(reported)}"
                yield Finding(("callbacks", number), "unknown-metric", message)


@_asks_recipe("techniques")
def _techniques_do_not_object(recipe: Recipe) -> Findings:
    for number, technique in enumerate(recipe.spec.techniques):
        try:
            objections = technique.objections(recipe)
        except RecipeError:
            raise
        except Exception as cause:
            problem = f"{type(cause).__name__}: {cause}"
            raise PluginError(f"technique '{technique.name}' failed on this spec: {problem}") from cause
        for key, reason in objections.items():
            path = tuple(key.split(".")) if "." in key else ("techniques", number, key)
            yield Finding(path, "conflict", reason)


@_asks_recipe("train.accumulate")
def _updates_can_be_cut_again(recipe: Recipe) -> Findings:
    from taskrecipe.optional import ComputesUpdate

    if recipe.spec.train.accumulate == "auto" and isinstance(recipe, ComputesUpdate) and recipe.whole_update:
        message = f"recipe '{recipe.spec.recipe}' computes whole updates: [train].accumulate must be a number"
        yield Finding(("train", "accumulate"), "conflict", message, "1")


@_asks_recipe("techniques")
def _techniques_can_change_the_loss(recipe: Recipe) -> Findings:
    from taskrecipe.optional import ComputesUpdate

    if not (isinstance(recipe, ComputesUpdate) and recipe.whole_update):
        return
    for number, technique in enumerate(recipe.spec.techniques):
        if technique.changes_loss:
            message = f"recipe '{recipe.spec.recipe}' computes whole updates: technique '{technique.name}' needs the "
            message += "loss of each micro-batch"
            yield Finding(("techniques", number, "name"), "conflict", message)


@_asks_recipe("expect", "evaluate.splits", "evaluate.final")
def _expectations_can_be_checked(recipe: Recipe) -> Findings:
    known = [*reported_metrics(recipe), *(reported_name(s, m) for s in final_splits(recipe) for m in recipe.metrics())]
    for key, wanted in recipe.spec.expect.items():
        path = ("expect", key)
        if key == "updates" and not isinstance(wanted, int):
            yield Finding(path, "wrong-type", "[expect].updates must be an integer: the updates of the whole run")
        elif key == "fingerprint" and not (isinstance(wanted, str) and re.fullmatch("[0-9a-f]{64}", wanted)):
            message = "[expect].fingerprint must be what `recipe fingerprint RUN` prints: 64 characters of 0-9 and a-f"
            yield Finding(path, "invalid-value", message)
        elif key not in ("updates", "fingerprint"):
            yield from _check_expected_metric(path, wanted, known)


def _check_expected_metric(path: KeyPath, wanted: Any, known: list[str]) -> Findings:
    name = str(path[-1])
    if name not in known:
        message = f"[expect] names '{name}'; there are the metrics {', '.join(known)}, and updates and fingerprint"
        yield Finding(path, "unknown-metric", message, closest(name, [*known, "updates", "fingerprint"]), at_key=True)
    elif not isinstance(wanted, Bounds):
        yield Finding(path, "wrong-type", f"[expect].{name} must be a table such as {{ at_least = 0.85 }}")
    elif wanted.at_least is None and wanted.at_most is None:
        yield Finding(path, "missing-key", f"[expect].{name} needs 'at_least', 'at_most' or both")
    elif wanted.at_least is not None and wanted.at_most is not None and wanted.at_least > wanted.at_most:
        yield Finding(path, "conflict", f"[expect].{name}: at_least is above at_most")
