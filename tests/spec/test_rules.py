"""What keys demand of one another."""

from __future__ import annotations

import pytest

from taskrecipe.spec.rules import find_odd_values


@pytest.fixture
def changed(spec_text):
    """The good spec with other tables: those given replace their namesakes."""

    def change(recipe="sorting", **tables: str) -> str:
        whole = {
            "task": 'name = "red"',
            "model": 'name = "m"',
            "data": 'path = "d"',
            "train": "epochs = 3\nlearning_rate = 1e-3",
            **tables,
        }
        body = "\n".join(f"[{name}]\n{text}" for name, text in whole.items())
        return f'spec_version = 1\nrecipe = "{recipe}"\n{body}\n'

    return change


@pytest.mark.parametrize(
    ("tables", "code", "marked", "suggestion"),
    [
        ({"train": "learning_rate = 1"}, "missing-key", "[train]", None),
        ({"data": 'path = "d"\nstreaming = true'}, "conflict", "true", None),
        ({"model": ""}, "missing-key", "[model]", None),
        ({"model": 'name = "m"\ntype = "gpt2"'}, "conflict", '"gpt2"', None),
        ({"model": 'type = "gpt2"\nrevision = "x"'}, "no-effect", "revision", None),
        ({"data": ""}, "missing-key", "[data]", None),
        ({"data": 'path = "d"\nfiles.train = "x"'}, "conflict", '"d"', None),
        ({"data": 'files.train = "x"\nname = "n"'}, "no-effect", "name", None),
        ({"data": 'files.train = "x"\nrevision = "n"'}, "no-effect", "revision", None),
        ({"data": 'path = "d"\nlimit.trian = 3'}, "unknown-split", "trian", "train"),
        ({"data": 'path = "d"\nlimit.quiz = 3'}, "unknown-split", "quiz", None),
        ({"evaluate": 'splits = ["validation", "othr"]'}, "unknown-split", '"othr"', "other"),
        ({"evaluate": 'best = "hist"'}, "unknown-metric", '"hist"', "hits"),
        ({"evaluate": 'best = "misses"'}, "unknown-metric", '"misses"', None),
        ({"evaluate": 'best = "other/hit"'}, "unknown-metric", '"other/hit"', "other/hits"),
        ({"evaluate": 'splits = ["other"]\nbest = "hits"'}, "unknown-metric", '"hits"', "other/hits"),
        ({"evaluate": 'every = "end"\npatience = 2'}, "no-effect", "patience", None),
        ({"train": "updates = 10\nlearning_rate = 1", "schedule": "warmup = 11"}, "warmup", "11", None),
        ({"train": "epochs = 1\nlearning_rate = 1\naccumulate = 3"}, "uneven-batch", "3", "2"),
        ({"train": "epochs = 1\nlearning_rate = 1\naccumulate = 64"}, "uneven-batch", "64", "32"),
        ({"train": "epochs = 1\nlearning_rate = 1\nbatch_size = 7\naccumulate = 100"}, "uneven-batch", "100", "7"),
        ({"launch": "processes = 3"}, "uneven-batch", "3", None),
        (
            {"train": "epochs = 1\nlearning_rate = 1\naccumulate = 32", "launch": "processes = 2"},
            "uneven-batch",
            "32",
            "16",
        ),
        (
            {"train": 'epochs = 1\nlearning_rate = 1\nprecision = "fp16"', "launch": 'device = "cpu"'},
            "precision",
            '"fp16"',
            "bf16",
        ),
        (
            {"train": 'epochs = 1\nlearning_rate = 1\nprecision = "fp8"', "launch": 'device = "cpu"'},
            "precision",
            '"fp8"',
            "bf16",
        ),
        (
            {"task": "", "train": "epochs = 1\nlearning_rate = 1\nlabel_smoothing = 0.1"},
            "no-effect",
            "label_smoothing",
            None,
        ),
    ],
)
def test_a_broken_rule(problem, problems, changed, tables, code, marked, suggestion):
    text = changed("plain" if tables.get("task") == "" else "sorting", **tables)
    found = problem(text)
    assert (found.code, found.suggestion) == (code, suggestion)
    assert found.source[found.column - 1 :][: found.width] == marked


