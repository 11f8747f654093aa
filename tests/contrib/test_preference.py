from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.loops import evaluated, trained
from tests.support.textruns import NO_DROPOUT, ready, same_splits, text_spec

from taskrecipe.contrib.chat import preference as module
from taskrecipe.contrib.chat.pairs import read_sides
from taskrecipe.contrib.chat.preference_losses import dpo_loss, ipo_loss, orpo_loss, simpo_loss
from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.testing import conformance

NO_DROPOUT["llama"] = {}

test_preference_conforms = conformance("preference")
test_reward_conforms = conformance("reward")

QUESTION = "what is the opposite of hot ?"
PAIR = {"prompt": QUESTION, "chosen": "the opposite of hot is cold .", "rejected": "the opposite of hot is wet ."}


def prepared(recipe: str, rows: list[dict[str, Any]], **task: Any):
    return ready(text_spec(recipe, task), same_splits(rows))


# Losses --------------------------------------------------------------------------------------------------


def test_the_losses_are_those_of_their_papers():
    means = torch.tensor([[-0.5, -2.0], [-1.5, -0.25]], dtype=torch.float64)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    for row, (a, b) in enumerate(means.tolist()):
        assert dpo_loss(means)[row].item() == pytest.approx(-math.log(sigmoid(a - b)))
        smooth = -0.9 * math.log(sigmoid(a - b)) - 0.1 * math.log(sigmoid(b - a))
        assert dpo_loss(means, 0.1)[row].item() == pytest.approx(smooth)
        assert ipo_loss(means, 0.2)[row].item() == pytest.approx((a - b - 2.5) ** 2)
        assert simpo_loss(means, 2.0, 0.5)[row].item() == pytest.approx(-math.log(sigmoid(2 * a - 2 * b - 0.5)))
        odds = [math.log(math.exp(x) / (1 - math.exp(x))) for x in (a, b)]
        expected = -a - 0.3 * math.log(sigmoid(odds[0] - odds[1]))
        assert orpo_loss(means, 0.3)[row].item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_the_model_that_training_starts_from_has_no_margin(loss):
    made = ready(text_spec("preference", {"loss": loss, "beta": 0.1}), rows=9)
    numbers = evaluated(made.loop())
    assert numbers["margin"] == pytest.approx(0.0, abs=1e-5)
    assert numbers["kl"] == pytest.approx(0.0, abs=1e-5)
    assert numbers["loss"] == pytest.approx({"dpo": math.log(2), "ipo": 25.0}[loss], abs=1e-4)


@pytest.mark.parametrize("loss", ["simpo", "orpo"])
def test_a_loss_without_a_reference_learns_the_sample(loss):
    numbers = trained(ready(text_spec("preference", {"loss": loss})).loop(dtype=torch.float32))
    assert numbers["accuracy"] > 0.9
    assert numbers["margin"] > 0


# The reference -------------------------------------------------------------------------------------------


def test_the_reference_is_computed_once_and_no_second_model_stays(monkeypatch):
    loaded = []
    inner = module.Preference._load
    monkeypatch.setattr(module.Preference, "_load", lambda self, source: loaded.append(source) or inner(self, source))
    made = ready(text_spec("preference"), rows=5)
    assert len(loaded) == 2  # once a split, before training
    assert all(len(row["reference"]) == 2 for row in made.rows["train"])
    made.loop()
    assert len(loaded) == 3  # and the one that is trained
    assert not [value for value in vars(made.recipe).values() if isinstance(value, torch.nn.Module)]


def test_other_weights_are_another_reference(tmp_path):
    from taskrecipe.contrib.chat.sample import write_tiny_llama, write_weights

    write_tiny_llama(tmp_path)
    hashes = set()
    for seed in (0, 1, 0):
        write_weights(tmp_path, seed)
        recipe = module.Preference(text_spec("preference"))
        recipe.load_processor(ModelSource(str(tmp_path)))
        hashes.add(recipe.reference["weights"])
    assert len(hashes) == 2


def test_a_model_without_weights_is_no_reference(tmp_path):
    from taskrecipe.contrib.chat.sample import write_tiny_llama

    write_tiny_llama(tmp_path)
    with pytest.raises(UsageError, match=r"\[task\].loss = 'dpo' compares with a trained model, .*has no weights"):
        module.Preference(text_spec("preference")).load_processor(ModelSource(str(tmp_path)))
    module.Preference(text_spec("preference", {"loss": "orpo"})).load_processor(ModelSource(str(tmp_path)))


