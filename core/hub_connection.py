"""The connection to the hub: whether it answers, asked once; a time limit for every request; errors as sentences.

The libraries have no time limit for requests to the API, and their own retries take over a minute where there is no
network. So the hub is asked first, for what is needed first, and the libraries go offline if it can't be reached.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from taskrecipe.errors import DataError
from taskrecipe.system.library_output import quiet_libraries
from taskrecipe.system.secrets import redact

PROBE_SECONDS = 10.0
"""How long the first answer may take. A slow line takes seconds, and is not to be taken for no line."""

REQUEST_SECONDS = 30.0
"""How long a later request may wait for the next bytes of its answer."""

STALLS = 2
"""How often a request may stall before its next try is refused."""


@dataclass(frozen=True)
class Repo:
    """A model's or a data set's repository on the hub, at a revision."""

    kind: Literal["model", "dataset"]
    id: str
    revision: str | None = None

    def __str__(self) -> str:
        kind = "data set" if self.kind == "dataset" else "model"
        return f"{kind} {self.id!r}" + (f" at revision {self.revision!r}" if self.revision else "")


@dataclass(frozen=True)
class Outage:
    """Why the hub can't be used."""

    reason: str
    is_slow: bool = False
    """Whether it could be connected to, and then took too long. It may well answer later."""


_known: list[Outage | None] = []
"""What was found when the hub was asked, if it was."""


def find_outage(repo: Repo) -> Outage | None:
    """Return why the hub can't be used, or None. It is asked once, for `repo`; on failure all libraries go offline."""
    from huggingface_hub import constants

    if not _known:
        _known.append(Outage("HF_HUB_OFFLINE is set") if constants.is_offline_mode() else _ask(_api_address(repo)))
        if _known[0] is not None:
            go_offline()
    return _known[0]


def forget_outage() -> None:
    """Ask the hub again next time: a long-lived process may have lost or found the network."""
    _known.clear()


def go_offline() -> None:
    """Keep every library off the network from here on: they look in their caches and nowhere else."""
    from huggingface_hub import constants

    os.environ["HF_HUB_OFFLINE"] = "1"  # for processes started from this one
    constants.HF_HUB_OFFLINE = True
    if "datasets" in sys.modules:  # else it reads the line above when it is imported
        sys.modules["datasets"].config.HF_HUB_OFFLINE = True


def describe_endpoint() -> str:
    """Return the hub's address, without a password."""
    from huggingface_hub import constants

    return _describe_address(constants.ENDPOINT)


@dataclass
class _Probe:
    """One request to the hub, and how far it came."""

    address: str
    headers: dict[str, str]
    is_connected: bool = False
    is_done: bool = False
    outage: Outage | None = None

    def send(self) -> None:
        """Send the request, and keep what went wrong."""
        try:
            self._require_answer()
        except Exception as error:  # whatever it is, the libraries would meet it too
            where = _describe_address(self.address)
            is_slow = self.is_connected and "Timeout" in type(error).__name__
            reason = f"{where} can't be reached ({type(error).__name__}: {first_line(error)})"
            self.outage = Outage(_describe_silence(where) if is_slow else reason, is_slow)
        self.is_done = True

    def _require_answer(self) -> None:
        from huggingface_hub import get_session

        traced = {"trace": self._trace}
        answer = get_session().get(self.address, headers=self.headers, timeout=PROBE_SECONDS, extensions=traced)
        if answer.status_code >= 500 or answer.status_code == 407:
            self.outage = Outage(f"{_describe_address(self.address)} answers with status {answer.status_code}")

    def _trace(self, event: str, _info: dict[str, Any]) -> None:
        self.is_connected |= event.endswith("connect_tcp.complete")


def _ask(address: str) -> Outage | None:
    """Send one request, in a thread: looking up a name has no time limit of its own."""
    from huggingface_hub import get_session
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but not in its __all__

    get_session()  # outside of the thread: what it and the headers import takes a while, which is not the hub's
    probe = _Probe(address, build_hf_headers())
    thread = threading.Thread(target=probe.send, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS + 1.0)  # a second more, so that the request's own limit comes first
    if probe.is_done:
        return probe.outage
    return Outage(_describe_silence(_describe_address(address)), probe.is_connected)


def _api_address(repo: Repo) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/api/{repo.kind}s/{quote(repo.id)}/revision/{quote(repo.revision or 'main', safe='')}"


