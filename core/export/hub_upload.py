"""`--to hub`: upload a checked folder to the hub in one commit, and compare what arrived with what was sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from taskrecipe.data.file_digest import digest_files
from taskrecipe.errors import ExportError, RecipeError, UsageError
from taskrecipe.hub_connection import describe_endpoint, first_line, limit_requests
from taskrecipe.system.library_output import quiet_libraries
from taskrecipe.system.secrets import redact_spec

LARGEST_TEXT = 2**20
"""Files up to this size are searched for secrets; larger ones are weights or vocabularies."""


@dataclass(frozen=True)
class Uploaded:
    """A commit on the hub."""

    url: str
    commit: str
    private: bool


def open_repository(repo: str, private: bool) -> None:
    """Create the repository unless it is there, and so make sure that the token may write into it."""
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise UsageError("uploading needs a token of the hub that may write: run `hf auth login`, or set HF_TOKEN")
    with _explain_errors(repo):
        HfApi().create_repo(repo, private=private, exist_ok=True)


def upload_folder(folder: Path, repo: str, message: str) -> Uploaded:
    """Upload all files of a folder in one commit. Files that are on the hub already are not sent again."""
    from huggingface_hub import HfApi

    _refuse_secrets(folder)
    with _explain_errors(repo):
        api = HfApi()
        commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
        _require_arrived(folder, repo, commit.oid)
        private = bool(api.model_info(repo).private)
    return Uploaded(f"{describe_endpoint()}/{repo}", commit.oid, private)


def _require_arrived(folder: Path, repo: str, commit: str) -> None:
    """Compare the hub's digest of each file with that of the file here."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = {
        entry.path: entry.lfs.sha256 if entry.lfs else entry.blob_id
        for entry in HfApi().get_paths_info(repo, list(paths), revision=commit)
        if isinstance(entry, RepoFile)
    }
    digests = dict(zip(paths, digest_files(list(paths.values())), strict=True))
    for name, path in paths.items():
        if found.get(name) not in (digests[name], _git_digest(path)):
            raise ExportError(f"{name} on the hub is not the file that was uploaded to {repo}: upload it again")


def _git_digest(path: Path) -> str:
    """Return the name that git has for a small file's content."""
    content = path.read_bytes() if path.stat().st_size <= 16 * LARGEST_TEXT else b""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _refuse_secrets(folder: Path) -> None:
    """Raise if a text file holds a token, a password in a URL, or the value of a secret variable."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.stat().st_size > LARGEST_TEXT:
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:  # weights
            continue
        if redact_spec(text) != text:
            raise ExportError(f"{path.relative_to(folder)} holds what looks like a secret; nothing was uploaded")


@contextmanager
def _explain_errors(repo: str) -> Iterator[None]:
    """Turn every error of an upload into one sentence that says what to do."""
    from huggingface_hub import errors

    where = describe_endpoint()
    try:
        with quiet_libraries("huggingface_hub"), limit_requests():
            yield
    except RecipeError:
        raise
    except errors.HFValidationError as error:
        raise UsageError(f"--repo is {repo!r}; the hub takes OWNER/NAME: {first_line(error)}") from None
    except errors.OfflineModeIsEnabled:
        raise ExportError(f"{repo} can't be uploaded: HF_HUB_OFFLINE is set") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403, 404):
            raise ExportError(
                f"{where} refuses to write into {repo!r} (status {status}): the token must be valid and have the right "
                "to write there. Set another one by `hf auth login` or HF_TOKEN"
            ) from None
        raise ExportError(_describe_failure(repo, where, first_line(error))) from error
    except Exception as error:  # the network's errors have no common class
        cause = error.__cause__ or error
        raise ExportError(_describe_failure(repo, where, first_line(cause) or type(cause).__name__)) from error


def _describe_failure(repo: str, where: str, reason: str) -> str:
    return (
        f"the upload to {repo} on {where} did not finish: {reason.rstrip('.')}. Run the same command again to "
        "continue: large files that have arrived are not sent twice"
    )
