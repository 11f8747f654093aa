from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from tests.support.loops import evaluated, gradients
from tests.support.templates import CONVERSATIONS, TEMPLATES, THINKING, make_tokenizer
from tests.support.textruns import NO_DROPOUT, Ready, ready, same_splits, text_spec

from taskrecipe.contrib.chat.formats import read_messages
from taskrecipe.contrib.chat.preparation import find_end_of_turn
from taskrecipe.contrib.chat.rendering import ChatTemplate
from taskrecipe.contrib.chat.sample import sample_tokenizer
from taskrecipe.errors import DataError, UsageError
from taskrecipe.model import ModelSource
from taskrecipe.recipe import IGNORED
from taskrecipe.testing import conformance

NO_DROPOUT["llama"] = {}

test_it_conforms = conformance("chat")
test_it_conforms_in_packs = conformance("chat", packing=True, turns="last")

ASK = {"role": "user", "content": "what is the opposite of hot ?"}
SAY = {"role": "assistant", "content": "the opposite of hot is cold ."}


def prepared(rows: list[dict[str, Any]], **task: Any) -> Ready:
    return ready(text_spec("chat", task), same_splits(rows))


@cache
def few_rows() -> Ready:
    return ready(text_spec("chat"), rows=22)


# What is trained on --------------------------------------------------------------------------------------


def template_of(name: str) -> ChatTemplate:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES.get(name, name)
    return ChatTemplate(tokenizer)


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_the_assistant_says_is_trained_on_with_the_token_that_ends_it(name):
    template = template_of(name)
    for messages in CONVERSATIONS:
        text, spans = template.find_turns(messages, None, last=False)
        encoded = template.encode(text, spans)
        assert encoded.ids == template.tokenizer(text, add_special_tokens=False)["input_ids"]
        turns = np.split(np.array(encoded.ids), np.flatnonzero(np.diff(encoded.trained.astype(int))) + 1)
        said = [template.tokenizer.decode(part) for part in turns[1::2]]
        spoken = [message["content"] for message in messages if message["role"] == "assistant"]
        ending = template.tokenizer.decode([find_end_of_turn(template.tokenizer)])
        assert len(said) == len(spoken)
        for found, expected in zip(said, spoken, strict=True):
            assert found.endswith(ending)
            assert found.removesuffix(ending).strip() == expected.strip()


@pytest.mark.parametrize("name", [name for name in TEMPLATES if "marked" in name])
def test_templates_that_say_what_is_generated_agree(name):
    template = template_of(name)
    for messages in CONVERSATIONS:
        encoded = template.encode(*template.find_turns(messages, None, last=False))
        marked = template.tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        assert marked["input_ids"] == encoded.ids
        assert marked["assistant_masks"] == encoded.trained.astype(int).tolist()


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_prompt_is_the_beginning_of_what_was_trained_on(name):
    """So the model reads the same tokens when it answers."""
    template = template_of(name)
    for messages in CONVERSATIONS:
        encoded = template.encode(*template.find_turns(messages, None, last=True))
        prompt = template.encode_prompt(messages[:-1], None)
        assert encoded.ids[: len(prompt)] == prompt
        assert int(np.flatnonzero(encoded.trained)[0]) == len(prompt)