def _describe_silence(where: str) -> str:
    return f"{where} did not answer within {PROBE_SECONDS:g} seconds"


# Time limits -----------------------------------------------------------------------------------------


@dataclass
class _Limits:
    """Gives every request a time limit, and ends requests that are repeated without progress."""

    sent: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)

    def limit(self, request: Any) -> None:
        """Called by the HTTP client before each request."""
        limits = request.extensions.setdefault("timeout", {})
        for kind in ("connect", "read", "write", "pool"):
            if limits.get(kind) is None:
                limits[kind] = REQUEST_SECONDS
        if request.method == "GET":
            self._count(request, float(limits["read"]))

    def _count(self, request: Any, seconds: float) -> None:
        """Raise if the same part of a file was asked for before, and each time waited for in vain."""
        key = (str(request.url), request.headers.get("Range", ""), request.method)
        times = self.sent.setdefault(key, [])
        if times and time.monotonic() - times[-1] < 0.9 * seconds:
            times.clear()  # the last answer came in time
        times.append(time.monotonic())
        if len(times) > STALLS:
            name = request.url.path.rsplit("/", 1)[-1]
            raise TimeoutError(
                f"the request for {name!r} stalled {STALLS} times for {seconds:g} seconds; try again later"
            )


@contextmanager
def limit_requests() -> Iterator[None]:
    """Give every request of huggingface_hub and datasets in this block a time limit."""
    from huggingface_hub import get_session

    hooks = get_session().event_hooks["request"]
    limit = _Limits().limit
    hooks.append(limit)
    try:
        yield
    finally:
        with suppress(ValueError):
            hooks.remove(limit)


# Errors ----------------------------------------------------------------------------------------------


@contextmanager
def explain_errors(repo: Repo) -> Iterator[None]:
    """Turn every error of this block into one sentence about `repo`, and limit the time of its requests."""
    try:
        with quiet_libraries("huggingface_hub"), limit_requests(), explain_refusals(repo):
            yield
    except DataError:
        raise
    except Exception as error:  # the network's errors have no common class
        raise DataError(f"{repo} can't be fetched from {describe_endpoint()}: {first_line(error)}") from error


@contextmanager
def explain_refusals(repo: Repo) -> Iterator[None]:
    """Turn the hub's own errors into one sentence about `repo`."""
    from huggingface_hub import errors

    where = describe_endpoint()
    try:
        yield
    except errors.HFValidationError:
        raise DataError(f"{repo} is neither a folder on this machine nor a name that the hub allows") from None
    except errors.RevisionResolutionError as error:
        raise DataError(describe_missing(repo, _describe_failure(error))) from None
    except errors.RevisionNotFoundError:
        raise DataError(f"{repo}: {where} has no such revision of it") from None
    except errors.GatedRepoError:
        raise DataError(f"{repo} is gated: {_how_to_get_access(repo)}") from None
    except errors.RepositoryNotFoundError:
        token = "the token must have access to it" if _has_token() else "set HF_TOKEN"
        raise DataError(f"{repo} is not on {where}; if it is private, {token}") from None
    except errors.HfHubHTTPError as error:
        if error.response.status_code != 403:
            raise
        raise DataError(f"{where} refuses access to {repo} (status 403): {_how_to_get_access(repo)}") from None


def describe_missing(repo: Repo, reason: str) -> str:
    """Return a message that a repository can't be had, why, and what can be done."""
    return (
        f"{repo} is not in the cache, and {reason}; "
        "fetch it where there is a network and bring the cache (HF_HOME) along, name a local folder or files, "
        "or train on sample data with --sample"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without secrets."""
    return redact(str(error).strip().split("\n")[0])


def _describe_failure(error: BaseException) -> str:
    """Return why a revision could not be resolved, from the error that huggingface_hub met."""
    where, cause = describe_endpoint(), error.__cause__
    if cause is None:
        return _known[0].reason if _known and _known[0] else "the network is not to be used"
    if "Timeout" in type(cause).__name__:
        return f"{where} took too long to answer"
    return f"{where} failed ({first_line(cause) or type(cause).__name__})"


def _how_to_get_access(repo: Repo) -> str:
    page = f"{describe_endpoint()}/{'datasets/' if repo.kind == 'dataset' else ''}{repo.id}"
    if _has_token():
        return f"the token in use has no access to it. Request access at {page}"
    return f"request access at {page}, then set HF_TOKEN"


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _describe_address(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
