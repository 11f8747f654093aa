"""Adapters: only they, heads and new weights are trained, saved and exported; the rest is read again, and guarded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import torch
from safetensors.torch import load_file
from tests.support.commands import Zygote
from tests.support.loops import gradients, interrupted, weights
from tests.support.runs import bits, copy_as_of, log, resume, train
from tests.support.techniqueruns import ready_with, technique_loop, technique_spec
from tests.support.textruns import Ready

from taskrecipe import Run, SpecError, validate
from taskrecipe.data.load import load_data
from taskrecipe.errors import UsageError
from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe
from taskrecipe.run.export import BASE, load_exported_model, read_about
from taskrecipe.run.sample_model import sample_source
from taskrecipe.spec.spec import Spec
from taskrecipe.training.batches import BatchMaker, Request
from taskrecipe.training.loop import Loop

pytestmark = pytest.mark.filterwarnings("ignore:.*new and start at random:UserWarning")

HEAD = """\
spec_version = 1
recipe = "{recipe}"
seed = 3
[task]
{task}
[model]
{model}
[data]
sample = true
[data.limit]
train = 64
validation = 16
[[techniques]]
name = "lora"
dropout = 0.1
{lora}
[train]
batch_size = 16
learning_rate = {lr}
{train}
[evaluate]
every = 4
[checkpoint]
every = 4
keep = 9
[log]
every = 1
"""
LORA: dict[str, Any] = {"name": "lora"}
FREEZE: dict[str, Any] = {"name": "freeze", "layers": 0}
RECIPES: dict[str, dict[str, Any]] = {
    "glue": {"task": 'name = "mrpc"', "updates": 8},
    "clm": {"task": 'length = 64\nsize = "tiny"', "updates": 8, "lr": 5e-3},
    "image_classification": {"updates": 8},
    "detection": {"task": "image_size = 64\nfit = 'stretch'", "updates": 5},
}


def write(folder: Path, recipe: str, model: str = "", lora: str = "", train: str = "", **given: Any) -> Path:
    """A short run of a recipe's sample with adapters."""
    values = {"task": "", "lr": 1e-3, **RECIPES[recipe], **given}
    more = f"{train}\nupdates = {values['updates']}"
    path = folder / f"{recipe}.toml"
    path.write_text(HEAD.format(recipe=recipe, model=model, lora=lora, train=more, **values))
    return path


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_saves_only_what_it_trains_and_its_model_is_loaded_again(recipe, zygote: Zygote, tmp_path):
    run = Run(train(zygote, write(tmp_path, recipe)))
    updates = RECIPES[recipe]["updates"]

    saved = load_file(run.folder / "checkpoints" / f"step-{updates}" / "model.safetensors")
    base = load_file(run.folder / "sample" / "pretrained" / "model.safetensors")
    assert any(".lora_A." in name for name in saved)
    assert not {name for name in saved if name in base and name.endswith(("weight", "bias")) and "norm" not in name}
    moments = load_file(run.folder / "checkpoints" / f"step-{updates}" / "optimizer.safetensors")
    assert sum(value.nbytes for value in moments.values()) < 2.2 * sum(value.nbytes for value in saved.values())

    part = copy_as_of(run.folder, 4, tmp_path / "part")
    assert resume(zygote, part).code == 0
    assert bits(zygote, part) == bits(zygote, run.folder)

    exported = run.model()
    again = Run(part).model().state_dict()
    assert all(torch.equal(value, again[name]) for name, value in exported.state_dict().items())
    files = {path.name for path in (run.folder / "model").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert ("generation_config.json" in files) == (recipe == "clm")
    assert not files & {"model.safetensors", "weights.safetensors"}
    assert BASE in read_about(run.folder / "model")

    # A recipe may keep something of the model that it loaded last, so each model has a recipe of its own.
    batches, others = list(few_batches(run, tmp_path)), [Run(run.folder).recipe for _ in range(2)]
    merged = load_exported_model(others[0], run.folder / "model", merged=True)
    plain = others[1].load_model(sample_source(run.folder / "sample", run.spec)).eval()
    assert merged.state_dict().keys() == plain.state_dict().keys()
    assert largest_difference(batches, (run.recipe, exported), (others[0], merged)) < 1e-4
    assert largest_difference(batches, (run.recipe, exported), (others[1], plain)) > 1e-3


def largest_difference(batches: Iterable[Any], *models: tuple[Recipe, torch.nn.Module]) -> float:
    """The largest difference between the outputs of two models."""
    found = [0.0]
    with torch.no_grad():
        for batch in batches:
            outputs = [tensors_in(recipe.forward(model, batch)) for recipe, model in models]
            found += [float((a - b).abs().max()) for a, b in zip(*outputs, strict=True)]
    return max(found)


def tensors_in(outputs: Any) -> list[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        return [outputs] if outputs.is_floating_point() else []
    if isinstance(outputs, Mapping):
        outputs = tuple(outputs.values())
    elif is_dataclass(outputs):
        outputs = tuple(getattr(outputs, part.name) for part in fields(outputs))
    return [tensor for value in outputs for tensor in tensors_in(value)] if isinstance(outputs, tuple) else []


def few_batches(run: Run, folder: Path) -> Iterator[dict[str, Any]]:
    """Batches of a few rows of the run's sample."""
    recipe = installed().recipe(run.spec.recipe)(run.spec)
    loaded = load_data(run.spec, recipe, folder / "few")
    recipe.processor = run.recipe.processor
    rows = recipe.preprocess(loaded.splits["validation"].select(range(8)), "validation")
    maker = BatchMaker(run.recipe, rows, training=False)
    yield from (maker[Request(numbers)].inputs for numbers in ((0, 1, 2), (3,)))


# Within one process ---------------------------------------------------------------------------------


def spec_of(*more: dict[str, Any], lora: dict[str, Any] | None = None, **tables: Any) -> Spec:
    tables.setdefault("train", {"updates": 6, "epochs": 9, "batch_size": 8})
    return technique_spec({"name": "lora", "rank": 4, **(lora or {})}, *more, **tables)


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready_with(spec_of(), rows=19)


def trained_names(loop: Loop) -> set[str]:
    return {name for name, parameter in loop.state.module.named_parameters() if parameter.requires_grad}


def changed_names(loop: Loop) -> set[str]:
    before = weights(loop)
    list(loop.run())
    return {name for name, value in weights(loop).items() if not torch.equal(before[name], value)}


def test_adapters_and_the_new_head_change_and_nothing_else(few: Ready) -> None:
    loop = technique_loop(few, dtype=torch.float32)
    names = trained_names(loop)
    assert names == {name for name in names if ".lora_A." in name or ".lora_B." in name} | {
        "classifier.weight",
        "classifier.bias",
    }
    layers = {name.split(".lora_")[0].rpartition(".")[2] for name in names if ".lora_" in name}
    assert layers == {"query", "key", "value", "dense"}
    assert changed_names(loop) == names


@pytest.mark.parametrize(
    ("lora", "adapted", "whole"),
    [
        ({"targets": ["*.query", "*.value"]}, {"query", "value"}, {"classifier"}),
        ({"also_train": ["*LayerNorm*"]}, {"query", "key", "value", "dense"}, {"classifier", "LayerNorm"}),
        ({"also_train": ["*.pooler.*"]}, {"query", "key", "value", "dense"}, {"classifier", "dense"}),
    ],
)
def test_names_choose_what_is_adapted_and_what_is_trained_whole(lora, adapted, whole, few: Ready) -> None:
    names = trained_names(technique_loop(few, spec_of(lora=lora)))
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in names if ".lora_" in name} == adapted
    assert {name.split(".")[-2] for name in names if ".lora_" not in name} == whole


OPTIONS = [{}, {"dropout": 0.2}, {"use_dora": True, "dropout": 0.2}, {"use_rslora": True}]


@pytest.mark.parametrize("lora", OPTIONS)
@pytest.mark.parametrize("train", [{}, {"ema": 0.9, "gradient_checkpointing": True, "accumulate": 2}])
def test_a_run_is_resumed_exactly(lora, train, few: Ready) -> None:
    spec = spec_of(lora=lora, train={"updates": 4, "epochs": 9, "batch_size": 8, **train})
    whole, first, second = (technique_loop(few, spec, dtype=torch.float32, dropout=True) for _ in range(3))
    list(whole.run())
    resumed = interrupted(first, second, after=2)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in weights(resumed).items())
    if whole.state.ema:
        assert whole.state.ema.average.keys() == trained_names(whole)
        assert all(torch.equal(value, resumed.state.ema.average[k]) for k, value in whole.state.ema.average.items())