def test_a_token_never_holds_the_end_of_a_prompt_and_the_beginning_of_an_answer():
    template = template_of("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    messages = [{"role": "user", "content": "Which s"}, {"role": "assistant", "content": "ea is that?"}]
    whole = template.tokenizer("Which sea is that?", add_special_tokens=False)["input_ids"]
    encoded = template.encode(*template.find_turns(messages, None, last=True))
    prompt = template.encode_prompt(messages[:1], None)
    assert encoded.ids[: len(prompt)] == prompt != whole[: len(prompt)]
    assert template.tokenizer.decode(encoded.ids) == "Which sea is that?"
    assert encoded.trained.tolist() == [False] * len(prompt) + [True] * (len(encoded.ids) - len(prompt))


def test_only_the_last_turn_is_trained_on_if_the_spec_says_so():
    rows = [{"messages": [ASK, SAY, ASK, SAY]}]
    counts = {}
    for turns in ("all", "last"):
        (labels,) = prepared(rows, turns=turns).rows["train"]["labels"]
        counts[turns] = sum(label != IGNORED for label in labels)
    assert counts == {"all": 16, "last": 8}


def test_a_turn_that_is_written_in_another_way_later_is_refused_with_its_place(tmp_path):
    reasoned = {**SAY, "reasoning_content": "hot and cold"}
    rows = [{"messages": [ASK, SAY]}, {"messages": [ASK, reasoned, ASK, reasoned]}]
    (tmp_path / "thinking.jinja").write_text(THINKING.replace("<|im_end|>", "<|end|>"))
    where = r"split 'train', row 1, column 'messages': .*message 1 .*'<think>.*at character \d+.*turns = \"last\""
    with pytest.raises(DataError, match=where):
        prepared(rows, template=str(tmp_path / "thinking.jinja"))
    made = prepared(rows, template=str(tmp_path / "thinking.jinja"), turns="last")
    assert len(made.rows["train"]) == 2


def test_the_template_of_a_file_is_used_and_saved_with_the_model(tmp_path):
    template = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"
    (tmp_path / "own.jinja").write_text(template)
    made = prepared([{"messages": [ASK, SAY]}], template=str(tmp_path / "own.jinja"))
    made.recipe.processor.save_pretrained(tmp_path / "model")
    made.recipe.load_model(made.source).save_pretrained(tmp_path / "model")
    (tmp_path / "own.jinja").unlink()
    again = type(made.recipe)(made.recipe.spec)
    tokenizer = again.load_processor(ModelSource(str(tmp_path / "model"), exported=True))
    assert tokenizer.chat_template == template


def test_a_description_marks_exactly_what_is_trained_on():
    made = prepared([{"messages": [ASK, SAY]}])
    (line,) = made.recipe.describe(made.rows["train"][0]).lines
    said = [piece.text for piece in line if piece.role == "trained"]
    assert said == [*SAY["content"].split(), "<|end|>"]
    assert [piece.text for piece in line if piece.role == "special"] == ["<|user|>", "<|end|>", "<|assistant|>"]


# Formats -------------------------------------------------------------------------------------------------

QUESTION, ANSWER = ASK["content"], SAY["content"]
SAME = {
    "messages": {"messages": [ASK, SAY]},
    "prompt_completion": {"prompt": QUESTION, "completion": ANSWER},
    "alpaca": {"instruction": QUESTION, "input": "", "output": ANSWER},
    "sharegpt": {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]},
}


@pytest.mark.parametrize("kind", SAME)
def test_every_format_gives_the_same_rows_and_is_found_by_its_columns(kind):
    expected = prepared([SAME["messages"]]).rows["train"].to_dict()
    assert prepared([SAME[kind]], format=kind).rows["train"].to_dict() == expected
    with pytest.warns(UserWarning, match=rf"rows are read as \[task\].format = '{kind}'"):
        assert prepared([SAME[kind]], format=None).rows["train"].to_dict() == expected


def test_prompts_and_completions_can_be_turns_and_a_system_message_a_column():
    row = {"prompt": [ASK, SAY, ASK], "completion": [SAY], "system": "a thing"}
    messages = read_messages(row, "prompt_completion")
    assert messages == [{"role": "system", "content": "a thing"}, ASK, SAY, ASK, SAY]
    asked = read_messages({"instruction": "what color ?", "input": "red"}, "alpaca")
    assert asked == [{"role": "user", "content": "what color ?\n\nred"}]


def test_tools_and_their_calls_reach_the_template():
    tokenizer = sample_tokenizer(
        "{% for t in tools %}{{ t.name }} {% endfor %}{% for m in messages %}{{ m }}{% endfor %}"
    )
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": {"a": 1, "b": None}}]}
    row = {"messages": [ASK, call, {"role": "tool", "content": "3"}], "tools": '[{"name": "add"}]'}
    messages = read_messages(row, "messages")
    assert messages[1] == {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}
    assert ChatTemplate(tokenizer).render(messages, [{"name": "add"}]).startswith("add {'role': 'user'")


