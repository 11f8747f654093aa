"""In-batch negatives are those of the whole update, however it is cut; vectors are measured by what they find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.support.contrastive_process import losses
from tests.support.loops import evaluated, gradients, learn_and_check, trained
from tests.support.processruns import run_module
from tests.support.textruns import Ready, ready, text_spec
from transformers import AutoModel

from taskrecipe.contrib.towers import contrastive_loss
from taskrecipe.contrib.two_tower import _ranks
from taskrecipe.errors import DataError
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe, target_columns
from taskrecipe.spec.spec import Spec
from taskrecipe.testing import conformance
from taskrecipe.training.randomness import Purpose, seed_everything

test_it_conforms = conformance("two_tower")
test_it_conforms_with_scores = conformance("two_tower", objective="cosine")


def spec_of(task: dict[str, Any] | None = None, **train: Any) -> Spec:
    return text_spec("two_tower", task, train={"epochs": 1, "batch_size": 8, **train})


@pytest.fixture(scope="module")
def few() -> Ready:
    return ready(spec_of(), rows=19)


def taken(run: Ready, accumulate: int, update: int = 0, **options: Any) -> list[torch.Tensor]:
    loop = run.loop(spec_of(accumulate=accumulate), **options)
    seed_everything(torch.device("cpu"), Purpose.UPDATE, 3)
    return gradients(loop, update)


@pytest.mark.parametrize("task", [{}, {"shared": False}, {"pooling": "cls"}, {"objective": "cosine"}])
def test_accumulation_gives_the_gradients_of_one_batch(task):
    run = ready(spec_of(task), rows=19)
    for update in (0, 2):  # the last has 3 pairs for 4 micro-batches
        whole = taken(run, 1, update)
        for accumulate in (2, 4):
            split = taken(run, accumulate, update)
            assert max(float((a - b).abs().max()) for a, b in zip(whole, split, strict=True)) < 1e-12


@pytest.mark.parametrize("kind", ["by_row", "torch"])
def test_cached_gradients_are_those_of_the_plain_loss_under_the_same_dropout(few, kind):
    spec = spec_of(dropout=kind)
    loop = few.loop(spec, dropout=True)
    seed_everything(torch.device("cpu"), Purpose.UPDATE, 3)
    cached = gradients(loop, 0)
    loop = few.loop(spec, dropout=True)
    loop.model.train()
    update = next(loop.state.updates(0))
    seed_everything(torch.device("cpu"), Purpose.UPDATE, 3)
    contrastive_loss(update.forward(update.batches[0]), 0.05).backward()
    plain = [parameter.grad for parameter in loop.state.module.parameters() if parameter.grad is not None]
    assert max(float((a - b).abs().max()) for a, b in zip(cached, plain, strict=True)) < 1e-12


def test_the_contrast_is_the_mean_of_both_directions():
    vectors = torch.nn.functional.normalize(torch.randn(5, 2, 3, dtype=torch.float64), dim=-1)
    wanted = 0.0
    for one, other in ((vectors[:, 0], vectors[:, 1]), (vectors[:, 1], vectors[:, 0])):
        for number in range(5):
            weights = [float(torch.exp(one[number] @ candidate / 0.3)) for candidate in other]
            wanted -= np.log(weights[number] / sum(weights)) / 10
    assert float(contrastive_loss(vectors, 0.3)) == pytest.approx(wanted, rel=1e-12)


def test_two_processes_see_the_negatives_of_both():
    together = run_module("tests.support.contrastive_process", "2")
    assert len(together) == 3
    assert together == pytest.approx(losses(1), rel=1e-6)


def test_self_pairs_differ_by_dropout_and_are_measured_by_scores():
    run = ready(spec_of({"self_pairs": True}), rows=19)
    loop = run.loop(dropout=True)
    inputs = next(loop.state.updates(0)).batches[0].inputs
    assert inputs["text2"] is inputs["text1"]
    assert "score" not in inputs
    loop.model.train()
    first, second = loop.model(inputs["text1"], inputs["text2"]).unbind(1)
    assert (first - second).abs().max().item() > 0.01
    assert list(evaluated(loop)) == ["spearman", "pearson", "loss"]


def test_scores_are_learnt():
    run = ready(text_spec("two_tower", {"objective": "cosine"}, train={"epochs": 4}))
    before = evaluated(run.loop(dtype=torch.float32))
    after = trained(run.loop(dtype=torch.float32))
    assert after["spearman"] > abs(before["spearman"]) + 0.3
    assert after["loss"] < before["loss"]


def test_ranks_are_where_the_partner_comes():
    first = np.eye(3)
    second = np.array([[0.9, 0.1, 0.0], [0.0, 0.5, 0.0], [0.2, 0.6, 0.1]])
    assert _ranks(np.stack([first, second], axis=1)).tolist() == [1, 2, 1]
    same = np.ones((3, 2, 4)) / 2
    assert _ranks(same).tolist() == [1, 1, 1]


def test_recall_and_mrr_come_from_the_ranks(few):
    vectors = np.stack([np.eye(3), np.array([[0.9, 0.1, 0.0], [0.0, 0.5, 0.0], [0.2, 0.6, 0.1]])], axis=1)
    numbers = few.recipe.score({"vectors": vectors}, few.rows["validation"])
    assert numbers == pytest.approx({"mrr": 2.5 / 3, "recall@1": 2 / 3, "recall@10": 1.0})


@pytest.mark.parametrize("shared", [True, False])
def test_encoders_are_saved_as_transformers_reads_them(shared, tmp_path):
    run = ready(spec_of({"shared": shared}), rows=4)
    loop = run.loop()
    loop.state.module.save_pretrained(tmp_path / "saved")
    for number, folder in enumerate([""] if shared else ["text1", "text2"]):
        read = AutoModel.from_pretrained(tmp_path / "saved" / folder, dtype="float64").state_dict()
        own = loop.state.module.encoders[number].state_dict()
        assert set(read) == set(own)
        assert all(torch.equal(value, own[name]) for name, value in read.items())


def test_pooling_leaves_padding_out(few):
    loop = few.loop()
    loop.model.eval()
    long, short = few.recipe.processor(["river stone house garden winter", "river stone"])["input_ids"]
    rows = [{"text1.input_ids": ids, "text1.attention_mask": [1] * len(ids)} for ids in (long, short)]
    together, alone = (loop.objective.recipe.collate(group) for group in (rows, rows[1:]))
    vectors = [loop.model(batch["text1"], batch["text2"])[-1] for batch in (together, alone)]
    torch.testing.assert_close(vectors[0], vectors[1])


def evaluating(**task: Any):
    """A loop whose model drops nothing, and a batch of pairs."""
    loop = ready(spec_of(task), rows=8).loop()
    loop.model.eval()
    return loop, next(loop.state.updates(0)).batches[0].inputs


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_pooled_as_asked(pooling):
    loop, batch = evaluating(pooling=pooling)
    states = loop.state.module.encoders[0](**batch["text1"]).last_hidden_state
    kept = [row[: int(mask.sum())] for row, mask in zip(states, batch["text1"]["attention_mask"], strict=True)]
    pooled = torch.stack([row.mean(0) if pooling == "mean" else row[0] for row in kept])
    vectors = loop.model(batch["text1"], batch["text2"])
    torch.testing.assert_close(vectors[:, 0], pooled / pooled.norm(dim=1, keepdim=True))


def test_each_side_has_its_own_encoder_where_they_are_not_shared():
    loop, batch = evaluating(shared=False)
    before = loop.model(batch["text1"], batch["text2"])
    loop.state.module.encoders[1].embeddings.word_embeddings.weight.data.mul_(3)
    after = loop.model(batch["text1"], batch["text2"])
    assert torch.equal(after[:, 0], before[:, 0])
    assert not torch.allclose(after[:, 1], before[:, 1])


def test_cosines_learn_scores_as_parts_of_the_highest():
    loop, batch = evaluating(objective="cosine", score_max=8.0)
    vectors = loop.model(batch["text1"], batch["text2"])
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(-1)
    expected = (cosines - batch["score"] / 8).square().mean()
    terms = loop.objective.recipe.loss(vectors, batch, training=True)
    torch.testing.assert_close(terms["loss"], expected, check_dtype=False)
    assert batch["score"].max() > 0


def test_columns_that_a_split_lacks_are_named(few):
    recipe: Recipe = type(few.recipe)(spec_of({"self_pairs": True}))
    train = Dataset.from_dict({"text1": ["a", "b"]})
    with pytest.raises(DataError, match="the recipe reads 'text2'"):
        learn_and_check(recipe, {"train": train, "validation": train})
    whole = Dataset.from_dict({"text1": ["a"], "text2": ["b"], "score": [1.0]})
    learn_and_check(recipe, {"train": train, "validation": whole})


def test_self_pairs_are_evaluated_by_a_score_and_predicted_without():
    run = ready(spec_of({"self_pairs": True}), rows=6)
    recipe, bare = run.recipe, Dataset.from_dict({"text1": ["a"], "text2": ["b"]})
    assert target_columns(recipe) == ["score"]
    recipe.check(bare, "validation")
    rows = recipe.preprocess(bare, "validation")
    vectors = np.ones((1, 2, 4)) / 2
    assert recipe.answer({"vectors": vectors[0]}, rows[0])["cosine"] == 1.0
    with pytest.raises(DataError, match="rows that are evaluated need a 'score'"):
        recipe.score({"vectors": vectors}, rows)


def test_correlations_are_those_of_the_cosines():
    recipe = ready(spec_of({"objective": "cosine"}), rows=4).recipe
    angles = np.array([0.0, 0.5, 1.0, 1.5])
    second = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    vectors = np.stack([np.tile([1.0, 0.0], (4, 1)), second], axis=1)
    rows = Dataset.from_dict({"score": (5 * np.cos(angles)).tolist()})
    assert recipe.score({"vectors": vectors}, rows) == pytest.approx({"spearman": 1.0, "pearson": 1.0})
    backwards = Dataset.from_dict({"score": angles.tolist()})
    assert recipe.score({"vectors": vectors}, backwards)["spearman"] == pytest.approx(-1.0)


def test_an_answer_has_the_cosine_and_both_embeddings(few):
    answer = few.recipe.answer({"vectors": np.array([[0.6, 0.8], [1.0, 0.0]])}, few.rows["validation"][0])
    assert answer == {"cosine": pytest.approx(0.6), "text1": [0.6, 0.8], "text2": [1.0, 0.0]}


def test_a_pair_is_described_by_both_texts_and_its_score():
    run = ready(spec_of({"objective": "cosine"}), rows=4)
    row = run.rows["validation"][0]
    described = run.recipe.describe(row)
    tokens = [run.recipe.processor.convert_ids_to_tokens(row[f"{side}.input_ids"]) for side in ("text1", "text2")]
    assert [[piece.text for piece in line] for line in described.lines] == tokens
    assert [piece.role for piece in described.lines[0]][:2] == ["special", "context"]
    assert described.facts == {"score": f"{row['score']:g}"}


def test_only_contrasts_need_the_whole_update():
    kinds = {"contrastive": True, "cosine": False}
    for objective, whole in kinds.items():
        assert installed().recipe("two_tower")(spec_of({"objective": objective})).whole_update is whole


def test_self_pairs_have_no_score_to_learn():
    with pytest.raises(ValueError, match="'self_pairs' is for objective"):
        spec_of({"self_pairs": True, "objective": "cosine"})
