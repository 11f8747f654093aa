from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.support.languageruns import (
    TEXTS,
    language_loop,
    language_spec,
    model_source,
    prepared,
    sample_run,
    tiny_model,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from taskrecipe.errors import DataError, UsageError
from taskrecipe.recipe import IGNORED
from taskrecipe.training.batches import BatchMaker, Request
from taskrecipe.training.randomness import Purpose, make_generator


def example(recipe, row, seed=0):
    return recipe.example(row, np.random.default_rng(seed), training=True)


# Rows ----------------------------------------------------------------------------------------------------


def test_chunks_are_texts_joined_by_separators_with_the_models_own_edges():
    recipe, splits = prepared(language_spec("mlm"))
    tokenizer = recipe.processor
    stream = []
    for text in TEXTS:
        stream += [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
    expected = [
        [tokenizer.cls_token_id, *stream[i : i + 14], tokenizer.sep_token_id] for i in range(0, len(stream), 14)
    ]
    assert [row["input_ids"] for row in splits["train"]] == expected


def test_line_by_line_every_text_is_a_row_and_long_ones_are_several():
    recipe, splits = prepared(language_spec("mlm", {"rows": "documents"}))
    tokenizer = recipe.processor
    expected = [
        [tokenizer.cls_token_id, *ids[i : i + 14], tokenizer.sep_token_id]
        for ids in tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
        for i in range(0, len(ids), 14)
    ]
    assert [row["input_ids"] for row in splits["train"]] == expected


@pytest.mark.parametrize("rows", ["chunks", "documents"])
def test_blank_texts_are_left_out_and_counted(rows):
    with pytest.warns(UserWarning, match="2 of 9 texts are blank"):
        _, splits = prepared(language_spec("mlm", {"rows": rows}), {"train": [*TEXTS, "", " "], "validation": TEXTS})
    _, plain = prepared(language_spec("mlm", {"rows": rows}))
    assert splits["train"].to_dict() == plain["train"].to_dict()


@pytest.mark.parametrize("rows", ["chunks", "documents"])
def test_a_split_without_a_word_is_refused(rows):
    with pytest.warns(UserWarning, match="blank"), pytest.raises(DataError, match="'validation'"):
        prepared(language_spec("mlm", {"rows": rows}), {"validation": ["", " "], "train": TEXTS})


# Masks ---------------------------------------------------------------------------------------------------


def test_fifteen_percent_are_predicted_and_eighty_ten_ten_of_them_are_hidden_swapped_kept():
    recipe, _ = prepared(language_spec("mlm"))
    ids = np.tile(np.arange(10, 300), 1000)
    masked = example(recipe, {"input_ids": ids})
    chosen = masked["labels"] != IGNORED
    seen = masked["input_ids"][chosen]
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    assert (masked["labels"][chosen] == ids[chosen]).all()
    assert (masked["input_ids"][~chosen] == ids[~chosen]).all()
    hidden, kept = seen == recipe.processor.mask_token_id, seen == ids[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.01)
    assert kept.mean() == pytest.approx(0.1, abs=0.01)
    swapped = seen[~hidden & ~kept]
    assert not np.isin(swapped, recipe.processor.all_special_ids).any()
    assert len(np.unique(swapped)) > 250


def test_special_tokens_are_never_predicted():
    recipe, splits = prepared(language_spec("mlm", {"masked": 0.9}))
    special = recipe.processor.all_special_ids
    for row in splits["train"]:
        masked = example(recipe, row)
        ids = np.array(row["input_ids"])
        at_special = np.isin(ids, special)
        assert (masked["labels"][at_special] == IGNORED).all()
        assert (masked["input_ids"][at_special] == ids[at_special]).all()


@pytest.mark.parametrize("whole_words", [False, True])
def test_even_the_shortest_row_has_something_to_predict(whole_words):
    recipe, splits = prepared(language_spec("mlm", {"rows": "documents", "whole_words": whole_words, "masked": 0.01}))
    for row in splits["train"]:
        assert all((example(recipe, row, seed)["labels"] != IGNORED).any() for seed in range(20))


def test_a_row_of_special_tokens_only_counts_nothing():
    recipe, _ = prepared(language_spec("mlm"))
    row = {"input_ids": np.array([recipe.processor.cls_token_id, recipe.processor.sep_token_id])}
    assert recipe.loss_counts(recipe.collate([example(recipe, row)])) == {"loss": 0.0}


def test_masks_are_a_function_of_seed_epoch_and_row():
    recipe, splits = prepared(language_spec("mlm"))
    rows = splits["train"]

    def batch(epoch, numbers, training=True):
        return BatchMaker(recipe, rows, training=training)[Request(numbers, epoch)].inputs["labels"].tolist()

    assert batch(0, (0, 1, 2)) == batch(0, (0, 1, 2))
    assert batch(0, (2,))[0] == batch(0, (0, 1, 2))[2]  # whatever else is in the batch
    assert batch(0, (0, 1, 2)) != batch(1, (0, 1, 2))
    expected = recipe.example(rows[1], make_generator(Purpose.EXAMPLE, 7, 3, 1), True)["labels"].tolist()
    assert batch(3, (1,)) == [expected]


def test_masks_of_evaluation_never_change():
    recipe, splits = prepared(language_spec("mlm"))
    first, second = (
        BatchMaker(recipe, splits["validation"], training=False)[Request((0, 1, 2))].inputs for _ in range(2)
    )
    assert all((first[key] == second[key]).all() for key in first)
    training = BatchMaker(recipe, splits["validation"], training=True)[Request((0, 1, 2))].inputs
    assert (training["labels"] != first["labels"]).any()


# Answers and descriptions --------------------------------------------------------------------------------


def predict(recipe, model, rows):
    """Return the batch that is evaluated, and each row's predictions."""
    batch = BatchMaker(recipe, rows, training=False)[Request(tuple(range(len(rows))))].inputs
    with torch.no_grad():
        predictions = recipe.predict(recipe.forward(model.eval(), batch), batch)
    return batch, [{name: values[i] for name, values in predictions.items()} for i in range(len(rows))]


def test_the_answer_has_the_five_best_fillings_of_each_mask():
    recipe, splits = prepared(language_spec("mlm", {"rows": "documents", "masked": 0.4}))
    rows, model, decode = splits["validation"], tiny_model(recipe), recipe.processor.decode
    batch, predictions = predict(recipe, model, rows)
    with torch.no_grad():
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        probabilities = model(**inputs).logits.softmax(-1)
    masks = 0
    for i, (row, prediction) in enumerate(zip(rows, predictions, strict=True)):
        answer = json.loads(json.dumps(recipe.answer(prediction, row)))["masked"]
        places = (batch["input_ids"][i] == recipe.processor.mask_token_id).nonzero()[:, 0].tolist()
        assert [one["position"] for one in answer] == places
        for one in answer:
            assert one["hidden"] == decode([row["input_ids"][one["position"]]])
            best = probabilities[i, one["position"]].topk(5)
            assert [filling["token"] for filling in one["fillings"]] == [decode([t]) for t in best.indices.tolist()]
            found = [filling["probability"] for filling in one["fillings"]]
            assert found == pytest.approx(best.values.tolist(), rel=1e-5)
        masks += len(answer)
    assert masks > len(rows)


def test_predictions_hold_values_for_masks_only():
    """So memory doesn't grow with the vocabulary, nor with tokens that are seen."""
    recipe, splits = prepared(language_spec("mlm"))
    batch, predictions = predict(recipe, tiny_model(recipe), splits["validation"])
    masks = (batch["input_ids"] == recipe.processor.mask_token_id).sum(-1).tolist()
    for count, prediction in zip(masks, predictions, strict=True):
        numbers = {name: np.asarray(value).size for name, value in prediction.items()}
        assert numbers.pop("positions") == count
        assert numbers.pop("fillings") == numbers.pop("probabilities") == 5 * count
        assert numbers == {"nll": 1, "tokens": 1, "correct": 1}


def test_a_text_with_masks_of_its_own_is_filled_in_where_it_has_them():
    recipe, _ = prepared(language_spec("mlm", {"rows": "documents", "masked": 0.9, "length": 64}))
    mask = recipe.processor.mask_token
    rows = recipe.preprocess(Dataset.from_dict({"text": [f"the {mask} sailor {mask} here"]}), "validation")
    batch, (prediction,) = predict(recipe, tiny_model(recipe), rows)
    assert batch["input_ids"][0].tolist() == rows[0]["input_ids"]
    assert (batch["labels"] == IGNORED).all()
    answer = recipe.answer(prediction, rows[0])["masked"]
    assert [one["position"] for one in answer] == [
        i for i, token in enumerate(rows[0]["input_ids"]) if token == recipe.processor.mask_token_id
    ]
    assert [one.keys() for one in answer] == [{"position", "fillings"}] * 2
    assert (example(recipe, rows[0])["labels"] != IGNORED).any()  # in training it is a text like any other


def test_fillings_are_the_same_at_every_batch_size():
    def predicted(batch_size):
        loop = language_loop(language_spec("mlm", evaluate={"batch_size": batch_size}))
        running = loop.evaluations[0].predict(loop.model)
        while True:
            try:
                next(running)
            except StopIteration as finished:
                return finished.value

    one, several = predicted(1), predicted(3)
    for name in ("positions", "fillings"):
        assert all(np.array_equal(a, b) for a, b in zip(one[name], several[name], strict=True))


def test_tokens_to_predict_are_described_with_the_token_that_is_hidden():
    recipe, splits = prepared(language_spec("mlm", {"masked": 0.5}))
    tokens, special = recipe.processor.convert_ids_to_tokens, set(recipe.processor.all_special_ids)
    for row in splits["train"]:
        shown = example(recipe, row)
        (line,) = recipe.describe(shown).lines
        assert [piece.text for piece in line] == tokens(shown["input_ids"].tolist())
        for piece, before, label in zip(line, row["input_ids"], shown["labels"], strict=True):
            if label == IGNORED:
                assert (piece.role, piece.note) == ("special" if before in special else "context", "")
            else:
                assert (piece.role, piece.note) == ("masked", tokens(before))


# Whole words ---------------------------------------------------------------------------------------------


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer, trainers.WordPieceTrainer


def byte_level():
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer, trainers.BpeTrainer


def sentence_piece():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer, trainers.UnigramTrainer


def sentence_piece_without_splitting():
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer, trainers.BpeTrainer


@pytest.mark.parametrize("make", [word_piece, byte_level, sentence_piece, sentence_piece_without_splitting])
def test_whole_words_are_chosen_with_every_kind_of_tokenizer(make, tmp_path):
    from transformers import BertConfig, PreTrainedTokenizerFast

    special = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
    }
    tokenizer, trainer = make()
    text = [word for line in TEXTS for word in line.split()] if make is sentence_piece_without_splitting else TEXTS
    tokenizer.train_from_iterator(text, trainer(vocab_size=60, special_tokens=[*special.values()], show_progress=False))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(tmp_path)
    BertConfig().save_pretrained(tmp_path)
    task = {"whole_words": True, "length": 512, "size": None, "tokenizer": None, "rows": "documents", "masked": 0.3}
    recipe, splits = prepared(language_spec("mlm", task, model={"type": None, "name": str(tmp_path)}))
    partial, chosen_words = 0, 0
    for text, row in zip(TEXTS, splits["train"], strict=True):
        words = text.split()
        starts = np.flatnonzero(row["starts"])
        assert len(starts) == len(words)
        labels = example(recipe, row)["labels"]
        for start, end in zip(starts, [*starts[1:], len(labels)], strict=True):
            chosen = labels[start:end] != IGNORED
            assert chosen.all() or not chosen.any()
            chosen_words += chosen.any()
            partial += chosen.all() and len(chosen) > 1
    assert partial
    assert chosen_words < sum(len(text.split()) for text in TEXTS)


def test_words_stay_whole_across_chunks_of_several_texts():
    recipe, splits = prepared(language_spec("mlm", {"whole_words": True, "length": 64}))
    for row in splits["train"]:
        assert len(row["starts"]) == len(row["input_ids"])
        assert np.array(row["starts"])[np.isin(row["input_ids"], recipe.processor.all_special_ids)].all()


# Models --------------------------------------------------------------------------------------------------


def test_a_tokenizer_without_a_mask_is_refused():
    recipe, _ = prepared(language_spec("clm"))
    spec = language_spec("mlm", {"tokenizer": None})
    masked, _ = prepared(language_spec("mlm"))
    masked = type(masked)(spec)
    source = model_source(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(source), "tokenizer", lambda self: recipe.processor)
        with pytest.raises(UsageError, match="no mask token"):
            masked.load_processor(source)


def test_the_sample_is_learned_far_below_what_word_counts_give():
    """Untrained, perplexity is the vocabulary's size (208); word counts alone would give 70."""
    spec = language_spec(
        "mlm",
        {"length": 64, "rows": "documents", "tokenizer": None},
        train={"epochs": 5, "batch_size": 16, "learning_rate": 3e-3},
        evaluate={"every": "end"},
    )
    before, after = sample_run(spec)
    assert before["perplexity"] > 150
    assert after["perplexity"] < 25
    assert after["accuracy"] > 0.35
