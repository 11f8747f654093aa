"""What is said of wrong values: the place, the words, the suggestion."""

from __future__ import annotations

import pytest
from tests.support.specplugins import plugin, registry

from taskrecipe.cli.validate import problems_of


def place(problem):
    return problem.line, problem.column, problem.width


def test_a_good_spec_has_no_problem(problems, spec_text):
    assert problems(spec_text) == []


@pytest.mark.parametrize(
    ("wrong", "code", "marked", "suggestion"),
    [
        ("epoch = 3", "unknown-key", "epoch", "epochs"),
        ("Epochs = 3", "unknown-key", "Epochs", "epochs"),
        ("epochs = 3\nepoch = 3", "unknown-key", "epoch", None),  # that one is there already
        ("epochs = 3\nweight_decay = 0.1", "wrong-table", "weight_decay", "optimizer.weight_decay"),
        ("epochs = 3\nseed = 1", "wrong-table", "seed", "seed"),
        ("epochs = 3\nwidth = 4", "wrong-table", "width", "task.width"),
        ("epochs = 3\nxyzzy = 1", "unknown-key", "xyzzy", None),
        ('epochs = 3\n"quoted key" = 1', "unknown-key", '"quoted key"', None),
        ('epochs = "3"', "wrong-type", '"3"', "3"),
        ("epochs = 3.0", "wrong-type", "3.0", "3"),
        ("epochs = 3.5", "wrong-type", "3.5", None),
        ("epochs = true", "wrong-type", "true", None),
        ("epochs = 0", "out-of-range", "0", None),
        ('epochs = "0"', "wrong-type", '"0"', None),
        ("epochs = 3\nclip_norm = nan", "out-of-range", "nan", None),
        ('epochs = 3\norder = "shufled"', "unknown-value", '"shufled"', "shuffled"),
        ('epochs = 3\norder = "wild"', "unknown-value", '"wild"', None),
        ("epochs = 3\norder = 1", "unknown-value", "1", None),
        ('epochs = 3\ncompile = "true"', "wrong-type", '"true"', "true"),
        ("epochs = 3\nupdates = []", "wrong-type", "[]", None),
    ],
)
def test_a_wrong_line_of_train(problem, spec_text, wrong, code, marked, suggestion):
    found = problem(spec_text.replace("epochs = 3", wrong))
    assert (found.code, found.suggestion) == (code, suggestion)
    assert found.source[found.column - 1 :][: found.width] == marked


def test_a_key_that_could_belong_in_several_tables_is_told_all_of_them(problem, spec_text):
    found = problem("batch_size = 3\n" + spec_text)
    assert found.message == "'batch_size' belongs in [train], [evaluate] or [predict]"
    assert found.suggestion == "train.batch_size"


def test_a_key_that_the_right_table_has_already_is_not_sent_there(problem, spec_text):
    assert problem("learning_rate = 3.0\n" + spec_text).suggestion is None


def test_a_misspelt_key_is_not_also_missing(problem, spec_text):
    found = problem(spec_text.replace("learning_rate", "learning_rat"))
    assert (found.code, found.suggestion) == ("unknown-key", "learning_rate")


def test_a_misspelt_table_is_not_also_missing(problem, spec_text):
    found = problem(spec_text.replace("[train]", "[trian]"))
    assert (found.code, found.suggestion, place(found)) == ("unknown-key", "train", (13, 2, 5))


def test_extends_is_known(problem, spec_text):
    assert problem("extend = 'base.toml'\n" + spec_text).suggestion == "extends"
    assert problem("extend = 3\n" + spec_text).suggestion is None


def test_a_missing_key_points_at_its_table_and_says_what_it_is(problem, spec_text):
    found = problem(spec_text.replace("learning_rate = 1e-3\n", ""))
    assert (found.code, place(found)) == ("missing-key", (13, 1, 7))
    assert found.message == "[train] needs 'learning_rate': The peak learning rate; the schedule multiplies it."


def test_a_missing_table_and_a_missing_option(problems, spec_text):
    without_model = spec_text.replace('[model]\nname = "some/model"\n', "")
    [model, option] = problems(without_model.replace('name = "red"', ""))
    assert (model.code, model.line, model.source) == ("missing-key", 1, "")
    assert model.message == "[model] needs 'name' (a hub id or folder) or 'type' (an architecture)"
    assert (option.line, option.message) == (4, "[task] needs 'name': Which color.")


@pytest.mark.parametrize(
    ("table", "wrong", "code", "suggestion"),
    [
        ("", 'recipe = "sortng"', "unknown-recipe", "sorting"),
        ("", 'recipe = "xyzzy"', "unknown-recipe", None),
        ("", "recipe = 3", "wrong-type", None),
        ("optimizer", 'name = "adam"', "unknown-optimizer", "adamw"),
        ("optimizer", "name = 3", "wrong-type", None),
        ("optimizer", "momentum = 0.9", "unknown-key", None),
        ("optimizer", "beta = 0.9", "unknown-key", "beta1"),
        ("optimizer", 'name = "sgd"\nmomentum = 1.0', "out-of-range", None),
        ("schedule", 'name = "liner"', "unknown-schedule", "linear"),
        ("schedule", "warmup = 1.5", "out-of-range", None),
        ("[callbacks]", 'name = "bel"', "unknown-callback", "bell"),
        ("[callbacks]", 'name = "bell"\ntimes = 0', "out-of-range", None),
        ("[callbacks]", "", "missing-key", None),
        ("track", 'name = "bord"', "unknown-tracker", "board"),
        ("track", 'name = "board"\nprojekt = "x"', "unknown-key", "project"),
    ],
)
def test_plugins_and_their_tables(problem, spec_text, table, wrong, code, suggestion):
    text = f"{spec_text}\n[{table}]\n{wrong}\n" if table else spec_text.replace('recipe = "sorting"', wrong)
    found = problem(text)
    assert (found.code, found.suggestion) == (code, suggestion)
    assert found.line == (2 if not table else len(text.rstrip().split("\n")))