@pytest.mark.parametrize(
    "tables",
    [
        {"data": "sample = true", "model": ""},
        {"data": 'path = "d"\nstreaming = true', "train": "updates = 5\nlearning_rate = 1"},
        {"data": 'files.quiz = "x"\nlimit.quiz = 3', "evaluate": 'splits = ["quiz", "train"]\nbest = "quiz/hits"'},
        {"data": 'path = "d"\nsplits.quiz = "x"', "evaluate": 'splits = ["quiz"]\nbest = "quiz/loss"'},
        {"evaluate": 'best = "other/loss"'},
        {"evaluate": "min_delta = 0.1"},
        {"train": "updates = 10\nlearning_rate = 1", "schedule": "warmup = 10"},
        {"train": "updates = 10\nlearning_rate = 1", "schedule": "warmup = 0.9"},
        {"train": "epochs = 1\nlearning_rate = 1", "schedule": "warmup = 1000000"},
        {"train": 'epochs = 1\nlearning_rate = 1\nprecision = "fp16"'},
        {"train": 'epochs = 1\nlearning_rate = 1\nprecision = "bf16"', "launch": 'device = "cpu"'},
        {"train": "epochs = 1\nlearning_rate = 1\nlabel_smoothing = 0.1"},
        {"train": "epochs = 1\nlearning_rate = 1\naccumulate = 16", "launch": "processes = 2"},
        {"[callbacks]": 'name = "bell"\n[[callbacks]]\nname = "bell"'},
        {"data": 'files.train = "../../x.csv"'},
        {"data": 'path = "d"\nrevision = "0123456789abcdef0123456789abcdef01234567"'},
        {"model": 'name = "m"\nconfig.pad_token = "<pad>"'},
        {"model": 'name = "m"\nconfig.note = "two\\nlines\\tand a tab, \u00e9\u3000\u200d"'},
    ],
)
def test_a_rule_that_holds(problems, changed, tables):
    assert problems(changed(**tables)) == []


def test_the_unknown_metric_is_told_with_those_there_are(problem, changed):
    found = problem(changed(evaluate='splits = ["validation"]\nbest = "f2"'))
    assert found.message == "recipe 'sorting' (task red) reports hits, loss; [evaluate].best is 'f2'"


SECRETS = [
    "hf_abcdefghijklmnopqrstuvwxyz0123",
    "https://me:hunter2@example.org/data",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "sk-proj-abcdefghijklmnopqrstuvwx",
    "AKIAABCDEFGHIJKLMNOP",
    "-----BEGIN RSA PRIVATE KEY-----MIIEpAIBAAKCAQEA",
    "xoxb-1234567890-abcdefghij",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", ['model.name = "{}"', 'data.columns.a = "{}"', 'data.columns."{}" = "a"'])
def test_a_secret_is_refused_and_never_repeated(problems, changed, secret, place):
    key = place.format(secret)
    text = (
        changed(recipe="plain", task="")
        .replace('[model]\nname = "m"\n', "")
        .replace('[data]\npath = "d"\n', 'data.path = "d"\n')
    )
    text = text.replace("spec_version = 1\n", f"spec_version = 1\n{key}\n")
    found = problems(text)
    assert "secret" in [problem.code for problem in found]
    for problem in found:
        assert secret not in str(problem)
        assert "hunter2" not in str(problem)


@pytest.mark.parametrize(
    "line", ['track.project = "0123456789abcdef0123456789abcdef01234567"', 'wandb_api_key = "0123456789abcdef01234567"']
)
def test_a_key_is_a_secret_by_its_place(problems, spec_text, line):
    found = problems(f'track.name = "board"\n{line}\n{spec_text}')
    assert "secret" in [problem.code for problem in found]
    assert not any("0123456789abcdef" in str(problem) for problem in found)


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("a\\u0000b", "U+0000"),
        ("a\\u202eb", "U+202E"),
        ("a\u2066b", "U+2066"),
        ("a\\u001bb", "U+001B"),
        ("a\\u0085b", "U+0085"),
    ],
)
def test_characters_that_deceive_are_refused_and_escaped(problem, spec_text, text, character):
    found = problem(spec_text.replace("some/data", text))
    assert (found.code, found.line) == ("bad-character", 11)
    assert character in found.message
    assert str(found).replace("\n", "").isprintable()


