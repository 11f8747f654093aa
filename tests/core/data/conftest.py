"""A stand-in for the hub, at HTTP level: the endpoints that huggingface_hub, datasets and transformers call."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest


@dataclass
class Repo:
    """Files of one repository, commit by commit; the last commit is `main`."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], tag: str | None = None) -> str:
        sha = hashlib.sha1(repr((len(self.commits), sorted(files.items()))).encode()).hexdigest()
        self.commits[sha] = files
        self.tags["main"] = sha
        if tag:
            self.tags[tag] = sha
        return sha

    def find(self, revision: str) -> str | None:
        sha = self.tags.get(revision, revision)
        return sha if sha in self.commits else None


class FakeHub:
    """Serves `models` and `datasets` on a local port, and remembers every request."""

    def __init__(self) -> None:
        self.models: dict[str, Repo] = {}
        self.datasets: dict[str, Repo] = {}
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        self.failing = False
        hub = self

        class Handler(_Handler):
            fake_hub = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def add(self, kind: str, name: str, files: dict[str, bytes], tag: str | None = None) -> str:
        """Commit `files` to a repository, new or not; return the commit."""
        sha: str = getattr(self, kind).setdefault(name, Repo()).commit(files, tag)
        return sha

    def unplug(self) -> None:
        """Stop answering; the address refuses connections from then on."""
        if self._thread.is_alive():
            self.server.shutdown()
            self.server.server_close()
            self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    fake_hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.fake_hub.requests.append(f"{self.command} {self.path}")
        self.fake_hub.tokens.add(self.headers.get("Authorization") or "")
        if self.fake_hub.failing:
            self._send(503, b"down for maintenance")
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "api" and parts[1:2] in (["models"], ["datasets"]):
            self._api(parts[1], parts[2:])
        elif "resolve" in parts:
            kind = parts.pop(0) if parts[0] == "datasets" else "models"
            at = parts.index("resolve")
            self._file(kind, "/".join(parts[:at]), parts[at + 1], "/".join(parts[at + 2 :]))
        else:
            self._send(200, b"<html>a hub</html>")

    def _repo(self, kind: str, name: str) -> Repo | None:
        repo: Repo | None = getattr(self.fake_hub, kind).get(name)
        if repo is None:
            self._error("RepoNotFound", 401, "Repository Not Found")
        return repo

    def _api(self, kind: str, parts: list[str]) -> None:
        repo = self._repo(kind, "/".join(parts[:2]))
        if repo is None:
            return
        action, rest = (parts[2], parts[3:]) if len(parts) > 2 else ("revision", ["main"])
        sha = repo.find(rest[0])
        if sha is None:
            self._error("RevisionNotFound", 404, "Invalid rev id")
            return
        files = repo.commits[sha]
        if action == "tree":
            folder = "/".join(rest[1:])
            self._json([entry for entry in _tree(files) if _inside(entry["path"], folder)])
        elif action == "paths-info":
            wanted = json.loads(self.body)["paths"] if self.body.startswith(b"{") else _form(self.body)
            self._json([entry for entry in _tree(files) if entry["path"] in wanted])
        else:
            siblings = [{"rfilename": name} for name in sorted(files)]
            self._json({"id": "/".join(parts[:2]), "sha": sha, "siblings": siblings, "private": False, "tags": []})

    def _file(self, kind: str, name: str, revision: str, path: str) -> None:
        repo = self._repo(kind, name)
        if repo is None:
            return
        sha = repo.find(revision)
        if sha is None:
            self._error("RevisionNotFound", 404, "Invalid rev id")
        elif path not in repo.commits[sha]:
            self._error("EntryNotFound", 404, "Entry not found", {"X-Repo-Commit": sha})
        else:
            content = repo.commits[sha][path]
            start, end = _range(self.headers.get("Range"), len(content))
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": sha}
            self._send(200 if end - start == len(content) else 206, content[start:end], headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, code: str, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, message.encode(), {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _tree(files: dict[str, bytes]) -> list[dict[str, object]]:
    folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    entries: list[dict[str, object]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": p} for p in folders]
    for path, content in files.items():
        oid = hashlib.sha1(content).hexdigest()
        entries.append({"type": "file", "oid": oid, "size": len(content), "path": path})
    return sorted(entries, key=lambda entry: str(entry["path"]))


def _inside(path: object, folder: str) -> bool:
    return not folder or str(path).startswith(folder + "/")


def _form(body: bytes) -> list[str]:
    from urllib.parse import parse_qs

    return parse_qs(body.decode()).get("paths", [])


def _range(header: str | None, size: int) -> tuple[int, int]:
    if not header:
        return 0, size
    first, _, last = header.removeprefix("bytes=").partition("-")
    return int(first or 0), min(int(last) + 1 if last else size, size)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub that nothing else knows of; stopped at the end."""
    fake = FakeHub()
    yield fake
    fake.unplug()


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what a test prepares out of the caches of whoever runs it, and of other tests."""
    import datasets

    folder = tmp_path_factory.mktemp("caches")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
    monkeypatch.setenv("TASKRECIPE_CACHE", str(folder / "taskrecipe"))
