from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.textruns import ready, same_splits, text_spec

from taskrecipe.contrib.seq2seq import bleu, rouge
from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.testing import conformance

test_it_conforms = conformance("seq2seq")

ROWS = [
    {"source": "the sailor waits near the harbor", "target": "a sailor waits"},
    {"source": "every farmer works", "target": "farmer works today without candle"},
]


def prepared(rows: list[dict[str, Any]] = ROWS, **task: Any):
    return ready(text_spec("seq2seq", task), same_splits(rows))


# Rows ----------------------------------------------------------------------------------------------------


def test_sources_have_the_prefix_and_targets_are_labels():
    made = prepared(prefix="today one ")
    decode = made.recipe.processor.decode
    assert [decode(ids) for ids in made.rows["train"]["input_ids"]] == [
        f"[CLS] today one {row['source']} [SEP]" for row in ROWS
    ]
    assert [decode(ids) for ids in made.rows["train"]["labels"]] == [f"[CLS] {row['target']} [SEP]" for row in ROWS]


def test_padding_of_labels_is_ignored_and_weighs_nothing():
    made = prepared()
    batch = made.recipe.collate(list(made.rows["train"]))
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert (batch["labels"] == -100).sum(-1).tolist() == [2, 0]
    assert (batch["input_ids"][batch["attention_mask"] == 0] == made.recipe.processor.pad_token_id).all()
    assert made.recipe.loss_counts(batch) == {"loss": 5.0 + 7.0}


def test_translations_are_found_by_their_languages():
    pairs = [{"translation": {"en": row["source"], "ro": row["target"], "de": "nein"}} for row in ROWS]
    plain = prepared().rows["train"].to_dict()
    assert prepared(pairs, languages={"source": "en", "target": "ro"}).rows["train"].to_dict() == plain
    turned = prepared(pairs, languages={"source": "ro", "target": "en"}).rows["train"]
    assert turned["target"] == [row["source"] for row in ROWS]


def test_a_language_that_is_not_there_is_named():
    pairs = [{"translation": {"en": "a", "ro": "b"}}]
    with pytest.raises(DataError, match=r"column 'translation': .*'fr'.*found en, ro"):
        prepared(pairs, languages={"source": "en", "target": "fr"})


def test_rows_to_train_on_need_both_languages_and_rows_to_predict_only_one():
    pairs = [{"translation": {"en": row["source"], "ro": row["target"]}} for row in ROWS]
    sources = Dataset.from_list([{"translation": {"en": row["source"]}} for row in ROWS])
    languages = {"source": "en", "target": "ro"}
    with pytest.raises(DataError, match=r"column 'translation': .*'ro'; found en"):
        ready(text_spec("seq2seq", {"languages": languages}), {**same_splits(pairs), "validation": sources})
    trained = prepared(pairs, languages=languages)
    recipe = type(trained.recipe)(trained.recipe.spec)
    recipe.processor = trained.recipe.processor
    recipe.check(sources, "new")
    rows = recipe.preprocess(sources, "new")
    assert rows.column_names == ["input_ids", "attention_mask"]
    assert rows["input_ids"] == trained.rows["train"]["input_ids"]


def test_a_translation_that_is_no_dictionary_is_refused():
    with pytest.raises(DataError, match=r"column 'translation'.*found none"):
        prepared([{"translation": "a"}], languages={"source": "en", "target": "fr"})


# Generation ----------------------------------------------------------------------------------------------


def greedy(model: torch.nn.Module, ids: torch.Tensor, longest: int) -> list[int]:
    """The likeliest token again and again, without any of transformers' generation."""
    made = [model.config.decoder_start_token_id]
    while len(made) <= longest:
        logits = model(input_ids=ids[None], decoder_input_ids=torch.tensor([made])).logits[0, -1]
        made.append(model.config.eos_token_id if len(made) == longest else int(logits.argmax()))
        if made[-1] == model.config.eos_token_id:
            break
    return made


def test_the_likeliest_text_is_generated_whatever_else_is_in_the_batch():
    made = ready(text_spec("seq2seq", {"target_length": 7}), rows=60)
    model = made.loop().state.module.eval()
    random = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and "embed" not in name and "shared" not in name:
            weight.data.normal_(0.0, 0.5, generator=random)  # wild, so that texts differ
    model.final_logits_bias[0, made.recipe.processor.all_special_ids] = -1e3  # and don't end at once
    rows = list(made.rows["validation"])[:12]
    with torch.no_grad():
        batch = made.recipe.collate(rows)
        texts = made.recipe.predict(made.recipe.forward(model, batch), batch)["text"]
        expected = [greedy(model, torch.tensor(row["input_ids"]), 7) for row in rows]
    assert texts == made.recipe.processor.batch_decode(expected, skip_special_tokens=True)
    assert len(set(texts)) > 1


def test_as_many_beams_are_searched_as_asked_for(monkeypatch):
    made = prepared(beams=3, target_length=6)
    asked = {}
    model = made.loop(text_spec("seq2seq", {"beams": 3}, schedule={"warmup": 0})).state.module
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda **options: asked.update(options) or generate(**options))
    outputs = made.recipe.forward(model.eval(), made.recipe.collate(list(made.rows["train"])))
    assert (asked["num_beams"], asked["do_sample"], asked["max_new_tokens"]) == (3, False, 6)
    assert len(outputs["generated"]) == len(ROWS)