@pytest.mark.parametrize("lora", OPTIONS)
def test_micro_batches_add_up_with_dropout_in_the_adapters(lora, few: Ready) -> None:
    found = []
    for accumulate in (1, 4):
        train = {"updates": 6, "epochs": 9, "batch_size": 8, "accumulate": accumulate}
        loop = technique_loop(few, spec_of(lora=lora, train=train), dropout=True)
        with torch.no_grad():  # at the start, half of the adapters is zero and would hide the dropout
            for name, parameter in loop.state.module.named_parameters():
                if ".lora_B." in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
        found.append(gradients(loop, 1))
    assert all((one - other).abs().max() < 1e-10 for one, other in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore:freeze:UserWarning")
def test_freeze_and_layerwise_rates_apply_to_the_adapters(few: Ready) -> None:
    freeze, rates = {"name": "freeze", "layers": 1, "until": 3}, {"name": "layerwise_lr", "decay": 0.5}
    loop = technique_loop(few, spec_of(freeze, rates, train={"updates": 2, "epochs": 9, "batch_size": 8}))
    assert not any("encoder.layer.0." in name for name in changed_names(loop))
    loop = technique_loop(few, spec_of(freeze, rates, train={"updates": 5, "epochs": 9, "batch_size": 8}))
    changed = changed_names(loop)
    assert any("encoder.layer.0." in name for name in changed)
    assert all(".lora_" in name or name.startswith("classifier") for name in changed)
    scales = {group["initial_lr"] / loop.spec.train.learning_rate for group in loop.state.optimizer.param_groups}
    assert scales == {1.0, 0.5, 0.25}


def test_a_shared_encoder_is_adapted_once_and_all_heads_are_trained() -> None:
    tasks = {"a": {"recipe": "glue", "task": {"name": "mrpc"}}, "b": {"recipe": "glue", "task": {"name": "cola"}}}
    spec = spec_of(recipe="multitask", task={"tasks": tasks})
    loop = technique_loop(ready_with(spec), spec)
    whole = {name for name in trained_names(loop) if ".lora_" not in name}
    assert whole == {f"models.{number}.classifier.{kind}" for number in (0, 1) for kind in ("weight", "bias")}


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"targets": ["*.querry"]}, r"lora: no layer is called '\*.querry'; similar names are"),
        ({"also_train": ["pooler"]}, "lora: no parameter is called 'pooler'; similar names are"),
        ({"targets": ["*embeddings"]}, "lora: no layer is called"),
    ],
)
def test_names_that_the_model_does_not_have_are_refused(lora, message, few: Ready) -> None:
    with pytest.raises(UsageError, match=message):
        technique_loop(few, spec_of(lora=lora))


