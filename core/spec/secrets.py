"""What looks like a secret, so that specs with one are refused and no message ever repeats it."""

from __future__ import annotations

import re

HIDDEN = "***"

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
_NAMED = re.compile(r"(?i)(?:token|secret|password|passwd|api_?key|credentials?)[\"']?\s*=\s*(?=\S)(?!\d+\s*$).*")
_HEX_KEY = re.compile(r"[0-9a-f]{40}")


def looks_secret(text: str, path: tuple[str | int, ...] = ()) -> bool:
    """Whether a value at `path` is a token, key or password rather than a setting."""
    # Forty hexadecimal digits are a commit everywhere else; among a tracker's settings they are its key.
    return bool(_TOKENS.search(text)) or (path[:1] == ("track",) and bool(_HEX_KEY.fullmatch(text)))


def redact(text: str) -> str:
    """`text` with whatever looks like a secret, or is given to a key named like one, replaced by stars."""
    text = _TOKENS.sub(HIDDEN, text)
    return _NAMED.sub(lambda found: found[0].partition("=")[0] + f"= {HIDDEN}", text)
