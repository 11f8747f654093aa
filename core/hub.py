"""Repositories of the hub: fetched at one commit, or found in the cache; weights are checked against their sha256."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from taskrecipe.data.file_digest import digest_files
from taskrecipe.errors import DataError
from taskrecipe.hub_connection import (
    Repo,
    describe_missing,
    explain_errors,
    explain_refusals,
    find_outage,
    forget_outage,
    go_offline,
    limit_requests,
)

__all__ = ["Repo", "explain_refusals", "forget_outage", "go_offline", "limit_requests"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
"""Endings of weights that can run code when they are opened."""

Part = Literal["config", "processor", "weights"]
"""How much of a model is needed; weights come with a configuration."""

_PROCESSOR_FILES = (
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "vocab.txt",
)
_SMALL_FILES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".codes")
"""Endings of what a model needs besides weights: configuration, vocabulary, chat template."""
_CARD = "README.md"
"""Says under which license a model is, which holds for what is trained from it."""


_SHA256 = re.compile(r"[0-9a-f]{64}")
"""The name of a large file in the cache is its sha256; a small one's is another number."""


def unreachable(repo: Repo) -> str | None:
    """Return why the hub can't be used, or None; it is asked once, for `repo`."""
    outage = find_outage(repo)
    return outage.reason if outage else None


def is_only_slow(repo: Repo) -> bool:
    """Whether the hub could be connected to, and then took too long to answer."""
    outage = find_outage(repo)
    return outage is not None and outage.is_slow


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a whole commit, which stands for the same files forever."""
    return revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def commit(repo: Repo) -> str:
    """The commit that the revision stands for: the hub's answer, or where it can't be reached the cache's."""
    from huggingface_hub import HfApi

    with explain_errors(repo):
        offline = unreachable(repo) is not None
        found = HfApi().resolve_revision(repo.id, repo_type=repo.kind, revision=repo.revision, local_files_only=offline)
    return found.resolved


def cached_commit(repo: Repo) -> str | None:
    """The commit that the revision stood for when it was last asked for, without asking."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionResolutionError

    with explain_refusals(repo):
        try:
            found = HfApi().resolve_revision(
                repo.id, repo_type=repo.kind, revision=repo.revision, local_files_only=True
            )
        except RevisionResolutionError:
            return None
    return found.resolved


def model_folder(repo: Repo, part: Part) -> Path:
    """A folder with `part` of the model, fetched if need be: small files and safetensors, no pickle, no code."""
    folder = _fetch_model(repo, part) if unreachable(repo) is None else cached_model(repo, part)
    if folder is None:
        raise DataError(describe_absent(repo))
    if part == "weights":
        _require_intact(repo, folder)
    return folder


def _fetch_model(repo: Repo, part: Part) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    at = commit(repo)
    with explain_errors(repo):
        names = HfApi().list_repo_files(repo.id, revision=at)
        small = [name for name in names if "/" not in name and name.endswith((*_SMALL_FILES, _CARD))]
        folder = Path(snapshot_download(repo.id, revision=at, allow_patterns=small))
        if part == "weights":
            weights = weight_files(folder, names)
            if not weights:
                raise DataError(f"{repo} {only_pickles(names)}")
            snapshot_download(repo.id, revision=at, allow_patterns=weights)
            if damaged := _find_damaged(folder, weights):
                _remove(damaged)
                snapshot_download(repo.id, revision=at, allow_patterns=weights)
    return folder


def _require_intact(repo: Repo, folder: Path) -> None:
    """Raise if a file of weights in the cache is not what the hub has."""
    weights = weight_files(folder, {path.name for path in folder.iterdir()})
    if damaged := _find_damaged(folder, weights):
        raise DataError(
            f"{repo}: its weights in the cache are damaged, as their sha256 is not the hub's. "
            f"Delete '{damaged[0].resolve()}', and fetch it again where the hub can be reached"
        )


def _find_damaged(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the files whose content doesn't have the sha256 that the cache stores them under."""
    paths = [folder / name for name in names if _SHA256.fullmatch((folder / name).resolve().name)]
    # What the link leads to is read: it is what changes.
    digests = digest_files([path.resolve() for path in paths])
    return [path for path, digest in zip(paths, digests, strict=True) if path.resolve().name != digest]


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # a cache that can't be written; the message that follows names the file
            path.resolve().unlink()
            path.unlink()


def cached_model(repo: Repo, part: Part) -> Path | None:
    """The folder in the cache that holds `part` of the model, if one does."""
    from huggingface_hub import try_to_load_from_cache

    at = cached_commit(repo)
    marks = _PROCESSOR_FILES if part == "processor" else ("config.json",)
    found = [try_to_load_from_cache(repo.id, mark, revision=at) for mark in marks] if at else []
    folder = next((Path(path).parent for path in found if isinstance(path, str)), None)
    if folder is None or part != "weights":
        return folder
    here = {path.name for path in folder.iterdir()}
    weights = weight_files(folder, here)
    return folder if weights and here.issuperset(weights) else None


def weight_files(folder: Path, names: Iterable[str]) -> list[str]:
    """The files that hold the weights: those that an index in `folder` names, or the single one if there is one."""
    index = folder / INDEX
    if index.is_file():
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return [SINGLE] if SINGLE in names else []


def only_pickles(names: Iterable[str]) -> str:
    """Why a model among whose files are no safetensors can't be loaded."""
    pickles = sorted(name for name in names if name.endswith(PICKLES))
    if not pickles:
        return "has no weights; set [model].pretrained = false to start from random ones"
    return (
        f"has no safetensors, only {pickles[0]!r}, a pickle, which can run code when it is opened; take another "
        "revision, convert it once with model.save_pretrained(…), or set [model].pretrained = false"
    )


def describe_absent(repo: Repo) -> str:
    """Say that a repository can't be had, why, and what can be done."""
    return describe_missing(repo, unreachable(repo) or "it can't be fetched")