def test_columns_without_a_conversation_are_refused_with_the_formats():
    with pytest.raises(DataError, match=r"columns 'text'\. Known formats .* alpaca: instruction, input, output"):
        prepared([{"text": "a"}], format=None)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ([], "there are no messages"),
        ([{"role": "robot", "content": "a"}], "message 0 has the role 'robot'; known are system"),
        ([ASK, {"role": "assistant", "content": None}], r"message 1 \(assistant\) has no text"),
        ([ASK], "the assistant says nothing, so nothing is trained on"),
    ],
)
def test_rows_that_cannot_be_used_are_named_together(row, why):
    rows = [{"messages": [ASK, SAY]}, {"messages": row}, {"messages": row}]
    with pytest.raises(DataError, match=rf"split 'train', row 1, column 'messages': {why}.*2 rows are refused: 1, 2"):
        prepared(rows)


def test_a_template_that_refuses_a_row_is_quoted(tmp_path):
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    (tmp_path / "t.jinja").write_text(refusing + "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}")
    rows = [{"messages": [ASK, SAY]}, {"messages": [{"role": "system", "content": "thing"}, ASK, SAY]}]
    with pytest.raises(DataError, match=r"row 1, column 'messages': the chat template refuses it: no system here"):
        prepared(rows, template=str(tmp_path / "t.jinja"))


# Length --------------------------------------------------------------------------------------------------

LONG = {"messages": [ASK, SAY] * 4}  # 64 tokens and more
SHORT = {"messages": [ASK, SAY]}


def test_rows_that_are_too_long_are_refused_with_their_numbers():
    with pytest.raises(DataError, match=r"row 1, .*2 of 3 rows have more than 32 tokens, this one \d+ \(rows 1, 2\)"):
        prepared([SHORT, LONG, LONG], max_length=32)


def test_rows_that_are_too_long_are_left_out_or_cut_and_counted():
    with pytest.warns(UserWarning, match=r"1 of 2 rows have more than 32 tokens and are left out, \d+ of \d+ tokens"):
        dropped = prepared([SHORT, LONG], max_length=32, overflow="drop").rows["train"]
    assert len(dropped) == 1
    with pytest.warns(UserWarning, match=r"1 of 2 rows have more than 32 tokens and are cut"):
        cut = prepared([SHORT, LONG], max_length=32, overflow="cut").rows["train"]
    assert [len(row["input_ids"]) for row in cut] == [len(dropped[0]["input_ids"]), 32]
    assert [len(row["labels"]) for row in cut] == [len(row["input_ids"]) for row in cut]


def test_rows_in_which_nothing_is_trained_on_are_refused_or_skipped_and_counted():
    rows = [SHORT, {"messages": [{**ASK, "content": f"{QUESTION} " * 8}, SAY]}]
    task = {"max_length": 32, "overflow": "cut"}
    with (
        pytest.warns(UserWarning, match="1 of 2 rows have more than 32 tokens and are cut"),
        pytest.raises(DataError, match=r"row 1, .*nothing is trained on within the first 32 tokens"),
    ):
        prepared(rows, **task)
    with (
        pytest.warns(UserWarning, match="are cut"),
        pytest.warns(UserWarning, match=r"nothing is trained on in 1 of 2 rows \(rows 1\), which are skipped"),
    ):
        assert len(prepared(rows, untrained="skip", **task).rows["train"]) == 1
    with pytest.warns(UserWarning, match=r"1 of 2 rows \(rows 1\), which are skipped"):
        assert len(prepared([SHORT, {"messages": [ASK]}], untrained="skip").rows["train"]) == 1


# Packs ---------------------------------------------------------------------------------------------------


def test_packs_change_neither_gradients_nor_metrics():
    plain = few_rows().loop(text_spec("chat", train={"batch_size": 8}))
    made = ready(text_spec("chat", {"packing": True}), rows=22)
    for accumulate in (1, 4):
        packed = made.loop(text_spec("chat", {"packing": True}, train={"batch_size": 8, "accumulate": accumulate}))
        for update in (0, 2):
            one, other = gradients(plain, update), gradients(packed, update)
            plain.model.zero_grad(), packed.model.zero_grad()
            assert max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) < 1e-6
    assert evaluated(packed) == pytest.approx(evaluated(plain), rel=1e-6)


# Answers -------------------------------------------------------------------------------------------------


