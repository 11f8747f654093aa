"""The hub: whether it answers, asked once and briefly; repositories fetched at one commit, or found in the cache.

The libraries' own retries take over a minute where there is no network, so they are told before they try.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from taskrecipe.core.errors import DataError
from taskrecipe.core.quiet import quiet

PROBE_SECONDS = 2.0

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


@dataclass(frozen=True)
class Repo:
    """A model's or a data set's repository on the hub, at a revision."""

    kind: Literal["model", "dataset"]
    id: str
    revision: str | None = None

    def __str__(self) -> str:
        kind = "data set" if self.kind == "dataset" else "model"
        return f"{kind} {self.id!r}" + (f" at revision {self.revision!r}" if self.revision else "")


@cache
def unreachable() -> str | None:
    """Why the hub can't be reached, or None; asked once a process, and if so every library goes offline."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        reason: str | None = "HF_HUB_OFFLINE is set"
    else:
        reason = _ask(constants.ENDPOINT)
    if reason is not None:
        unplug()
    return reason


def unplug() -> None:
    """Keep every library off the network from here on: they look in their caches and nowhere else."""
    from huggingface_hub import constants

    os.environ["HF_HUB_OFFLINE"] = "1"  # for processes started from this one
    constants.HF_HUB_OFFLINE = True
    if "datasets" in sys.modules:  # else it reads the line above when it is imported
        sys.modules["datasets"].config.HF_HUB_OFFLINE = True


def commit(repo: Repo) -> str:
    """The commit that the revision stands for: the hub's answer, or where it can't be reached the cache's."""
    from huggingface_hub import HfApi

    with _explained(repo):
        offline = unreachable() is not None
        found = HfApi().resolve_revision(repo.id, repo_type=repo.kind, revision=repo.revision, local_files_only=offline)
    return found.resolved


def cached_commit(repo: Repo) -> str | None:
    """The commit that the revision stood for when it was last asked for, without asking."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionResolutionError

    with _explained(repo):
        try:
            found = HfApi().resolve_revision(
                repo.id, repo_type=repo.kind, revision=repo.revision, local_files_only=True
            )
        except RevisionResolutionError:
            return None
    return found.resolved


def model_folder(repo: Repo, part: Part) -> Path:
    """A folder with `part` of the model, fetched if need be: small files and safetensors, no pickle, no code."""
    if unreachable():
        folder = cached_model(repo, part)
        if folder is None:
            raise DataError(absent(repo))
        return folder
    from huggingface_hub import HfApi, snapshot_download

    at = commit(repo)
    with _explained(repo):
        names = HfApi().list_repo_files(repo.id, revision=at)
        small = [name for name in names if "/" not in name and name.endswith(_SMALL_FILES)]
        folder = Path(snapshot_download(repo.id, revision=at, allow_patterns=small))
        if part == "weights":
            weights = weight_files(folder, names)
            if not weights:
                raise DataError(f"{repo} {only_pickles(names)}")
            snapshot_download(repo.id, revision=at, allow_patterns=weights)
    return folder


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


def absent(repo: Repo) -> str:
    """Say that a repository can't be had, why, and what can be done."""
    return (
        f"{repo} is not in the cache, and {unreachable()}; "
        "fetch it where there is a network and bring the cache (HF_HOME) along, name a local folder or files, "
        "or train on sample data with --sample"
    )


def _ask(endpoint: str) -> str | None:
    """Send one request, in a thread: looking up a name has no time limit of its own."""
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(_probe(endpoint)), daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answers[0] if answers else f"{_shown(endpoint)} did not answer within {PROBE_SECONDS:g} seconds"


def _probe(endpoint: str) -> str | None:
    from huggingface_hub import get_session

    try:
        status = get_session().head(endpoint, timeout=PROBE_SECONDS).status_code
    except Exception as error:  # whatever it is, the libraries would meet it too
        return f"{_shown(endpoint)} can't be reached ({type(error).__name__}: {_without_secrets(str(error))})"
    return f"{_shown(endpoint)} answers with status {status}" if status >= 500 or status == 407 else None


@contextmanager
def _explained(repo: Repo) -> Iterator[None]:
    """Turn the hub's errors into one sentence about `repo`."""
    from huggingface_hub import constants, errors

    where = _shown(constants.ENDPOINT)
    try:
        with quiet("huggingface_hub"):
            yield
    except errors.HFValidationError:
        raise DataError(f"{repo} is neither a folder on this machine nor a name that the hub allows") from None
    except errors.RevisionResolutionError:
        raise DataError(absent(repo)) from None
    except errors.RevisionNotFoundError:
        raise DataError(f"{repo}: {where} has no such revision of it") from None
    except errors.GatedRepoError:
        raise DataError(f"{repo} is gated: ask for access at {where}, and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise DataError(f"{repo} is not on {where}; if it is private, set HF_TOKEN") from None
    except DataError:
        raise
    except Exception as error:  # the network's errors have no common class
        raise DataError(f"{repo} can't be fetched from {where}: {_without_secrets(str(error))}") from error


def _shown(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _without_secrets(message: str) -> str:
    first_line = message.strip().split("\n")[0]
    return re.sub(r"://[^/\s@]+@", "://", first_line)