def test_a_name_in_braces_is_repeated_as_it_is(problem, spec_text):
    found = problem(spec_text.replace('"sorting"', '"{candidates} {x}"'))
    assert found.message.startswith("no recipe is called '{candidates} {x}'; installed: careless,")


def test_a_clash_names_both_owners(write, spec_text):
    clash = registry(plugin("recipes", "sorting", "Plain", "others"))
    [found] = problems_of(write(spec=spec_text), clash)
    assert (found.code, found.line) == ("ambiguous-recipe", 2)
    assert "'fixtures:sorting' or 'others:sorting'" in found.message
    assert problems_of(write(spec=spec_text.replace('"sorting"', '"fixtures:sorting"')), clash) == []


def test_a_validator_of_a_plugin_speaks_in_its_own_words(problem, spec_text):
    found = problem(spec_text.replace('name = "red"', 'name = "red"\nwidth = 13'))
    assert (found.code, found.line) == ("invalid-value", 6)
    assert found.message == "[task].width: 13 brings bad luck; take 12 or 14"


@pytest.mark.parametrize("recipe", ['"missing"', '"moody"', '"sorting"\ntask.name = "red"\ntask.width = 666'])
def test_a_plugin_that_fails_is_named(problem, spec_text, recipe):
    found = problem(
        f"recipe = {recipe}\n" + spec_text.replace('recipe = "sorting"', "").replace('[task]\nname = "red"', "")
    )
    assert found.code == "plugin-failed"
    assert "specplugins:" in found.message


WRAPPING = """\
spec_version = 1
recipe = "wrapping"
task.teacher = 1

[task.inner]
recipe = "sorting"
[task.inner.task]
name = "blue"
widht = 3

[[task.more]]
recipe = "sorting"
task = { name = "red", ratio = 2 }

[[task.more]]
recipe = "sorti"

[[task.more]]
recipe = "sorting"

[task.named.a]
recipe = "wrapping"
task.inner.recipe = "sorting"
task.inner.task.name = "rde"

[model]
name = "x"
[data]
path = "x"
[train]
updates = 1
learning_rate = 1
"""


def test_tables_of_plugins_within_plugins_point_to_their_own_lines(problems):
    found = [(p.line, p.column, p.code, p.suggestion) for p in problems(WRAPPING)]
    assert found == [
        (3, 16, "wrong-type", None),
        (8, 8, "unknown-value", None),
        (9, 1, "unknown-key", "width"),
        (13, 32, "out-of-range", None),
        (16, 10, "unknown-recipe", "sorting"),
        (18, 1, "missing-key", None),
        (24, 24, "unknown-value", "red"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evaluate.every = 0", "[evaluate].every must be 'epoch', a number of at least 1 or 'end'; found 0"),
        ("evaluate.every = 'epoc'", "[evaluate].every must be 'epoch', an integer or 'end'; found 'epoc'"),
        ("schedule.warmup = 'x'", "[schedule].warmup must be an integer or a number; found 'x'"),
        ("data.files.train = 3", "[data.files].train must be text or a list; found 3"),
        ("data.files.train = ['a', 3]", "data.files.train[1] must be text; found 3"),
        ("data.files.train = ''", "[data.files].train must be text that is not empty or a list; found ''"),
        ("data.files.'' = 'a'", "the key [data.files]. must be text that is not empty; found ''"),
        (
            "model.config.x = {}",
            "[model.config].x must be true or false, an integer, a number, text or a list; found a table",
        ),
        ("data.limit = 3", "[data].limit must be a table; found 3"),
        ("evaluate.splits = []", "[evaluate].splits must be a list of at least 1 element; found a list"),
        ("task.words = 3", "[task].words must be text; found 3"),
        ("seed = 1979-05-27", "seed must be an integer; found 1979-05-27"),
        ("name = 'a/b'", "name must be text that matches ^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$; found 'a/b'"),
    ],
)
def test_one_message_for_a_value_that_may_be_several_things(problems, spec_text, text, message):
    tables = 'model.name = "x"\ndata.path = "x"\ntask.name = "red"\n'
    head = spec_text.partition("[task]")[0] + tables
    found = problems(f"{head}{text}\n[train]\nepochs = 3\nlearning_rate = 1e-3\n")
    line = head.count("\n") + 1
    assert [problem.message for problem in found if problem.line == line] == [message]


def test_a_recipe_that_fails_on_what_is_left_of_a_broken_spec_is_not_blamed(problem, spec_text):
    text = spec_text.replace('"sorting"', '"moody"').replace('[task]\nname = "red"', "")
    assert problem(text).code == "plugin-failed"
    assert problem(text.replace("epochs", "epochss")).code == "unknown-key"


def test_all_problems_come_at_once_in_the_order_of_the_lines(problems, spec_text):
    text = spec_text.replace("learning_rate = 1e-3", "learning_rat = 1e-3\naccumulate = 5")
    found = problems(text + "\n[evaluate]\nbest = 'hit'\nevery = 'never'\n")
    assert [(p.line, p.code) for p in found] == [
        (15, "unknown-key"),
        (16, "uneven-batch"),
        (19, "unknown-metric"),
        (20, "unknown-value"),
    ]


def test_thousands_of_problems_are_cut_short(problems, spec_text):
    assert len(problems(spec_text + "".join(f"x{n} = 1\n" for n in range(3000)))) == 100
