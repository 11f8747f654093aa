"""How problems are shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from taskrecipe.spec.diagnostics import CODES, Problem, make_printable, render_problems, render_text, show_value

PROBLEM = Problem(
    "specs/mrpc.toml",
    17,
    1,
    "unknown-key",
    "'learning_rat' is not a key of [train]",
    "learning_rate",
    "learning_rat = 5e-5",
    12,
)


def test_text():
    assert render_text(PROBLEM) == (
        "specs/mrpc.toml:17:1: error[unknown-key]: 'learning_rat' is not a key of [train]\n"
        "   17 | learning_rat = 5e-5\n"
        "      | ^^^^^^^^^^^^ did you mean 'learning_rate'?"
    )
    assert str(PROBLEM) == render_text(PROBLEM)


def test_without_a_line_the_suggestion_follows_the_message():
    assert render_text(replace(PROBLEM, source="")).endswith("not a key of [train] did you mean 'learning_rate'?")


@pytest.mark.parametrize(("suggestion", "hint"), [("3", "3"), ("-1", "-1"), ("true", "true"), ("bf16", "'bf16'")])
def test_numbers_are_suggested_without_quotes(suggestion, hint):
    assert render_text(replace(PROBLEM, suggestion=suggestion)).endswith(f"did you mean {hint}?")


def test_color_changes_no_character():
    colored = render_text(PROBLEM, color=True)
    assert "\033[31m" in colored
    for code in ("\033[31m", "\033[1m", "\033[2m", "\033[0m"):
        colored = colored.replace(code, "")
    assert colored == render_text(PROBLEM)


@pytest.mark.parametrize(
    ("line", "column", "width", "shown_line", "caret"),
    [
        ("\tkey = 1", 2, 3, "    key = 1", "    ^^^"),
        ("日本 = 1", 1, 2, "日本 = 1", "^^^^"),
        ("日本 = 1", 6, 1, "日本 = 1", "       ^"),
        ("e\u0301 = 1", 6, 1, "e\u0301 = 1", "    ^"),
        ("a\u202eb = 1", 7, 1, "a\\u202eb = 1", "           ^"),
        ("a = 1", 6, 1, "a = 1", "     ^"),
    ],
)
def test_the_caret_stands_below_what_it_marks(line, column, width, shown_line, caret):
    text = render_text(replace(PROBLEM, source=line, column=column, width=width, suggestion=None))
    assert [part[8:] for part in text.split("\n")[1:]] == [shown_line, caret]


@pytest.mark.parametrize("column", [1, 500, 99_990])
def test_of_a_long_line_only_the_part_around_the_problem_is_shown(column):
    line = ("x" * (column - 1) + "HERE").ljust(100_000, "x")
    text = render_text(replace(PROBLEM, source=line, column=column, width=4, suggestion=None))
    shown_line, below = text.split("\n")[1:]
    assert shown_line[below.index("^") :].startswith("HERE")
    assert len(shown_line) < 120


hostile = st.text(max_size=200) | st.binary(max_size=50).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(hostile, hostile, hostile, hostile, st.integers(1, 300), st.integers(1, 300))
def test_whatever_is_in_it_no_format_lets_a_control_character_out(file, message, source, suggestion, column, width):
    problem = Problem(file, 3, column, "syntax", message, suggestion, source.replace("\n", " "), width)
    for line in render_text(problem).split("\n"):
        assert line.isprintable()
    github = render_problems([problem], "github")
    assert github.isprintable()
    assert github.startswith("::error file=")
    assert json.loads(render_problems([problem], "json"))[0]["file"] == file
    json.loads(render_problems([problem], "sarif"))


@pytest.mark.parametrize("value", ["hf_" + "a" * 30, "https://u:p@h", "token = abc", 'api_key = "abc"'])
def test_no_format_repeats_a_secret(value):
    problem = replace(PROBLEM, message=f"found {value}", source=f"x = 1  # {value}")
    secret = {"h": "aaaaaa", "t": "abc", "a": "abc"}[value[0]] if ":" not in value else "u:p"
    for style in ("text", "json", "github", "sarif"):
        assert secret not in render_problems([problem], style)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "'x'"),
        ("x" * 1000, f"'{'x' * 59}…'"),
        (True, "true"),
        ({"a": 1}, "a table"),
        ([1], "a list"),
        (5e-5, "5e-05"),
        (10**30, str(10**30)),
        (2**200, "an integer of very many digits"),
    ],
)
def test_values_as_messages_repeat_them(value, text):
    assert show_value(value) == text


def test_visible_is_short_and_plain():
    assert make_printable("a\x1b[31mb") == "a\\x1b[31mb"
    assert len(make_printable("x" * 10**6)) == 600


def test_json_has_these_keys_and_no_others():
    [record] = json.loads(render_problems([PROBLEM], "json"))
    assert record == {
        "file": "specs/mrpc.toml",
        "line": 17,
        "column": 1,
        "code": "unknown-key",
        "message": "'learning_rat' is not a key of [train]",
        "suggestion": "learning_rate",
        "help": "recipe guide unknown-key",
    }
    assert json.loads(render_problems([], "json")) == []


def test_github_annotations_are_escaped():
    problem = replace(PROBLEM, file="a,b:c%.toml", message="100% of\nthem", suggestion=None)
    assert render_problems([problem], "github") == (
        "::error file=a%2Cb%3Ac%25.toml,line=17,col=1,endColumn=13,title=unknown-key::"
        "100%25 of\\nthem (recipe guide unknown-key)"
    )


SARIF = {
    "type": "object",
    "required": ["version", "runs", "$schema"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "required": ["id"],
                                            "properties": {"shortDescription": {"required": ["text"]}},
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"required": ["text"], "properties": {"text": {"type": "string"}}},
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "artifactLocation": {
                                                        "properties": {"uri": {"type": "string", "pattern": "^[!-~]*$"}}
                                                    },
                                                    "region": {
                                                        "additionalProperties": False,
                                                        "properties": {
                                                            key: {"type": "integer", "minimum": 1}
                                                            for key in ("startLine", "startColumn", "endColumn")
                                                        },
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_sarif_has_the_structure_of_version_2_1_0():
    problems = [PROBLEM, replace(PROBLEM, code="syntax", file="ä b/%.toml"), replace(PROBLEM, file="/abs/x.toml")]
    report = json.loads(render_problems(problems, "sarif"))
    Draft7Validator(SARIF).validate(report)
    [run] = report["runs"]
    rules = run["tool"]["driver"]["rules"]
    for problem, result in zip(problems, run["results"], strict=True):
        assert rules[result["ruleIndex"]] == {
            "id": problem.code,
            "shortDescription": {"text": CODES[problem.code]},
            "help": {"text": f"recipe guide {problem.code}"},
        }
    uris = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]]
    assert uris == ["specs/mrpc.toml", "%C3%A4%20b/%25.toml", "file:///abs/x.toml"]


def test_an_empty_sarif_report_is_one_too():
    report = json.loads(render_problems([], "sarif"))
    Draft7Validator(SARIF).validate(report)
    assert report["runs"][0]["results"] == []