def test_a_conversation_that_ends_without_an_answer_is_answered():
    """Whatever else is in the batch, as the likeliest token again and again."""
    made = few_rows()
    recipe = type(made.recipe)(made.recipe.spec)  # one that has not learned: it is used, not trained
    recipe.processor = made.recipe.processor
    rows = Dataset.from_list([{"messages": [ASK]}, {"messages": [ASK, SAY, ASK]}, SHORT])
    recipe.check(rows, "new")
    ready_rows = recipe.preprocess(rows, "new")
    assert len(ready_rows) == 3
    torch.manual_seed(0)
    loaded = recipe.load_model(made.source).double().eval()
    batch = recipe.collate(list(ready_rows))
    with torch.no_grad():
        predictions = recipe.infer(loaded, batch)
    for number, row in enumerate(ready_rows):
        prediction = {name: values[number] for name, values in predictions.items()}
        answer = json.loads(json.dumps(recipe.answer(prediction, row)))
        assert ("answer" in answer) == (number < 2)
        assert ("loss" in answer) == (number > 0)
        if number < 2:
            ids, ends = list(row["prompt_ids"]), loaded.generation_config.eos_token_id
            while len(ids) < len(row["prompt_ids"]) + 16 and (
                len(ids) == len(row["prompt_ids"]) or ids[-1] not in ends
            ):
                ids.append(int(loaded(torch.tensor([ids])).logits[0, -1].argmax()))
            expected = recipe.processor.decode(ids[len(row["prompt_ids"]) :], skip_special_tokens=True)
            assert answer["answer"] == expected


def test_the_model_stops_where_its_turns_end_also_after_export(tmp_path):
    made = few_rows()
    model = made.recipe.load_model(made.source)
    model.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    end = made.recipe.processor.convert_tokens_to_ids("<|end|>")
    assert settings["eos_token_id"] == [end]
    assert settings["max_new_tokens"] == 16


# What is refused -----------------------------------------------------------------------------------------


def test_a_model_without_a_template_needs_one(tmp_path):
    few_rows().source.config().save_pretrained(tmp_path)
    tokenizer = sample_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"has no chat template; give one as a file \(\[task\].template\)"):
        few_rows().recipe.load_processor(ModelSource(str(tmp_path)))


def test_a_template_without_an_end_of_turn_is_warned_of(tmp_path):
    (tmp_path / "t.jinja").write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    with pytest.warns(UserWarning, match="the model can't learn to stop"):
        prepared([SHORT], template=str(tmp_path / "t.jinja"))


def test_a_template_that_is_no_template_is_refused(tmp_path):
    (tmp_path / "t.jinja").write_text("{% for %}")
    with pytest.raises(UsageError, match=r"the chat template can't be used for a question and its answer"):
        prepared([SHORT], template=str(tmp_path / "t.jinja"))
    with pytest.raises(UsageError, match=r"\[task\].template: .* can't be read"):
        prepared([SHORT], template=str(tmp_path / "missing.jinja"))


# As a user ------------------------------------------------------------------------------------------------

SPEC = """
spec_version = 1
recipe = "chat"
[task]
max_length = 128
packing = true
[model]
name = "start"
[data]
files = { train = "train.jsonl", validation = "train.jsonl" }
[train]
epochs = 6
batch_size = 8
learning_rate = 1e-2
[predict]
max_new_tokens = 12
[evaluate]
every = "end"
[checkpoint]
every = "end"
"""


def test_a_file_of_conversations_becomes_a_model_that_talks(zygote, tmp_path):
    from taskrecipe.contrib.chat.sample import write_tiny_llama

    write_tiny_llama(tmp_path / "start")
    (tmp_path / "chat.toml").write_text(SPEC)
    (tmp_path / "train.jsonl").write_text(f"{json.dumps({'messages': [ASK, SAY]})}\n" * 24)
    done = zygote.run("run", "chat.toml", "--out", "run", cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "[task].format = 'messages'" in done.stdout + done.stderr
    card = (tmp_path / "run/model/README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0]
    assert 'predict(messages)[0]["generated_text"][-1]["content"]' in code
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run/model")
    prompt = tokenizer.apply_chat_template([ASK], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == f"{SAY['content']} <|end|>"