def test_a_model_from_scratch_learns_its_special_tokens_from_the_tokenizer():
    made = prepared()
    sizes = {"d_model": 16, "d_ff": 16, "d_kv": 4, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    model = made.recipe.load_model(ModelSource(None, type="t5", config_values=sizes)).eval()
    tokenizer = made.recipe.processor
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.decoder_start_token_id == tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == tokenizer.sep_token_id
    batch = made.recipe.collate(list(made.rows["train"]))
    outputs = made.recipe.forward(model, batch)
    assert made.recipe.loss(outputs, batch, training=False)["loss"].isfinite()
    assert len(made.recipe.predict(outputs, batch)["text"]) == len(ROWS)


def test_nothing_is_generated_in_training(monkeypatch):
    made = prepared()
    model = made.loop().state.module.train()
    monkeypatch.setattr(model, "generate", None)
    batch = made.recipe.collate(list(made.rows["train"]))
    assert made.recipe.loss(made.recipe.forward(model, batch), batch, training=True)["loss"].isfinite()


def test_rows_without_a_target_are_generated_from_without_a_pass_over_targets():
    made = prepared()
    model = made.loop().state.module.eval()
    bare = Dataset.from_list(ROWS).remove_columns("target")
    made.recipe.check(bare, "new")
    batch = made.recipe.collate(list(made.recipe.preprocess(bare, "new")))
    whole = made.recipe.collate(list(made.rows["train"]))
    outputs, expected = made.recipe.forward(model, batch), made.recipe.forward(model, whole)
    assert list(outputs) == ["generated"]
    assert torch.equal(outputs["generated"], expected["generated"])
    assert made.recipe.predict(outputs, batch) == made.recipe.predict(expected, whole)
    assert made.recipe.answer({"text": "a sailor"}, {}) == {"text": "a sailor"}


def test_a_model_that_is_wrapped_for_several_processes_generates_the_same():
    made = prepared()
    model = made.loop().state.module.eval()
    batch = made.recipe.collate(list(made.rows["train"]))
    alone, wrapped = (made.recipe.forward(each, batch) for each in (model, torch.nn.DataParallel(model).eval()))
    assert torch.equal(alone["generated"], wrapped["generated"])


def test_a_description_shows_source_and_target():
    made = prepared()
    source, target = made.recipe.describe(made.rows["train"][1]).lines
    assert [piece.text for piece in source] == ["[CLS]", *ROWS[1]["source"].split(), "[SEP]"]
    assert [piece.text for piece in target] == ["[CLS]", *ROWS[1]["target"].split(), "[SEP]"]
    assert {piece.role for piece in source} == {"special", "context"}
    assert [piece.role for piece in target] == ["special", *["target"] * 5, "special"]


def test_what_is_generated_is_compared_with_the_whole_target():
    made = prepared(target_length=4)
    assert len(made.rows["train"]["labels"][1]) == 4
    assert made.recipe.score({"text": [row["target"] for row in ROWS]}, made.rows["train"])["rougeL"] == 100.0


# Scores --------------------------------------------------------------------------------------------------


def test_rouge_is_the_mean_f_measure():
    """3 of 3 words right and 3 of 4 found; 2 of 2 pairs right and 2 of 3 found. The other pair shares nothing."""
    numbers = rouge(["the cat sat", "birds"], ["the cat sat down", "stones"])
    assert numbers == pytest.approx(
        {"rouge1": 100 * (6 / 7) / 2, "rouge2": 100 * (4 / 5) / 2, "rougeL": 100 * (6 / 7) / 2, "rougeLsum": 300 / 7}
    )


def test_rouge_knows_stems():
    assert rouge(["jumping cats"], ["jumps cat"])["rouge1"] == 100.0


def test_bleu_is_of_the_whole_corpus():
    """Of 9 words 8 are right, of 7 pairs 6, of 5 triples 4, of 3 quadruples 2; both texts are as long as wanted."""
    expected = 100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** (1 / 4)
    assert bleu(["a b c d e", "f g h i"], ["a b c d x", "f g h i"]) == pytest.approx({"bleu": expected})


@pytest.mark.parametrize("metric", ["rouge", "bleu"])
def test_the_metric_decides_what_is_reported(metric):
    recipe = prepared(metric=metric).recipe
    numbers = recipe.score({"text": [row["target"] for row in ROWS]}, prepared().rows["train"])
    assert list(numbers) == list(recipe.metrics())
    assert numbers[next(iter(numbers))] == pytest.approx(100.0)


# What is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["source", "target"])
def test_a_missing_text_is_named(column):
    splits = {**same_splits(ROWS), "validation": Dataset.from_list([ROWS[0], {**ROWS[1], column: None}])}
    with pytest.raises(DataError, match=f"split 'validation', row 1, column '{column}': there is no text"):
        ready(text_spec("seq2seq"), splits)


def test_a_number_is_no_text():
    with pytest.raises(DataError, match="column 'target': 1 is not a text"):
        prepared([{"source": "a", "target": 1}])


@pytest.mark.parametrize("key", ["source_length", "target_length"])
def test_a_length_beyond_the_model_is_refused(key):
    with pytest.raises(UsageError, match=rf"\[task\].{key} is 65; the model takes 64 tokens"):
        prepared(**{key: 65})


@pytest.mark.parametrize(("metric", "package"), [("rouge", "rouge_score"), ("bleu", "sacrebleu")])
def test_a_metric_that_is_not_installed_is_told_before_training(metric, package, monkeypatch):
    monkeypatch.setattr("taskrecipe.system.optional_packages.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf"needs the package '{package}'.*pip install 'taskrecipe\[text\]'"):
        prepared(metric=metric)


def test_rows_without_targets_need_no_metric(monkeypatch):
    recipe = prepared().recipe
    monkeypatch.setattr("taskrecipe.system.optional_packages.find_spec", lambda name: None)
    recipe.check(Dataset.from_list(ROWS).remove_columns("target"), "new")
