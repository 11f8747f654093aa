from __future__ import annotations

import json
import math
from typing import Any

import pytest

from taskrecipe.system.secrets import mask, redact, redact_spec, to_json


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_SECRET", "DB_PASSWORD", "PASSWORD_FOR_X"),
        *("github_token", "GOOGLE_CREDENTIALS"),
    ],
)
def test_the_values_of_secret_variables_are_taken_out(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, "c4nary+/value")
    assert redact("a c4nary+/value b, c4nary%2B%2Fvalue") == "a [redacted] b, [redacted]"


def test_a_secret_within_a_secret_leaves_no_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_TOKEN", "abcdef")
    monkeypatch.setenv("B_TOKEN", "abcdef-ghijkl")
    assert redact("abcdef-ghijkl") == "[redacted]"


@pytest.mark.parametrize(("name", "value"), [("A_KEY", "1"), ("A_TOKEN", ""), ("TOKENIZERS_PARALLELISM", "falsehood")])
def test_what_is_no_secret_stays(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    assert redact("1 2 3 falsehood") == "1 2 3 falsehood"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://me:pass@host/x", "https://[redacted]@host/x"),
        ("https://ghp_token@host/x", "https://[redacted]@host/x"),
        ("ssh://git:p@ss@host:22/x", "ssh://[redacted]@host:22/x"),
        ("https://host/x?a=1&access_token=abc&b=2", "https://host/x?a=1&access_token=[redacted]&b=2"),
        ("https://bucket/x?X-Amz-Signature=abc", "https://bucket/x?X-Amz-Signature=[redacted]"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "[redacted]"),
        ("https://host/a@b and me@host", "https://host/a@b and me@host"),
        ("git@github.com:a/b.git", "git@github.com:a/b.git"),
        ("nothing to see", "nothing to see"),
    ],
)
def test_credentials_in_addresses_are_taken_out(text: str, expected: str):
    assert redact(text) == expected


def test_json_is_strict_and_has_no_secret_at_any_depth(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_TOKEN", 'quo"ted\\value')
    value: dict[str, Any] = {"a": ['quo"ted\\value', {"b": ('x quo"ted\\value',)}], 'quo"ted\\value': 1}
    assert json.loads(to_json(value)) == {"a": ["[redacted]", {"b": ["x [redacted]"]}], "[redacted]": 1}


def test_digits_of_a_secret_do_not_break_a_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_KEY", "123456")
    assert json.loads(to_json({"loss": 0.123456789})) == {"loss": 0.123456789}


def test_numbers_that_are_not_finite_become_null():
    assert json.loads(to_json({"a": [math.nan, math.inf], "b": 1.5})) == {"a": [None, None], "b": 1.5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a wandb_v1_abcdefghijklmnopqrstuvwxyz b", "a [redacted] b"),
        ("sk-proj-abcdefghijklmnopqrstuvwx", "[redacted]"),
        ("my_token = 'x y'", "my_token = [redacted]"),
    ],
)
def test_tokens_and_what_is_assigned_to_a_secret_name_are_taken_out(text: str, expected: str):
    assert redact(text) == expected


def test_a_mask_keeps_every_column(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_TOKEN", "c4nary-value")
    line = 'a = "https://me:pass@host/x" # hf_abcdefghijklmnopqrstuvwxyz, c4nary-value, api_key = 12'
    masked = mask(line)
    assert masked == 'a = "https://*******@host/x" # ' + "*" * 29 + ", " + "*" * 12 + ", api_key = **"
    assert len(masked) == len(line)


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        ("models", 'name = "/data/models/bert"'),
        ("experiments1", 'name = "/data/experiments12/bert"'),
        ("/data/keys/my-key", 'path = "/data/keys/my-key"'),
        ("unrelated-value", 'pad_token = "[PAD]"'),
    ],
    ids=["short", "part of a name", "a file", "a setting with the name of a secret"],
)
def test_a_kept_spec_keeps_its_settings(monkeypatch: pytest.MonkeyPatch, value: str, spec: str):
    monkeypatch.setenv("A_KEY", value)
    assert redact_spec(spec) == spec


@pytest.mark.parametrize(
    "secret", ["hf_abcdefghijklmnopqrstuvwxyz", "https://me:pass@host", "https://h/?token=abc", "s3cret-long-value"]
)
def test_a_kept_spec_has_no_secret(monkeypatch: pytest.MonkeyPatch, secret: str):
    import tomllib

    monkeypatch.setenv("A_KEY", "s3cret-long-value")
    kept = redact_spec(f'a = "/x/{secret}/y"\nb = 1\n')
    assert secret not in kept
    assert tomllib.loads(kept)["b"] == 1