def test_a_model_without_weights_is_refused(few: Ready) -> None:
    bare = replace(few, source=ModelSource(str(few.source.processor)))
    with pytest.raises(UsageError, match="lora needs pretrained weights"):
        technique_loop(bare)


# Quantized ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "tolerance"), [("nf4", 1e-4), ("int8", 0.2)])
def test_a_quantized_model_trains_resumes_and_is_merged(kind, tolerance, zygote: Zygote, tmp_path) -> None:
    spec = write(tmp_path, "glue", model=f'quantize = "{kind}"')
    run = Run(train(zygote, spec))
    assert len({record["loss"] for record in log(run.folder, "update")}) > 1
    part = copy_as_of(run.folder, 4, tmp_path / "part")
    assert resume(zygote, part).code == 0
    assert bits(zygote, part) == bits(zygote, run.folder)
    exported = run.model()
    kinds = {str(parameter.dtype) for parameter in exported.parameters()}
    assert kinds == {"torch.float32", "torch.uint8" if kind == "nf4" else "torch.int8"}
    other = Run(run.folder).recipe
    merged = load_exported_model(other, run.folder / "model", merged=True)
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.float32}
    difference = largest_difference(few_batches(run, tmp_path), (run.recipe, exported), (other, merged))
    assert difference < tolerance


def test_what_was_left_out_of_the_model_must_be_as_it_was(zygote: Zygote, tmp_path) -> None:
    run = Run(train(zygote, write(tmp_path, "glue"), "run", "--set", "train.updates=1"))
    path = run.folder / "sample" / "pretrained" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"whose 'model.safetensors' is missing or has changed since"):
        run.model()


@pytest.mark.parametrize(
    ("changed", "key", "message"),
    [
        ({"model": {"quantize": "nf4"}, "techniques": []}, "quantize", "makes weights that can't be trained"),
        ({"model": {"pretrained": False}}, "pretrained", "technique 'lora' needs pretrained weights"),
        ({"techniques": [FREEZE, LORA]}, "name", "lora must come before freeze"),
        ({"techniques": [LORA, LORA]}, "name", "lora can be used only once"),
        ({"model": {"quantize": "int3"}}, "quantize", "must be 'nf4' or 'int8'"),
    ],
)
def test_what_can_not_work_is_refused_at_its_line(changed, key, message, tmp_path) -> None:
    values = {
        "spec_version": 1,
        "recipe": "glue",
        "task": {"name": "mrpc"},
        "model": {"name": "org/model", **changed.get("model", {})},
        "data": {"path": "org/data"},
        "train": {"epochs": 1, "learning_rate": 1e-3},
        "techniques": changed.get("techniques", [LORA]),
    }
    path = tmp_path / "spec.toml"
    path.write_text(tomlkit.dumps(values))
    with pytest.raises(SpecError) as raised:
        validate(path)
    problem, *_ = raised.value.problems
    assert message in problem.message
    assert problem.source.partition(" =")[0] == key


@pytest.mark.chaos  # tests/sharding/test_sharded_runs.py compares one process, replicas and shards
def test_two_processes_train_what_one_trains(zygote: Zygote, tmp_path) -> None:
    spec, losses = write(tmp_path, "glue"), []
    for processes in (1, 2):
        run = train(zygote, spec, f"run{processes}", "--set", f"launch.processes={processes}")
        losses.append([record["loss"] for record in log(run, "update")])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