def test_a_trained_model_is_measured_against_the_model_it_was_trained_from(tmp_path):
    made = ready(text_spec("preference"), rows=5)
    made.recipe.processor.save_pretrained(tmp_path)
    torch.manual_seed(5)
    made.recipe.load_model(ModelSource(str(made.source.name), pretrained=False)).save_pretrained(tmp_path)
    again = module.Preference(made.recipe.spec)
    again.reference = made.recipe.reference
    again.processor = again.load_processor(ModelSource(str(tmp_path), exported=True))
    rows = Dataset.from_list([PAIR])
    reference = again.preprocess(rows, "new")["reference"]
    assert reference == made.recipe.preprocess(rows, "new")["reference"]
    again.reference = {**again.reference, "weights": "others"}
    with pytest.raises(UsageError, match="whose weights have changed since"):
        again.preprocess(rows, "new")


# Rows ----------------------------------------------------------------------------------------------------


def test_answers_may_be_texts_turns_or_whole_conversations():
    asked, right, wrong = (
        {"role": role, "content": text}
        for role, text in zip(("user", "assistant", "assistant"), PAIR.values(), strict=True)
    )
    expected = [[asked, right], [asked, wrong]]
    assert read_sides(PAIR) == expected
    assert read_sides({"prompt": [asked], "chosen": [right], "rejected": [wrong]}) == expected
    assert read_sides({"prompt": QUESTION, "chosen": [asked, right], "rejected": [asked, wrong]}) == expected
    assert read_sides({"chosen": [asked, right], "rejected": [asked, wrong]}) == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rejected": None}, "there is no rejected answer"),
        ({"prompt": None}, "there is no prompt, and chosen doesn't begin with one"),
        ({"rejected": PAIR["chosen"]}, "chosen and rejected are the same"),
        ({"chosen": [{"role": "user", "content": "a"}]}, "chosen doesn't end with what the assistant says"),
    ],
)
@pytest.mark.parametrize("recipe", ["preference", "reward"])
def test_rows_that_cannot_be_used_are_named_together(recipe, change, why):
    columns = {name: [PAIR[name]] for name in PAIR}
    if isinstance(change.get("chosen"), list):
        columns = {"prompt": [], "chosen": [], "rejected": []}
    rows = [*([dict(PAIR)] if columns["prompt"] else []), {**PAIR, **change}, {**PAIR, **change}]
    first = len(rows) - 2
    with pytest.raises(
        DataError, match=rf"row {first}, column 'chosen': {why}.*2 rows are refused: {first}, {first + 1}"
    ):
        prepared(recipe, rows)


def test_pairs_that_are_too_long_are_refused_left_out_or_have_an_answer_left():
    long = {**PAIR, "prompt": f"{QUESTION} " * 9}
    with pytest.raises(DataError, match=r"row 1, .*1 of 2 rows have more than 32 tokens"):
        prepared("reward", [PAIR, long], max_length=32)
    with pytest.warns(UserWarning, match="1 of 2 rows have more than 32 tokens and are left out"):
        assert len(prepared("reward", [PAIR, long], max_length=32, overflow="drop").rows["train"]) == 1
    with (
        pytest.warns(UserWarning, match="are cut"),
        pytest.raises(DataError, match=r"row 1, .*nothing of the .* answer is left"),
    ):
        prepared("reward", [PAIR, long], max_length=32, overflow="cut")


# Answers -------------------------------------------------------------------------------------------------


def test_a_reward_model_scores_single_answers_as_it_scores_them_in_pairs():
    made = ready(text_spec("reward"), rows=6)
    model = made.loop().state.module.eval()
    scorer = type(made.recipe)(made.recipe.spec)
    scorer.processor = made.recipe.processor
    single = Dataset.from_list([{"prompt": PAIR["prompt"], "chosen": PAIR["chosen"]}])
    scorer.check(single, "new")
    scores = []
    for rows in (single, Dataset.from_list([PAIR])):
        batch = scorer.collate(list(scorer.preprocess(rows, "new")))
        with torch.no_grad():
            prediction = scorer.predict(scorer.forward(model, batch), batch)["rewards"][0]
        scores.append(scorer.answer({"rewards": prediction}, {})["score"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)


def test_a_description_shows_both_answers():
    made = ready(text_spec("preference"), same_splits([PAIR]))
    lines = made.recipe.describe(made.rows["train"][0]).lines
    said = [" ".join(piece.text for piece in line if piece.role == "trained") for line in lines]
    assert said == [f"{PAIR['chosen']} <|end|>", f"{PAIR['rejected']} <|end|>"]
