"""Distillation mixes two losses over the same items, from a teacher that is checked, frozen and never saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.loops import evaluated, gradients
from tests.support.techniqueruns import ready_with, technique_loop, technique_spec
from tests.support.textruns import Ready

from taskrecipe.errors import UsageError
from taskrecipe.model import ModelSource
from taskrecipe.spec.spec import Spec


def spec_of(*others: dict[str, Any], options: dict[str, Any] | None = None, **train: Any) -> Spec:
    table = {"name": "distillation", "teacher": "none", **(options or {})}
    return technique_spec(*others, table, train={"epochs": 1, "batch_size": 8, **train})


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready_with(spec_of(), rows=20)


def one_batch(few: Ready, spec: Spec | None = None):
    loop = technique_loop(few, spec)
    loop.model.train()
    return loop, next(loop.state.updates(0)).batches[0].inputs


def test_the_loss_is_the_mix_it_says(few):
    loop, batch = one_batch(few, spec_of(options={"temperature": 3.0, "mix": 0.25}))
    loss = loop.objective.compute(loop.model, batch).terms["loss"].item()
    outputs = loop.model(**batch)
    with torch.no_grad():
        taught = loop.objective.effects[0].teacher.double()(**batch).logits.div(3).softmax(-1)
    learned = outputs.logits.div(3).softmax(-1)
    soft = (taught * (taught.log() - learned.log())).sum(-1).mean() * 9
    assert loss == pytest.approx((0.75 * outputs.loss + 0.25 * soft).item(), rel=1e-9)
    assert soft.item() > 0.01


def test_only_labeled_items_are_learned_from_the_teacher(few):
    loop, batch = one_batch(few, spec_of(options={"mix": 1.0}))
    ignoring = {**batch, "labels": torch.cat([batch["labels"][:4], torch.full((4,), -100)])}
    first = {key: value[:4] for key, value in batch.items()}
    losses = [loop.objective.compute(loop.model, inputs).terms["loss"].item() for inputs in (ignoring, first)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_teacher_counts_once_beside_several_terms(few):
    spec = spec_of({"name": "adversarial", "epsilon": 0.02}, options={"mix": 1.0})
    loop, batch = one_batch(few, spec)
    terms = loop.objective.compute(loop.model, batch).terms
    assert set(terms) == {"loss", "loss_adversarial"}
    assert terms["loss"] > 0.01
    assert terms["loss_adversarial"] == 0.0


def test_evaluation_is_the_recipes_own(few):
    assert evaluated(technique_loop(few)) == evaluated(few.loop())


def test_accumulation_gives_the_gradients_of_one_batch(few):
    def taken(accumulate):
        return gradients(technique_loop(few, spec_of(accumulate=accumulate)), 0)

    whole = taken(1)
    for accumulate in (2, 4):
        assert max(float((a - b).abs().max()) for a, b in zip(whole, taken(accumulate), strict=True)) < 1e-12


def test_the_teacher_stays_as_it_is_and_out_of_the_checkpoint(few):
    loop = technique_loop(few, dtype=torch.float32, dropout=True)
    teacher = loop.objective.effects[0].teacher
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    own = {id(parameter) for group in loop.state.optimizer.param_groups for parameter in group["params"]}
    list(loop.run())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert not any(module.training for module in teacher.modules())
    assert not any(p.requires_grad or id(p) in own for p in teacher.parameters())
    assert set(loop.state.module.state_dict()) == set(few.loop().state.module.state_dict())


def changed_teacher(few: Ready, folder: Path, **config: Any) -> Ready:
    """The same run, with a teacher whose configuration differs."""
    shutil.copytree(few.source.folder, folder / "model")
    path = folder / "model" / "teacher" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return Ready(few.recipe, few.rows, ModelSource(str(folder / "model")))


def test_labels_in_another_order_are_matched_by_name(few, tmp_path):
    flipped = {
        "id2label": {"0": "EQUIVALENT", "1": "not_equivalent"},
        "label2id": {"EQUIVALENT": 0, "not_equivalent": 1},
    }
    loop, batch = one_batch(few)
    right = loop.objective.effects[0].teacher_logits(loop.model, batch)
    loop, _ = one_batch(changed_teacher(few, tmp_path, **flipped))
    torch.testing.assert_close(loop.objective.effects[0].teacher_logits(loop.model, batch), right.flip(-1))
    assert loop.objective.recipe.labels == ["not_equivalent", "equivalent"]
    assert loop.objective.effects[0].order == [1, 0]


def test_other_labels_are_refused(few, tmp_path):
    other = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    wanted = "has the classes label_0, label_1, the data has not_equivalent, equivalent"
    with pytest.raises(UsageError, match=wanted):
        technique_loop(changed_teacher(few, tmp_path, **other))


def test_another_vocabulary_is_refused(few, tmp_path):
    changed = changed_teacher(few, tmp_path)
    path = tmp_path / "model" / "teacher" / "tokenizer.json"
    path.write_text(path.read_text().replace('"river"', '"brook"'))
    with pytest.raises(UsageError, match="another vocabulary than the student"):
        technique_loop(changed)


def test_a_teacher_without_weights_is_refused(few, tmp_path):
    changed = changed_teacher(few, tmp_path)
    (tmp_path / "model" / "teacher" / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="has no weights"):
        technique_loop(changed)


@pytest.mark.parametrize(("recipe", "task"), [("glue", {"name": "stsb"}), ("clm", {})])
def test_a_recipe_without_classes_is_refused(recipe, task):
    spec = technique_spec({"name": "distillation", "teacher": "none"}, recipe=recipe, task=task)
    with pytest.raises(UsageError, match=f"distillation is for classification: recipe '{recipe}' has no classes"):
        ready_with(spec, rows=4)


def test_a_recipe_whose_logits_are_not_of_its_labels_is_refused(few):
    loop, batch = one_batch(few)
    computed = loop.objective.compute(loop.model, batch)
    maps = {**batch, "labels": batch["labels"][:, None].repeat(1, 3)}
    with pytest.raises(UsageError, match="one class for each label"):
        loop.objective.effects[0].loss(lambda *_: computed, loop.model, maps)


def test_the_teacher_is_fetched_with_the_model():
    (technique,) = spec_of(options={"teacher": "org/teacher"}).techniques
    assert [source.name for source in technique.models()] == ["org/teacher"]


def test_the_sample_has_the_same_teacher_every_time(few, tmp_path):
    state = torch.get_rng_state()
    for name in ("first", "second"):
        shutil.copytree(few.source.folder, tmp_path / name, ignore=shutil.ignore_patterns("teacher"))
        spec_of().techniques[0].prepare_sample(few.recipe, few.rows["train"], tmp_path / name)
        torch.rand(1)
    torch.set_rng_state(state)
    first, second = ((tmp_path / name / "teacher" / "model.safetensors").read_bytes() for name in ("first", "second"))
    assert first == second
