"""What both language modeling recipes promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.support.languageruns import TEXTS, language_loop, language_spec, model_source, prepared, tiny_model
from tests.support.loops import evaluated, gradients, interrupted

from taskrecipe.errors import UsageError
from taskrecipe.model import ModelSource
from taskrecipe.recipe import IGNORED
from taskrecipe.text import language_modeling as language
from taskrecipe.text.projection import Projection, compute_losses
from taskrecipe.text.sample_grammar import make_sample_documents
from taskrecipe.training.batches import BatchMaker, Request

RECIPES = ["clm", "mlm"]
LAYOUTS = [("clm", "chunks"), ("clm", "packs"), ("clm", "documents"), ("mlm", "chunks"), ("mlm", "documents")]


# Accumulation, evaluation --------------------------------------------------------------------------------


@pytest.mark.parametrize(("recipe", "rows"), LAYOUTS)
@pytest.mark.parametrize("update", [0, -1], ids=["full", "short last window"])
def test_accumulation_gives_the_gradients_of_one_batch(recipe, rows, update):
    def taken(accumulate):
        loop = language_loop(language_spec(recipe, {"rows": rows, "length": 40}, train={"accumulate": accumulate}))
        number = update % loop.per_epoch
        unequal = len({batch.counts["loss"] for batch in next(loop.state.updates(number)).batches}) > 1
        return gradients(loop, number), unequal

    whole, _ = taken(1)
    for accumulate in (2, 4):
        split, unequal = taken(accumulate)
        assert unequal
        assert max(float((one - other).abs().max()) for one, other in zip(whole, split, strict=True)) < 1e-12


@pytest.mark.parametrize(("recipe", "rows"), LAYOUTS)
def test_perplexity_weighs_every_token_alike_at_every_batch_size(recipe, rows):
    """Against a loop over rows written out by hand; a mean of the rows' means is something else."""
    task = {"rows": rows, "length": 40}
    loop = language_loop(language_spec(recipe, task))
    losses, hits = [], []
    evaluation = loop.evaluations[0]
    preparation = BatchMaker(loop.objective.recipe, evaluation.rows, training=False)
    with torch.no_grad():
        for number in range(len(evaluation.rows)):
            batch = preparation[Request((number,))].inputs
            labels = batch.pop("labels")[0]
            scores = loop.model.eval()(**batch, **({"use_cache": False} if recipe == "clm" else {})).logits[0]
            if recipe == "clm":
                scores, labels = scores[:-1], labels[1:]
            chosen = labels != -100
            chances = scores.log_softmax(-1)[torch.arange(len(labels)), labels.clamp(min=0)]
            losses.append((-chances[chosen]).tolist())
            hits += (scores.argmax(-1) == labels)[chosen].tolist()
    every = [loss for row in losses for loss in row]
    expected = {
        "perplexity": math.exp(math.fsum(every) / len(every)),
        "accuracy": sum(hits) / len(hits),
        "loss": math.fsum(every) / len(every),
    }
    of_means = math.exp(np.mean([np.mean(row) for row in losses]))
    for batch_size in (1, 2, 3, 8):
        loop = language_loop(language_spec(recipe, task, evaluate={"batch_size": batch_size}))
        numbers = evaluated(loop)
        assert numbers == pytest.approx(expected, rel=1e-12)
        assert numbers["perplexity"] != pytest.approx(of_means, rel=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_evaluations_of_the_same_weights_give_the_same_numbers(recipe):
    loop = language_loop(language_spec(recipe), dtype=torch.float32)
    first = evaluated(loop)
    loop.progress.step = 99  # masks of evaluation depend on the row alone
    assert evaluated(loop) == first


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_spec_gives_the_same_bits_even_if_interrupted(recipe):
    """With dropout, masks and accumulation."""

    def loop():
        return language_loop(language_spec(recipe, train={"accumulate": 2}), dtype=torch.float32, dropout=True)

    first, second = loop(), loop()
    list(first.run())
    list(second.run())
    again = interrupted(loop(), loop(), after=first.total // 2)
    for other in (second, again):
        weights = other.state.module.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in first.state.module.state_dict().items())


@pytest.mark.parametrize("name", RECIPES)
def test_labels_are_smoothed_in_training_only(name):
    spec = language_spec(name, train={"label_smoothing": 0.2})
    loop = language_loop(spec)
    batch = next(loop.state.updates(0)).batches[0].inputs
    model = loop.model
    logits = model.eval()(**{key: value for key, value in batch.items() if key != "labels"}).logits
    labels = batch["labels"]
    if name == "clm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    plain, smooth = (
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=share)
        for share in (0.0, 0.2)
    )
    recipe = loop.objective.recipe
    outputs = recipe.forward(model, batch)
    for training, expected in ((False, plain), (True, smooth)):
        found = recipe.loss(outputs, batch, training=training)["loss"]
        assert float(found.detach()) == pytest.approx(float(expected.detach()))
    assert float(plain.detach()) != pytest.approx(float(smooth.detach()), rel=1e-4)


