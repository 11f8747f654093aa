"""Keeping secrets out of everything that a run writes."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

REDACTED = "[redacted]"

SECRET_NAME = re.compile(r"(TOKEN|KEY|SECRET|PASS|PASSWD|PASSPHRASE|CREDENTIALS?)$|PASSWORD", re.IGNORECASE)
"""Environment variables whose values are secrets."""

SHORTEST_SECRET = 6
"""A shorter value, such as "1" or "true", is no secret, and taking it out of every text would do harm."""

PATTERNS = [
    (re.compile(r"(?<=://)[^/?#\s\"']*@"), f"{REDACTED}@"),  # https://user:password@host
    (re.compile(r"([?&][\w-]*(?:token|key|secret|password|signature|sig)=)[^&#\s\"']+", re.I), rf"\1{REDACTED}"),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}"), REDACTED),
]


def redact(text: str) -> str:
    """`text` without the values of secret environment variables, and without credentials in addresses."""
    return _redactor()(text)


def to_json(value: Any, indent: int | None = None) -> str:
    """`value` as strict JSON without secrets; numbers that are not finite become null."""
    return json.dumps(_clean(value, _redactor()), indent=indent, ensure_ascii=False, allow_nan=False)


def _redactor() -> Callable[[str], str]:
    named = {value for name, value in os.environ.items() if SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET}
    secrets = sorted(named | {quote(value, safe="") for value in named}, key=len, reverse=True)

    def apply(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, REDACTED)
        for pattern, replacement in PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    return apply


def _clean(value: Any, redactor: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redactor(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {redactor(str(key)): _clean(item, redactor) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, redactor) for item in value]
    return value