def test_an_integer_beyond_64_bits_is_refused_where_no_bound_is(problem, spec_text):
    found = problem(spec_text.replace('name = "some/model"', 'name = "m"\nconfig.size = 9223372036854775808'))
    assert (found.code, found.line) == ("out-of-range", 9)


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        ("epochs = 3", "epoch = 3", ["unknown-key"]),  # and not that neither epochs nor updates are given
        ("epochs = 3", 'epochs = "3"', ["wrong-type"]),
        ("[train]\nepochs = 3", "epochs = 3\n[train]", ["wrong-table"]),
        ('name = "red"', 'name = "rad"\n[evaluate]\nbest = "x"', ["unknown-value"]),  # metrics depend on the task
        ('name = "some/model"', "name = 3", ["wrong-type"]),
        ("epochs = 3", 'epochs = 3\nbatch_sice = 30\n[evaluate]\nbest = "x"', ["unknown-key", "unknown-metric"]),
        (
            '"sorting"',
            '"sortin"\nevaluate.best = "x"\nevaluate.patience = 1\nevaluate.every = "end"',
            ["unknown-recipe", "no-effect"],
        ),
    ],
)
def test_a_mistake_is_told_once_and_hides_no_other(problems, spec_text, old, new, codes):
    text = spec_text.replace(old, new)
    if "[evaluate]" in new:  # the rest of the table goes first
        head, _, rest = text.partition("[evaluate]\n")
        line, _, rest = rest.partition("\n")
        text = f"{head}{rest}\n[evaluate]\n{line}\n"
    assert [problem.code for problem in problems(text)] == codes


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            '[optimizer]\nname = "schedule_free"\n',
            "optimizer 'schedule_free' has its own schedule: set [schedule].name = \"constant\"",
        ),
        (
            '[[callbacks]]\nname = "stop_when"\nmetric = "f2"\nabove = 0.9\n',
            "callback 'stop_when' needs the metric 'f2'",
        ),
    ],
    ids=["a schedule beside an optimizer that has its own", "a metric that nobody reports"],
)
def test_what_our_own_plugins_demand(tables, message, tmp_path):
    from pathlib import Path

    from taskrecipe.errors import SpecError
    from taskrecipe.spec.resolve import resolve

    bundled = Path(__file__).parents[2] / "specs" / "glue" / "cola.toml"
    lines = bundled.read_text().split("[optimizer]")[0]
    path = tmp_path / "spec.toml"
    path.write_text(f"{lines}\n{tables}")
    with pytest.raises(SpecError) as raised:
        resolve(path)
    assert [message in problem.message for problem in raised.value.problems] == [True]
    constant = '\n[schedule]\nname = "constant"\n' if "schedule_free" in tables else ""
    path.write_text(f"{lines}\n{tables.replace('f2', 'matthews_correlation')}{constant}")
    resolve(path)


@pytest.mark.parametrize(
    ("value", "fits"), [(-(2**63), True), (-(2**63) - 1, False), (2**63 - 1, True), (2**63, False)]
)
def test_integers_have_64_bits(value, fits):
    found = list(find_odd_values({"model": {"config": {"n": value}}}))
    assert [finding.code for finding in found] == ([] if fits else ["out-of-range"])


@pytest.mark.parametrize(
    ("recipe", "removed", "missing"),
    [
        ("plain", "model", ["missing-key"]),
        ("plain", "data", ["missing-key"]),
        ("homemade", "model", []),
        ("homemade", "data", ["missing-key"]),
        ("several", "data", []),
    ],
)
def test_a_table_may_be_left_out_if_the_recipe_needs_none(problems, recipe, removed, missing):
    tables = {"model": 'name = "some/model"', "data": 'path = "some/data"', "train": "epochs = 1\nlearning_rate = 1e-3"}
    if recipe == "homemade":
        del tables["model"]
    tables.pop(removed, None)
    text = f'spec_version = 1\nrecipe = "{recipe}"\n' + "".join(f"[{name}]\n{keys}\n" for name, keys in tables.items())
    found = problems(text)
    assert [problem.code for problem in found] == missing
    assert all(problem.line == 1 and f"[{removed}] needs" in problem.message for problem in found)


def test_a_missing_table_is_reported_beside_other_mistakes(problems):
    found = problems('spec_version = 1\nrecipe = "sorting"\n[train]\nepoch = 1\nlearning_rate = 1e-3\n')
    assert sorted(problem.code for problem in found) == ["missing-key", "missing-key", "missing-key", "unknown-key"]


@pytest.mark.parametrize("model", ['name = "some/model"', 'type = "gpt2"', "config = { hidden_size = 8 }"])
def test_a_model_for_a_recipe_that_builds_its_own_has_no_effect(problems, spec_text, model):
    text = (
        spec_text.replace('"sorting"', '"homemade"').replace('name = "red"', "").replace('name = "some/model"', model)
    )
    [found] = problems(text)
    assert (found.code, found.source) == ("no-effect", "[model]")
    assert found.message == "recipe 'homemade' builds its own model; leave [model] out"


def test_workers_of_a_stream_have_no_effect(problems, spec_text):
    text = spec_text.replace("[data]\n", "[data]\nstreaming = true\nworkers = 2\n").replace("epochs = 3", "updates = 3")
    [found] = problems(text)
    assert (found.code, found.message) == ("no-effect", "[data].workers has no effect on a stream")