def test_a_batch_with_nothing_to_predict_has_no_loss_and_no_metrics():
    logits = torch.zeros(2, 3, 5, requires_grad=True)
    labels = torch.full((2, 3), IGNORED)
    losses = compute_losses(Projection(), logits, labels, 0.1, correct=True)
    loss = language.compute_mean_loss(losses, labels, training=True)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not logits.grad.any()
    numbers = {key: value.numpy() for key, value in language.measure_rows(losses, labels, {}).items()}
    assert all(math.isnan(value) for value in language.score_rows(numbers).values())


def test_a_hopeless_model_has_an_infinite_perplexity_instead_of_an_overflow():
    numbers = {"nll": np.array([1e6]), "tokens": np.array([10]), "correct": np.array([0])}
    assert language.score_rows(numbers)["perplexity"] == math.inf


# Tokenizers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_same_texts_train_the_same_tokenizer(recipe):
    backends = [prepared(language_spec(recipe))[0].processor.backend_tokenizer.to_str() for _ in range(2)]
    assert backends[0] == backends[1]


def test_a_trained_tokenizer_keeps_to_its_size_and_loads_again(tmp_path):
    from transformers import AutoTokenizer

    recipe, _ = prepared(language_spec("clm", {"tokenizer": {"vocab_size": 300}}))
    assert len(recipe.processor) == 300
    recipe.processor.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(TEXTS)["input_ids"] == recipe.processor(TEXTS)["input_ids"]
    assert again.eos_token_id == recipe.processor.eos_token_id == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_pretrained_weights_keep_their_tokenizer_and_their_size(recipe, tmp_path):
    made, _ = prepared(language_spec(recipe))
    made.processor.save_pretrained(tmp_path)
    made.load_model(model_source(made.spec)).save_pretrained(tmp_path)
    source = ModelSource(str(tmp_path))
    with pytest.raises(UsageError, match=r"\[task.tokenizer\]: the weights of"):
        prepared(language_spec(recipe, {"size": None}), source=source)
    with pytest.raises(UsageError, match=r"\[task\].size is 'tiny', but"):
        prepared(language_spec(recipe, {"tokenizer": None}), source=source)
    spec = language_spec(recipe, {"tokenizer": None, "size": None})
    again, _ = prepared(spec, source=source)
    model = again.load_model(source)
    assert model.config.hidden_size == 64
    with pytest.raises(UsageError, match=r"\[task\].length is 9000; the model takes \d+ tokens at most"):
        prepared(language_spec(recipe, {"tokenizer": None, "size": None, "length": 9000}), source=source)


