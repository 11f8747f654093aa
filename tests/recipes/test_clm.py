from __future__ import annotations

import json
import math
import signal
import time
from itertools import chain, pairwise

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
from tests.support.loops import evaluated, gradients, interrupted
from tokenizers import processors

from taskrecipe.errors import DataError, UsageError
from taskrecipe.recipe import IGNORED
from taskrecipe.text.packs import keeps_rows_apart


def tokens_of(recipe, texts=TEXTS, end="eos"):
    ends = {"eos": [recipe.processor.eos_token_id], "none": []}[end]
    return [recipe.processor(text)["input_ids"] + ends for text in texts]


def joined(rows):
    return [int(token) for row in rows for token in row["input_ids"]]


# Rows ----------------------------------------------------------------------------------------------------


def test_chunks_are_all_texts_joined_each_ended_by_the_end_of_text_token():
    recipe, splits = prepared(language_spec("clm"))
    rows = splits["train"]
    assert joined(rows) == list(chain(*tokens_of(recipe)))
    assert [len(row["input_ids"]) for row in rows][:-1] == [16] * (len(rows) - 1)
    assert 1 < len(rows[-1]["input_ids"]) < 16


def test_a_dropped_tail_is_counted():
    with pytest.warns(UserWarning, match=r"1 of \d+ rows have fewer than 16 tokens and are dropped, (\d+) of"):
        recipe, splits = prepared(language_spec("clm", {"tail": "drop"}))
    everything = list(chain(*tokens_of(recipe)))
    assert joined(splits["train"]) == everything[: len(everything) // 16 * 16]


def test_a_tail_of_one_token_has_nothing_to_predict_and_is_counted_too():
    texts = {"train": ["".join(chr(97 + i) for i in range(17))], "validation": ["ab"]}  # no pair of letters twice
    with pytest.warns(UserWarning, match=r"train: 1 of 2 rows .* dropped, 1 of 17 tokens"):
        _, splits = prepared(language_spec("clm", {"separator": "none"}), texts)
    assert [len(row["input_ids"]) for row in splits["train"]] == [16]


def test_blank_lines_are_part_of_the_text_where_lines_are_joined():
    texts = {"train": ["= title =", "", "first line"], "validation": ["x y"]}
    with pytest.warns(UserWarning, match="1 of 3 texts are blank"):
        recipe, splits = prepared(language_spec("clm", {"separator": "newline"}), texts)
    assert recipe.processor.decode(joined(splits["train"])) == "= title =\n\nfirst line\n"


def test_texts_that_bring_their_own_line_ends_are_joined_as_they_are():
    texts = {"train": ["= title =\n", " \n", "first line\n"], "validation": ["x y"]}
    with pytest.warns(UserWarning, match="1 of 3 texts are blank"):
        recipe, splits = prepared(language_spec("clm", {"separator": "none"}), texts)
    assert recipe.processor.decode(joined(splits["train"])) == "= title =\n \nfirst line\n"


@pytest.mark.parametrize(
    ("rows", "separator", "marked"),
    [("chunks", "eos", True), ("documents", "none", True), ("chunks", "newline", False), ("chunks", "none", False)],
)
def test_the_beginning_of_a_document_is_marked_but_not_that_of_a_line(rows, separator, marked):
    recipe, _ = prepared(language_spec("clm", {"rows": rows, "separator": separator}))
    tokenizer = recipe.processor.backend_tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(single="s $A", special_tokens=[("s", 99)])
    ids = joined(recipe.preprocess(Dataset.from_dict({"text": TEXTS}), "train"))
    assert ids.count(99) - joined(prepared(recipe.spec)[1]["train"]).count(99) == (len(TEXTS) if marked else 0)


@pytest.mark.parametrize("rows", ["chunks", "packs", "documents"])
def test_blank_documents_are_left_out_and_counted(rows):
    texts = {"train": [*TEXTS, "", " \n\t"], "validation": TEXTS}
    with pytest.warns(UserWarning, match="2 of 9 texts are blank"):
        recipe, splits = prepared(language_spec("clm", {"rows": rows}), texts)
    assert sorted(joined(splits["train"])) == sorted(chain(*tokens_of(recipe)))


def test_documents_become_rows_of_their_own_and_long_ones_several():
    recipe, splits = prepared(language_spec("clm", {"rows": "documents"}))
    expected = [one[i : i + 16] for one in tokens_of(recipe) for i in range(0, len(one), 16)]
    assert all(len(row) > 1 for row in expected)
    assert [row["input_ids"] for row in splits["train"]] == expected


def test_a_document_that_is_one_token_too_long_loses_none():
    texts = {"train": ["".join(chr(97 + i) for i in range(16))], "validation": ["ab"]}  # and the end-of-text token
    _, splits = prepared(language_spec("clm", {"rows": "documents"}), texts)
    assert [len(row["input_ids"]) for row in splits["train"]] == [15, 2]


def test_packs_hold_whole_documents_with_positions_that_restart():
    recipe, splits = prepared(language_spec("clm", {"rows": "packs", "length": 64}))
    packed = []
    for row in splits["train"]:
        assert len(row["input_ids"]) <= 64
        starts = [i for i, position in enumerate(row["position_ids"]) if position == 0]
        bounds = [*starts, len(row["input_ids"])]
        packed += [row["input_ids"][a:b] for a, b in pairwise(bounds)]
    assert sorted(packed) == sorted(one[i : i + 64] for one in tokens_of(recipe) for i in range(0, len(one), 64))


# Packing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "qwen2"])
def test_a_document_in_a_pack_gets_the_logits_it_gets_alone(kind):
    config = {"sliding_window": 8} if kind == "mistral" else {}
    spec = language_spec("clm", {"rows": "packs", "length": 48}, model={"type": kind, "config": config})
    recipe, splits = prepared(spec)
    model = tiny_model(recipe).eval()
    batch = recipe.collate(list(splits["train"]))
    together = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    compared = 0
    for row, logits in zip(splits["train"], together, strict=True):
        bounds = [*(i for i, p in enumerate(row["position_ids"]) if p == 0), len(row["input_ids"])]
        for start, end in pairwise(bounds):
            alone = model(input_ids=torch.tensor([row["input_ids"][start:end]]), use_cache=False).logits[0]
            assert (alone - logits[start:end]).abs().max() < (1e-12 if kind == "gpt2" else 1e-6)  # RoPE is float32
            compared += 1
    assert compared > len(splits["train"])


def test_packing_changes_neither_loss_nor_perplexity():
    numbers = {
        rows: evaluated(language_loop(language_spec("clm", {"rows": rows, "length": 64})))
        for rows in ("packs", "documents", "chunks")
    }
    assert numbers["packs"] == pytest.approx(numbers["documents"], rel=1e-12)
    assert numbers["chunks"]["perplexity"] != pytest.approx(numbers["documents"]["perplexity"], rel=1e-6)


def test_no_token_is_predicted_from_another_document():
    recipe, splits = prepared(language_spec("clm", {"rows": "packs", "length": 64}))
    batch = recipe.collate(list(splits["train"]))
    documents = sum(row["position_ids"].count(0) for row in splits["train"])
    tokens = len(joined(splits["train"]))
    assert recipe.loss_counts(batch) == {"loss": tokens - documents}
    assert (batch["labels"][batch["position_ids"] == 0] == IGNORED).all()


@pytest.mark.parametrize("kind", ["bloom", "opt"])
def test_an_architecture_that_mixes_packed_documents_is_refused(kind):
    config = {"word_embed_proj_dim": 64} if kind == "opt" else {}
    spec = language_spec("clm", {"rows": "packs"}, model={"type": kind, "config": config})
    recipe, _ = prepared(spec)
    with pytest.raises(UsageError, match=rf"a {kind} model attends from one packed row to another"):
        recipe.load_model(model_source(spec))


def test_the_packing_probe_leaves_the_model_as_it_was():
    recipe, _ = prepared(language_spec("clm", {"rows": "packs"}))
    model = tiny_model(recipe)
    assert keeps_rows_apart(model.train())
    assert model.training


# Evaluation ----------------------------------------------------------------------------------------------


def test_evaluation_keeps_three_numbers_a_row():
    """So memory stays the same for any number of rows, however large the vocabulary."""
    loop = language_loop(language_spec("clm", {"rows": "documents"}, evaluate={"batch_size": 1}))
    recipe = loop.objective.recipe
    batch = recipe.collate(loop.evaluations[0].rows.__getitems__([0, 1, 2]))
    predictions = recipe.predict(recipe.forward(loop.model.eval(), batch), batch)
    assert {tuple(value.shape) for value in predictions.values()} == {(3,)}


# Rows of an update in packs ------------------------------------------------------------------------------


def packing_spec(packing, **tables):
    train = {"batch_size": 7, **tables.pop("train", {})}
    return language_spec("clm", {"rows": "documents", "length": 48, "packing": packing}, train=train, **tables)


@pytest.mark.parametrize("accumulate", [1, 7])
def test_packing_changes_neither_gradients_nor_metrics(accumulate):
    """In parts of a single row nothing is packed."""
    plain = language_loop(packing_spec(False), dropout=True)
    packed = language_loop(packing_spec(True, train={"accumulate": accumulate}), dropout=True)
    update = next(packed.state.updates(0))
    assert max(len(batch.inputs["input_ids"]) for batch in update.batches) < 7
    for one, other in zip(gradients(plain, 0), gradients(packed, 0), strict=True):
        assert (one - other).abs().max() < 1e-12
    assert evaluated(plain) == pytest.approx(evaluated(packed), rel=1e-12)


def test_a_packed_run_goes_on_where_it_was_stopped():
    def loop():
        return language_loop(packing_spec(True, train={"epochs": 4, "batch_size": 3}), dropout=True)

    whole = loop()
    list(whole.run())
    resumed = interrupted(loop(), loop(), after=5).state.module.state_dict()
    assert all(torch.equal(value, resumed[name]) for name, value in whole.state.module.state_dict().items())


def test_only_documents_are_packed():
    with pytest.raises(ValueError, match="packing = true is for rows = 'documents'"):
        language_spec("clm", {"packing": True})


# Answers and descriptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["chunks", "packs", "documents"])
def test_the_answer_is_the_loss_of_a_row_and_its_tokens(rows):
    loop = language_loop(language_spec("clm", {"rows": rows, "length": 64}))
    recipe, stored = loop.objective.recipe, loop.evaluations[0].rows
    for row in stored:
        alone = recipe.collate([row])
        with torch.no_grad():
            outputs = recipe.forward(loop.model.eval(), alone)
        prediction = {name: value[0] for name, value in recipe.predict(outputs, alone).items()}
        loss = float(recipe.loss(outputs, alone, training=False)["loss"])
        documents = row["position_ids"].count(0) if rows == "packs" else 1
        assert recipe.answer(prediction, row) == pytest.approx(
            {"loss": loss, "perplexity": math.exp(loss), "tokens": len(row["input_ids"]) - documents}
        )


def test_every_token_of_a_row_but_the_first_is_described_as_trained():
    recipe, splits = prepared(language_spec("clm"))
    for row in splits["train"]:
        (line,) = recipe.describe(row).lines
        assert [piece.text for piece in line] == recipe.processor.convert_ids_to_tokens(row["input_ids"])
        assert line[0].role != "trained"
        assert {piece.role for piece in line[1:]} == {"trained"}


def test_packed_documents_are_described_line_by_line():
    recipe, splits = prepared(language_spec("clm", {"rows": "packs", "length": 64}))
    for row in splits["train"]:
        lines = recipe.describe(row).lines
        assert [len(line) for line in lines] == [
            end - start
            for start, end in pairwise(
                [*(i for i, p in enumerate(row["position_ids"]) if p == 0), len(row["input_ids"])]
            )
        ]
        batch = recipe.collate([row])
        trained = [piece.role == "trained" for line in lines for piece in line]
        assert trained == (batch["labels"][0] != IGNORED).tolist()


# Hostile data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", ["chunks", "packs", "documents"])
def test_a_split_without_a_word_is_refused(rows):
    with pytest.warns(UserWarning, match="2 of 2 texts are blank"), pytest.raises(DataError, match="no row is left"):
        prepared(language_spec("clm", {"rows": rows}), {"train": TEXTS, "validation": ["", " "]})


def test_a_missing_text_is_refused_with_its_row():
    with pytest.raises(DataError, match=r"split 'train', row 1, column 'text'"):
        prepared(language_spec("clm"), {"train": ["a b", None, "c"], "validation": TEXTS})


def test_a_tail_policy_that_leaves_nothing_is_refused():
    with (
        pytest.warns(UserWarning, match="validation: 1 of 1 rows have fewer than 16 tokens"),
        pytest.raises(DataError, match=r"split 'validation'.*no row is left"),
    ):
        prepared(language_spec("clm", {"tail": "drop"}), {"validation": ["few words"], "train": TEXTS})


def test_a_row_of_ten_megabytes_becomes_many_rows():
    word = "abcdefghij" * 20
    texts = {"validation": [f"{word} " * 50_000], "train": [word]}
    with pytest.warns(UserWarning, match="1 of 1 texts are a megabyte or longer"):
        recipe, splits = prepared(language_spec("clm", {"rows": "documents", "length": 512}), texts)
    lengths = recipe.lengths(splits["validation"])
    assert max(lengths) == 512
    assert sum(lengths) >= 50_000


@pytest.mark.parametrize("text", ["emoji 🦞 and Ünïcödé", "\u202e turned \ufeff", "a\r\nb\tc"])
def test_any_text_comes_back_from_a_trained_tokenizer(text):
    recipe, splits = prepared(language_spec("clm", {"separator": "none"}), {"train": [text] * 9, "validation": [text]})
    assert recipe.processor.decode(joined(splits["validation"])) == text


# Streams -------------------------------------------------------------------------------------------------


def test_a_block_of_a_stream_is_cut_by_itself_and_may_be_empty():
    spec = language_spec("clm", data={"streaming": True}, train={"updates": 3})
    with pytest.warns(UserWarning, match="the tokenizer is trained on the first 7 rows of the stream"):
        recipe, _ = prepared(spec)
    block = Dataset.from_dict({"text": TEXTS})
    assert joined(recipe.preprocess(block, "train")) == joined(recipe.preprocess(block, "train"))
    assert len(recipe.preprocess(Dataset.from_dict({"text": ["", " "]}), "train")) == 0


STREAM = """
spec_version = 1
recipe = "clm"
[task]
length = 32
rows = "packs"
size = "tiny"
tokenizer = { vocab_size = 320 }
[model]
type = "gpt2"
[data]
files = { train = "train.txt", validation = "validation.txt" }
streaming = true
[train]
updates = 14
batch_size = 64
learning_rate = 1e-3
[checkpoint]
every = 3
keep = 9
"""


def test_a_run_over_a_stream_goes_on_where_it_was_stopped(zygote, tmp_path):
    """Over several blocks of rows, with a tokenizer trained on the first of them."""
    (tmp_path / "stream.toml").write_text(STREAM)
    (tmp_path / "train.txt").write_text("".join(f"line {i} says {i * 7919 % 1000}\n" for i in range(3000)))
    (tmp_path / "validation.txt").write_text("\n".join(TEXTS))
    whole = zygote.run("run", "stream.toml", "--out", "whole", cwd=tmp_path)
    assert whole.code == 0, whole.stderr
    stopped = zygote.start("run", "stream.toml", "--out", "stopped", cwd=tmp_path)
    while not (tmp_path / "stopped/checkpoints/step-6").is_dir() and stopped.poll() is None:
        time.sleep(0.01)
    stopped.send(signal.SIGTERM)
    assert stopped.wait() == 143, stopped.stderr
    resumed = zygote.run("resume", "stopped", cwd=tmp_path)
    assert resumed.code == 0, resumed.stderr
    prints = [zygote.run("fingerprint", folder, cwd=tmp_path).stdout for folder in ("whole", "stopped")]
    assert prints[0] == prints[1] != ""
    results = json.loads((tmp_path / "whole/results.json").read_text())
    assert (results["updates"], results["status"]) == (14, "finished")


# Options -------------------------------------------------------------------------------------------------


def test_only_chunks_have_a_tail():
    with pytest.raises(ValueError, match="tail = 'drop' is for rows = 'chunks'"):
        language_spec("clm", {"tail": "drop", "rows": "packs"})


def test_a_tokenizer_without_an_end_of_text_token_needs_another_separator(tmp_path):
    from taskrecipe.text import write_tiny_bert

    write_tiny_bert(tmp_path, ["a", "b"])
    spec = language_spec("clm", {"tokenizer": None, "size": None}, model={"type": None, "name": str(tmp_path)})
    with pytest.raises(UsageError, match=r"set \[task\].separator to 'newline' or 'none'"):
        prepared(spec)


# Sample --------------------------------------------------------------------------------------------------


def test_the_sample_is_learned_far_below_what_word_counts_give():
    """Untrained, perplexity is the vocabulary's size; word counts alone would give 70."""
    spec = language_spec(
        "clm", {"length": 64, "tokenizer": None}, train={"epochs": 3, "batch_size": 16, "learning_rate": 5e-3}
    )
    before, after = sample_run(spec)
    assert before["perplexity"] > 500
    assert after["perplexity"] < 12
    assert after["accuracy"] > 0.35
