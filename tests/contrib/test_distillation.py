"""Distillation mixes two losses over the same items, from a teacher that is checked, frozen and never saved."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch
from loops import evaluated, gradients
from textruns import Ready, ready, text_spec

from taskrecipe.contrib.distillation import Distillation
from taskrecipe.core.errors import UsageError
from taskrecipe.core.model import ModelSource
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.testing import conformance

TASK = {"teacher": "none", "inner": {"recipe": "glue", "task": {"name": "mrpc"}}}

test_it_conforms = conformance("distillation", **TASK)


def spec_of(task: dict[str, Any] | None = None, **train: Any) -> Spec:
    return text_spec("distillation", {**TASK, **(task or {})}, train={"epochs": 1, "batch_size": 8, **train})


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready(spec_of(), rows=20)


def with_options(few: Ready, **task: Any) -> Ready:
    recipe = type(few.recipe)(spec_of(task))
    recipe.inner = few.recipe.inner
    return Ready(recipe, few.rows, few.source)


def one_batch(few: Ready):
    loop = few.loop()
    loop.model.train()
    return loop, next(loop.updates(0)).batches[0].inputs


def test_the_loss_is_the_mix_it_says(few):
    loop, batch = one_batch(with_options(few, temperature=3.0, mix=0.25))
    loss = loop.recipe.loss(loop.model, batch).terms["loss"].item()
    outputs = loop.model(**batch)
    with torch.no_grad():
        taught = loop.recipe.teacher.double()(**batch).logits.div(3).softmax(-1)
    learnt = outputs.logits.div(3).softmax(-1)
    soft = (taught * (taught.log() - learnt.log())).sum(-1).mean() * 9
    assert loss == pytest.approx((0.75 * outputs.loss + 0.25 * soft).item(), rel=1e-9)
    assert soft.item() > 0.01


def test_only_labelled_items_are_learnt_from_the_teacher(few):
    loop, batch = one_batch(with_options(few, mix=1.0))
    ignoring = {**batch, "labels": torch.cat([batch["labels"][:4], torch.full((4,), -100)])}
    first = {key: value[:4] for key, value in batch.items()}
    losses = [loop.recipe.loss(loop.model, inputs).terms["loss"].item() for inputs in (ignoring, first)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_evaluation_is_the_inner_recipes(few):
    inner = Ready(few.recipe.inner, few.rows, few.source)
    assert evaluated(few.loop()) == evaluated(inner.loop(few.recipe.spec))


def test_accumulation_gives_the_gradients_of_one_batch(few):
    def taken(accumulate):
        return gradients(few.loop(spec_of(accumulate=accumulate)), 0)

    whole = taken(1)
    for accumulate in (2, 4):
        assert max(float((a - b).abs().max()) for a, b in zip(whole, taken(accumulate), strict=True)) < 1e-12


def test_the_teacher_stays_as_it_is_and_out_of_the_checkpoint(few):
    loop = few.loop(dtype=torch.float32, dropout=True)
    before = {name: value.clone() for name, value in loop.recipe.teacher.state_dict().items()}
    own = {id(parameter) for group in loop.optimizer.param_groups for parameter in group["params"]}
    list(loop.run())
    assert all(torch.equal(value, before[name]) for name, value in loop.recipe.teacher.state_dict().items())
    assert not any(module.training for module in loop.recipe.teacher.modules())
    assert not any(p.requires_grad or id(p) in own for p in loop.recipe.teacher.parameters())
    student = Ready(few.recipe.inner, few.rows, few.source).loop(few.recipe.spec)
    assert set(loop.module.state_dict()) == set(student.module.state_dict())


def changed_teacher(few: Ready, folder, **config: Any) -> ModelSource:
    """The sample's model, with a teacher whose configuration differs."""
    shutil.copytree(few.source.folder, folder / "model")
    path = folder / "model" / "teacher" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return ModelSource(str(folder / "model"))


def test_labels_in_another_order_are_matched_by_name(few, tmp_path):
    flipped = {
        "id2label": {"0": "EQUIVALENT", "1": "not_equivalent"},
        "label2id": {"EQUIVALENT": 0, "not_equivalent": 1},
    }
    loop, batch = one_batch(few)
    right = loop.recipe._teacher_logits(loop.model, batch)
    loop, _ = one_batch(Ready(few.recipe, few.rows, changed_teacher(few, tmp_path, **flipped)))
    torch.testing.assert_close(loop.recipe._teacher_logits(loop.model, batch), right.flip(-1))


def test_other_labels_are_refused(few, tmp_path):
    other = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    with pytest.raises(UsageError, match="tells label_0, label_1 apart, and the data has not_equivalent, equivalent"):
        Ready(few.recipe, few.rows, changed_teacher(few, tmp_path, **other)).loop()


def test_another_vocabulary_is_refused(few, tmp_path):
    source = changed_teacher(few, tmp_path)
    path = tmp_path / "model" / "teacher" / "tokenizer.json"
    path.write_text(path.read_text().replace('"river"', '"brook"'))
    with pytest.raises(UsageError, match="another vocabulary than the student"):
        Ready(few.recipe, few.rows, source).loop()


def test_a_teacher_without_weights_is_refused(few, tmp_path):
    source = changed_teacher(few, tmp_path)
    (tmp_path / "model" / "teacher" / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="has no weights"):
        Ready(few.recipe, few.rows, source).loop()


def test_a_recipe_without_classes_is_refused():
    spec = spec_of({"inner": {"recipe": "glue", "task": {"name": "stsb"}}})
    source = ready(text_spec("glue", {"name": "stsb"}), rows=4).source
    with pytest.raises(UsageError, match="distillation is for classification: recipe 'glue' has no classes"):
        Distillation(spec).load_model(source)


def test_the_sample_has_the_same_teacher_every_time(tmp_path):
    for name in ("first", "second"):
        Distillation(spec_of()).sample(tmp_path / name)
    first, second = ((tmp_path / name / "teacher" / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second