@pytest.mark.parametrize("name", RECIPES)
def test_a_trained_model_is_used_with_the_spec_that_trained_it(name, tmp_path):
    """Its tokenizer and its size are with it, though the spec says how to make new ones."""
    spec = language_spec(name)
    loop = language_loop(spec, dtype=torch.float32)
    trained, rows = loop.objective.recipe, loop.evaluations[0].rows
    trained.processor.save_pretrained(tmp_path)
    loop.state.module.save_pretrained(tmp_path)
    again, source = type(trained)(spec), ModelSource(str(tmp_path), exported=True)
    again.processor = again.load_processor(source)
    text = Dataset.from_dict({"text": TEXTS[::-1]})
    assert again.preprocess(text, "validation").to_dict() == rows.to_dict()
    batch = BatchMaker(again, rows, training=False)[Request((0, 1))].inputs
    model = again.load_model(source).eval()
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    assert torch.equal(model(**inputs).logits, loop.model.eval()(**inputs).logits)
    losses = [one.loss(one.forward(used, batch), batch, False) for one, used in ((again, model), (trained, loop.model))]
    assert losses[0] == losses[1]


def test_a_tokenizer_is_trained_or_named_but_not_both(tmp_path):
    spec = language_spec("clm")
    with pytest.raises(UsageError, match=r"\[task.tokenizer\] trains a tokenizer, and \[model\].processor names"):
        prepared(spec, source=ModelSource(None, type="gpt2", processor=str(tmp_path)))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
    made, _ = prepared(language_spec("clm", {"tokenizer": {"vocab_size": 300}}))
    made.load_model(model_source(made.spec)).save_pretrained(tmp_path)
    other, _ = prepared(language_spec("clm", {"tokenizer": {"vocab_size": 303}}))
    other.processor.save_pretrained(tmp_path)
    spec = language_spec("clm", {"tokenizer": None, "size": None})
    with pytest.raises(
        UsageError, match=r"the tokenizer has 303 tokens and the model knows 300; set \[model\].processor"
    ):
        prepared(spec, source=ModelSource(str(tmp_path)))


# Models from scratch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "gpt_neox"])
def test_a_size_fits_any_architecture(kind):
    recipe, _ = prepared(language_spec("clm", {"length": 2048, "size": "tiny"}, model={"type": kind}))
    config = tiny_model(recipe).config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 2, 2)
    assert config.vocab_size == len(recipe.processor)
    assert config.max_position_embeddings >= 2048
    assert config.eos_token_id == recipe.processor.eos_token_id


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_a_masked_model_from_scratch_takes_rows_of_full_length(kind):
    texts = {"train": [" ".join(TEXTS * 20)], "validation": TEXTS}
    spec = language_spec("mlm", {"length": 600}, model={"type": kind})
    recipe, splits = prepared(spec, texts)
    batch = BatchMaker(recipe, splits["train"], training=False)[Request((0,))].inputs
    assert batch["input_ids"].shape == (1, 600)
    model = tiny_model(recipe).eval()
    assert model(batch["input_ids"]).logits.shape == (1, 600, len(recipe.processor))
    assert recipe.forward(model, batch).losses.nll.shape == (1, 600)


def test_the_configuration_goes_before_the_size():
    spec = language_spec("clm", {"size": "tiny"}, model={"type": "gpt2", "config": {"n_layer": 3}})
    config = tiny_model(prepared(spec)[0]).config
    assert (config.n_layer, config.n_embd) == (3, 64)


def test_a_configuration_too_small_for_the_rows_is_refused():
    with pytest.raises(UsageError, match=r"\[task\].length is 16; the model takes 8 tokens"):
        prepared(language_spec("clm", model={"type": "gpt2", "config": {"n_positions": 8}}))


# The grammar of the samples ------------------------------------------------------------------------------


def test_the_sample_can_be_predicted_far_better_than_from_word_counts():
    texts = make_sample_documents()["train"]["text"]
    words = [word for text in texts for word in text.split()]
    _, counts = np.unique(words, return_counts=True)
    shares = counts / len(words)
    assert 60 < math.exp(-(shares * np.log(shares)).sum()) < 80
    for text in texts:
        for sentence in text.split(" . "):
            first, _, noun, verb, *_ = sentence.split()
            plural = first in ("these", "those", "all", "some")
            assert (noun[-1] == "s", verb[-1] == "s") == (plural, not plural)


def test_sample_splits_share_no_text():
    splits = make_sample_documents()
    assert not set(splits["train"]["text"]) & set(splits["validation"]["text"])
