"""Guesses for recipes on text: which columns hold what, and how long texts are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taskrecipe.cli.starter.guess import Guess
from taskrecipe.cli.starter.table_facts import ColumnFacts, TableFacts
from taskrecipe.errors import DataError

LABELS = ("label", "labels", "class", "category", "target", "intent", "sentiment", "topic", "score", "rating", "stars")
TEXTS = ("text", "sentence", "content", "body", "message", "review", "document", "description", "title", "question")
PAIRS = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("query", "document"),
    ("query", "passage"),
    ("anchor", "positive"),
)
GENERATION = (
    ("source", "target"),
    ("document", "summary"),
    ("article", "highlights"),
    ("text", "summary"),
    ("input", "output"),
    ("question", "answer"),
)
TOKENS_A_WORD = 1.5
"""How many tokens a word has, roughly; `recipe preview` counts them."""


def guess_classification(table: TableFacts) -> Guess:
    """Guess one or two texts and a label, for `glue`."""
    label = _find_label(table)
    texts = _find_pair(table, PAIRS) or [_find_text(table, [label])]
    guess = Guess(
        task={"name": ("pair", "two texts and a label")}
        if len(texts) == 2
        else {"name": ("single", "one text and a label")}
    )
    names = ["sentence1", "sentence2"] if len(texts) == 2 else ["sentence"]
    for ours, column in zip(names, texts, strict=True):
        guess.columns[ours] = column.name, _describe_text(column)
    if label.kind == "number":
        guess.task["regression"] = True, f"the values of {label.name!r} are numbers, not classes"
        guess.columns["label"] = label.name, f"numbers such as {', '.join(map(str, label.given[:3]))}"
    else:
        guess.columns["label"] = label.name, f"classes: {label.list_classes()}"
        guess.evaluate["best"] = "macro_f1", "the mean over classes, so that rare ones count as much"
    _set_length(guess, "max_length", texts)
    return guess


def guess_pairs(table: TableFacts) -> Guess:
    """Guess two texts, and how similar they are if a column says it, for `two_tower`."""
    texts = _find_pair(table, PAIRS) or _require_texts(table, 2)
    guess = Guess(columns={f"text{n}": (c.name, _describe_text(c)) for n, c in enumerate(texts, 1)})
    score = table.find("score", "similarity", "label")
    if score is not None and score.kind in ("number", "class") and _are_numbers(score):
        highest = max(float(value) for value in score.given)
        guess.columns["score"] = score.name, f"numbers up to {highest:g}"
        guess.task["objective"] = "cosine", "there is a column of scores"
        guess.task["score_max"] = highest, "the highest score"
    _set_length(guess, "max_length", texts, together=False)
    return guess


def guess_generation(table: TableFacts) -> Guess:
    """Guess a source and a target, for `seq2seq`."""
    texts = _find_pair(table, GENERATION) or _require_texts(table, 2)
    guess = Guess(
        columns={ours: (c.name, _describe_text(c)) for ours, c in zip(("source", "target"), texts, strict=True)}
    )
    _set_length(guess, "source_length", texts[:1])
    _set_length(guess, "target_length", texts[1:])
    return guess


def guess_documents(table: TableFacts) -> Guess:
    """Guess the column of documents, for `clm` and `mlm`."""
    column = _find_text(table, [])
    return Guess(columns={"text": (column.name, _describe_text(column))})


def guess_choices(table: TableFacts) -> Guess:
    """Guess a context, its endings and the number of the right one, for `swag`."""
    context, question = table.find("context", "sent1", "startphrase", "premise"), table.find("question", "sent2")
    label = table.find("label", "answer", "gold")
    if context is None and question is not None:
        context, question = question, None
    if context is None or label is None or table.find("ending0", "endings") is None:
        raise _misfit(table, "a text (context), endings (ending0, ending1, …) and the number of the right one (label)")
    guess = Guess(columns={"context": (context.name, _describe_text(context))})
    if question is not None:
        guess.columns["question"] = question.name, "what every ending is put after"
    guess.columns["label"] = label.name, f"numbers of endings: {label.list_classes()}"
    endings = [column for column in table.columns if column.name.lower().startswith("ending")]
    longest = max(endings, key=lambda column: column.longest_words())
    _set_length(guess, "max_length", [context, *([question] if question else []), longest])
    return guess


def guess_tags(table: TableFacts) -> Guess:
    """Guess a list of words and a list of tags, for `token_classification`."""
    words = table.find("tokens", "words")
    tags = table.find("tags", "ner_tags", "pos_tags", "labels")
    if words is None or tags is None or words.kind != "list" or tags.kind != "list":
        raise _misfit(table, "a list of words (tokens) and a list of as many tags (tags)")
    found = sorted({str(tag) for value in tags.given for tag in value})
    shown = ", ".join(found[:6]) + (", …" if len(found) > 6 else "")
    return Guess(columns={"tokens": (words.name, "lists of words"), "tags": (tags.name, f"tags: {shown}")})


def guess_answers(table: TableFacts) -> Guess:
    """Guess question, context and answers, for `question_answering`."""
    found = {"question": table.find("question"), "context": table.find("context"), "answers": table.find("answers")}
    if any(column is None for column in found.values()):
        raise _misfit(table, "columns question, context and answers, or SQuAD's own json")
    return Guess(columns={ours: (column.name, "") for ours, column in found.items() if column})


TABLE_GUESSES: dict[str, Callable[[TableFacts], Guess]] = {
    "glue": guess_classification,
    "swag": guess_choices,
    "clm": guess_documents,
    "mlm": guess_documents,
    "two_tower": guess_pairs,
    "seq2seq": guess_generation,
    "token_classification": guess_tags,
    "question_answering": guess_answers,
}


def _find_label(table: TableFacts) -> ColumnFacts:
    named = table.find(*LABELS)
    if named is not None and named.kind in ("class", "number"):
        return named
    classes = table.of_kind("class")
    if not classes:
        raise _misfit(table, "a column of classes or numbers (label) and one or two of texts")
    return classes[-1]


def _find_text(table: TableFacts, taken: Sequence[ColumnFacts]) -> ColumnFacts:
    texts = [column for column in table.of_kind("text") if column not in taken]
    named = table.find(*TEXTS)
    if named is not None and named in texts:
        return named
    if not texts:
        raise _misfit(table, "a column of texts")
    return max(texts, key=lambda column: sum(column.words))


def _find_pair(table: TableFacts, pairs: Sequence[tuple[str, str]]) -> list[ColumnFacts] | None:
    for first, second in pairs:
        one, other = table.find(first), table.find(second)
        if one is not None and other is not None and not {one.kind, other.kind} & {"number", "list", "table"}:
            return [one, other]
    return None


def _require_texts(table: TableFacts, count: int) -> list[ColumnFacts]:
    texts = table.of_kind("text")
    if len(texts) < count:
        raise _misfit(table, f"{count} columns of texts")
    return texts[:count]


def _misfit(table: TableFacts, needed: str) -> DataError:
    return DataError(
        f"'{table.path}' doesn't fit this recipe: it needs {needed}; found {table.describe_columns()}. "
        "If a column is called otherwise, write the spec without --data and name it in [data.columns]"
    )


def _set_length(guess: Guess, key: str, texts: Sequence[ColumnFacts], together: bool = True) -> None:
    longest = [column.longest_words() for column in texts]
    words = sum(longest) if together else max(longest)
    tokens = min(512, max(32, -(-int(words * TOKENS_A_WORD + 3) // 32) * 32))
    guess.task[key] = tokens, f"99 % of the rows have at most about {words} words"


def _describe_text(column: ColumnFacts) -> str:
    middle = column.words[len(column.words) // 2] if column.words else 0
    return f"texts of about {middle} words"


def _are_numbers(column: ColumnFacts) -> bool:
    try:
        return all(float(value) >= 0 for value in column.given)
    except (TypeError, ValueError):
        return False
