"""What looks like a secret, so that specs with one are refused and no message ever repeats it."""

from __future__ import annotations

import re

LONGEST = 16 * 1024
"""How much of a text is looked at; no value is longer."""

_TOKENS = re.compile(
    r"\b(?:hf|api_org)_[A-Za-z0-9]{20,}"  # Hugging Face
    r"|\bwandb_v\d_\w{20,}|\blocal-[0-9a-f]{40}\b"  # Weights & Biases
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"']*"
    r"|(?<=://)[^/\s:@\"']{0,256}:[^/\s@\"']{1,256}(?=@)"  # user:password@ of an address
)
_NAME = r"(?:token|secret|password|passwd|api_?key|credentials?)"
_NAMED = re.compile(rf"(?i){_NAME}[\"']?\s*=\s*(\S.*)")
_KEY_NAME = re.compile(rf"(?i){_NAME}$")
_KEY = re.compile(r"[\w+/=.-]{16,}")
_HEX_KEY = re.compile(r"[0-9a-f]{40}")


def looks_secret(text: str, path: tuple[str | int, ...] = ()) -> bool:
    """Whether a value at `path` is a token, key or password rather than a setting."""
    if _TOKENS.search(text, 0, LONGEST):
        return True
    if path[:1] == ("track",) and _HEX_KEY.fullmatch(text):  # anywhere else, that is a commit
        return True
    return bool(path and _KEY_NAME.search(str(path[-1])[-LONGEST:]) and _KEY.fullmatch(text))


def redact(text: str) -> str:
    """`text` with stars for whatever looks like a secret, or is given to a key named like one; its length stays."""
    text = _TOKENS.sub(lambda found: "*" * len(found[0]), text)
    return _NAMED.sub(lambda found: found[0][: -len(found[1])] + "*" * len(found[1]), text)
