"""Recognize secrets, and keep them out of everything that is printed or written."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any

REDACTED = "[redacted]"

LONGEST = 16 * 1024
"""How many characters of a value are searched for a secret. Specs hold no longer value."""

SHORTEST_SECRET = 6
"""A shorter value of a secret variable, such as "1" or "true", is no secret. Hiding it everywhere would do harm."""

SHORTEST_SECRET_IN_SPEC = 12
"""In a run's spec.toml a shorter value is more likely a part of a path or a name than the secret itself."""

# These are texts: `re` compiles them, and keeps them, when they are first used. Compiling them all takes as long as
# checking a spec.
_VARIABLE = r"(?i)(TOKEN|KEY|SECRET|PASS|PASSWD|PASSPHRASE|CREDENTIALS?)$|PASSWORD"
"""Environment variables whose values are secrets."""

_TOKEN = (
    r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}"  # Hugging Face  # noqa: S105 - a pattern
    r"|\bwandb_v\d_\w{20,}|\blocal-[0-9a-f]{40}\b"  # Weights & Biases
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"']*"
)
_TOKEN_MARKS = ("hf_", "api_org_", "wandb_v", "local-", "gh", "sk-", "xox", "AKIA", "-----BEGIN ")
"""Every token contains one of these, and few other values do."""
_URL_PASSWORD = r"(?<=://)[^/\s:@\"']{0,256}:[^/\s@\"']{1,256}(?=@)"  # noqa: S105 - a pattern
"""The `user:password` of a URL."""
_URL_USER = r"(?<=://)[^/?#\s\"']*(?=@)"
"""All before the host of a URL: a token alone may stand there too."""
_URL_QUERY = r"(?i)([?&][\w-]*(?:token|key|secret|password|signature|sig)=)([^&#\s\"']+)"
_NAME = r"(?:token|secret|password|passwd|api_?key|credentials?)"
_ASSIGNED = rf"(?i)((?<![?&\w-])[\w-]*{_NAME}[\"']?\s*=\s*)(\S.*)"
"""What is assigned to a name such as `my_token`, up to the end of the line."""
_KEY_NAMES = ("token", "secret", "password", "passwd", "apikey", "api_key", "credential", "credentials")
_KEY = r"[\w+/=.-]{16,}"
_HEX_KEY = r"[0-9a-f]{40}"

Hide = Callable[[str], str]


def looks_secret(text: str, path: tuple[str | int, ...] = ()) -> bool:
    """Whether a spec's value at `path` is a token, key or password rather than a setting."""
    text = text[:LONGEST]
    if any(mark in text for mark in _TOKEN_MARKS) and re.search(_TOKEN, text):
        return True
    if "://" in text and (re.search(_URL_PASSWORD, text) or re.search(_URL_QUERY, text)):
        return True
    if path[:1] == ("track",) and re.fullmatch(_HEX_KEY, text):  # anywhere else, this is a commit
        return True
    return bool(path and str(path[-1]).lower().endswith(_KEY_NAMES) and re.fullmatch(_KEY, text))


def redact(text: str) -> str:
    """Replace every secret in `text`: values of secret variables, tokens, passwords, credentials in URLs."""
    return _redactor(_replace)(text)


def mask(text: str) -> str:
    """Hide the same as `redact` behind stars, one for each character, so that columns stay where they are."""
    return _redactor(_star)(text)


def redact_spec(text: str) -> str:
    """Hide the secrets in a run's spec.toml without changing its settings, since `recipe resume` reads it.

    Tokens and credentials in URLs are hidden. Of the secret variables only values that are long enough, name no file
    and stand by themselves: a short one, such as "models", would be taken out of every path that contains it.
    """
    values = [re.escape(value) for value in _environment_secrets(SHORTEST_SECRET_IN_SPEC) if value[0] not in "/~."]
    for pattern in [rf"(?<![\w-]){value}(?![\w-])" for value in values]:
        text = re.sub(pattern, REDACTED, text)
    return _hide_patterns(text, _replace)


def to_json(value: Any, indent: int | None = None) -> str:
    """Write `value` as strict JSON without secrets. Numbers that are not finite become null."""
    import json

    return json.dumps(_clean(value, _redactor(_replace)), indent=indent, ensure_ascii=False, allow_nan=False)


def _replace(_: str) -> str:
    return REDACTED


def _star(secret: str) -> str:
    return "*" * len(secret)


def _environment_secrets(shortest: int) -> list[str]:
    """Return the values of secret variables, as they are and quoted for a URL, the longest first."""
    from urllib.parse import quote

    named = {value for name, value in os.environ.items() if re.search(_VARIABLE, name) and len(value) >= shortest}
    return sorted(named | {quote(value, safe="") for value in named}, key=len, reverse=True)


def _redactor(hide: Hide) -> Hide:
    """Return a function that hides secrets; it reads the environment once, for many texts."""
    values = _environment_secrets(SHORTEST_SECRET)

    def apply(text: str) -> str:
        for value in values:
            text = text.replace(value, hide(value))
        text = _hide_patterns(text, hide)
        return re.sub(_ASSIGNED, lambda found: found[1] + hide(found[2]), text)

    return apply


def _hide_patterns(text: str, hide: Hide) -> str:
    """Hide what has the form of a secret."""
    for pattern in (_URL_USER, _TOKEN):
        text = re.sub(pattern, lambda found: hide(found[0]) if found[0] else "", text)
    return re.sub(_URL_QUERY, lambda found: found[1] + hide(found[2]), text)


def _clean(value: Any, redactor: Hide) -> Any:
    if isinstance(value, str):
        return redactor(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {redactor(str(key)): _clean(item, redactor) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, redactor) for item in value]
    return value
