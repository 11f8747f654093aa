"""Rows from the hub: a data set's configuration at one commit, from the cache where it was prepared before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe import hub
from taskrecipe.data.read_errors import explain_read_errors
from taskrecipe.errors import DataError

if TYPE_CHECKING:
    from datasets import DatasetBuilder


@dataclass(frozen=True)
class Prepared:
    """A data set's configuration that datasets has stored at one commit."""

    folder: Path
    """`<cache>/<owner>___<name>/<configuration>/<version>/<commit>`, datasets' own layout."""

    @property
    def commit(self) -> str:
        """The commit that was prepared."""
        return self.folder.name

    def builder(self, repo_id: str) -> DatasetBuilder:
        """What reads the stored rows: of exactly this commit, where datasets by itself takes the latest stored."""
        from datasets.packaged_modules.cache.cache import Cache

        return Cache(
            cache_dir=str(self.folder.parents[3]),
            repo_id=repo_id,
            dataset_name=repo_id.split("/")[-1],
            config_name=self.folder.parents[1].name,
            version=self.folder.parent.name,
            hash=self.commit,
        )


def find_prepared(repo: hub.Repo, name: str | None) -> Prepared | None:
    """The stored configuration `name` at the revision's commit; where no revision is asked for, the latest stored."""
    at = hub.cached_commit(repo)
    if at is None and repo.revision:
        return None
    stored = [folder for folder in _stored(repo.id, name) if at is None or folder.name == at]
    return Prepared(max(stored, key=lambda folder: folder.stat().st_mtime)) if stored else None


def load_splits(repo: hub.Repo, name: str | None, *, streaming: bool) -> tuple[dict[str, Any], str]:
    """The splits under the names they have there, and the commit they are of."""
    prepared = find_prepared(repo, name) if hub.is_commit(repo.revision) else None
    if prepared is None:
        return _load_at_commit(repo, name, streaming)
    with explain_read_errors(str(repo)):
        return _read(prepared.builder(repo.id), streaming), prepared.commit


def _load_at_commit(repo: hub.Repo, name: str | None, streaming: bool) -> tuple[dict[str, Any], str]:
    """Read what the hub has now, fetched if need be. Where it can't be reached, read what was stored last."""
    offline = hub.unreachable(repo)
    at = repo if offline else hub.Repo("dataset", repo.id, hub.commit(repo))
    with explain_read_errors(str(repo)), hub.limit_requests(), hub.explain_refusals(repo):
        prepared = find_prepared(at, name)
        if prepared:
            return _read(prepared.builder(repo.id), streaming), prepared.commit
        if offline:
            raise DataError(describe_absent(repo, name))
        builder = _builder(at, name)
        if not streaming:
            builder.download_and_prepare()
        return _read(builder, streaming), str(at.revision)


def _read(builder: DatasetBuilder, streaming: bool) -> dict[str, Any]:
    return dict(builder.as_streaming_dataset() if streaming else builder.as_dataset())


def describe_absent(repo: hub.Repo, name: str | None) -> str:
    """Say that a data set can't be had, why, and what can be done."""
    return hub.describe_absent(repo) if name is None else f"configuration {name!r} of {hub.describe_absent(repo)}"


def _builder(repo: hub.Repo, name: str | None) -> DatasetBuilder:
    from datasets import load_dataset_builder

    # The prefix keeps a folder of the same name in the working folder from being taken instead.
    return load_dataset_builder(f"hf://datasets/{repo.id}", name, revision=repo.revision)


def _stored(repo_id: str, name: str | None) -> list[Path]:
    """Folders where datasets has stored the configuration, found without importing it, which takes a second."""
    from huggingface_hub import constants

    root = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets")).expanduser()
    configurations = [folder for data in root.glob("*") if _same(data.name, repo_id) for folder in data.iterdir()]
    names = {folder.name for folder in configurations}
    name = name or ("default" if "default" in names or len(names) != 1 else names.pop())
    chosen = [folder for folder in configurations if folder.name == name]
    return [info.parent for folder in chosen for info in folder.glob("*/*/dataset_info.json")]


def _same(folder: str, repo_id: str) -> bool:
    """Whether `folder` is what datasets calls the repository: it puts camel case into snake case."""
    return folder.replace("_", "").lower() == repo_id.replace("/", "").replace("_", "").lower()
