"""A stand-in for the hub, at HTTP level: the endpoints that huggingface_hub, datasets and transformers call."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import unquote, urlsplit

_Value = TypeVar("_Value")


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
        self.delays: dict[str, float] = {}
        """Seconds before an answer, by a part of the path."""
        self.statuses: dict[str, tuple[int, str]] = {}
        """Statuses and error codes to answer with instead, by a part of the path."""
        self.stalls: set[str] = set()
        """Parts of the paths of files whose download stops in the middle, while the connection stays."""
        self.drops: set[str] = set()
        """Parts of the paths of files whose connection ends in the middle."""
        self.corrupt: dict[str, bytes] = {}
        """What is sent instead of a file's content, by a part of the path."""
        self.writers: set[str] | None = None
        """Tokens that may write; None for all."""
        self.private: set[str] = set()
        """Names of models that were created as private ones."""
        self.large: dict[str, bytes] = {}
        """Large files that were uploaded, by their sha256; a commit makes them part of a repository."""
        self.closing = threading.Event()
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
        self.closing.set()
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

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.fake_hub.requests.append(f"{self.command} {self.path}")
        self.fake_hub.tokens.add(self.headers.get("Authorization") or "")
        if self.fake_hub.failing:
            self._send(503, b"down for maintenance")
            return
        self.fake_hub.closing.wait(self._find(self.fake_hub.delays) or 0.0)
        if status := self._find(self.fake_hub.statuses):
            self._error(status[1], status[0], f"refused with {status[0]}")
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if self._is_upload(parts):
            self._take(parts)
        elif parts[0] == "api" and parts[1:2] in (["models"], ["datasets"]):
            self._api(parts[1], parts[2:])
        elif "resolve" in parts:
            kind = parts.pop(0) if parts[0] == "datasets" else "models"
            at = parts.index("resolve")
            self._file(kind, "/".join(parts[:at]), parts[at + 1], "/".join(parts[at + 2 :]))
        else:
            self._send(200, b"<html>a hub</html>")

    # Uploads ----------------------------------------------------------------------------------------

    def _is_upload(self, parts: list[str]) -> bool:
        ours = {"create", "validate-yaml", "preupload", "commit", "lfs", "large"}
        return self.command in ("POST", "PUT") and bool(ours & set(parts))

    def _take(self, parts: list[str]) -> None:
        """Answer a request that writes; cut the connection before anything is kept where a test asks for it."""
        hub = self.fake_hub
        if any(part in self.path for part in hub.drops):
            self.connection.close()
            self.close_connection = True
        elif parts[0] == "large":
            hub.large[parts[1]] = self.body
            self._send(200, b"")
        elif parts[-1] == "validate-yaml":
            self._json({"warnings": [], "errors": []})
        elif hub.writers is not None and (self.headers.get("Authorization") or "") not in hub.writers:
            self._error("", 403, f"Forbidden: {self.headers.get('Authorization')} may not write")
        elif parts[-1] == "create":
            self._create(json.loads(self.body))
        elif parts[-1] == "batch":
            self._json({"transfer": "basic", "objects": [self._slot(one) for one in json.loads(self.body)["objects"]]})
        elif parts[-2] == "preupload":
            files = [{"path": one["path"], "shouldIgnore": False} for one in json.loads(self.body)["files"]]
            self._json({"files": [{**one, "uploadMode": _upload_mode(str(one["path"]))} for one in files]})
        else:
            self._commit("/".join(parts[2:4]))

    def _create(self, wanted: dict[str, str]) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        about = {"url": f"{self.fake_hub.url}/{name}", "id": name}
        if name in self.fake_hub.models:
            content = json.dumps({**about, "error": "You already created this model repo"}).encode()
            self._send(409, content, {"Content-Type": "application/json"})
            return
        self.fake_hub.add("models", name, {})
        if wanted.get("visibility") == "private":
            self.fake_hub.private.add(name)
        self._json(about)

    def _slot(self, wanted: dict[str, object]) -> dict[str, object]:
        """Say where to send a large file, unless it has been sent."""
        if wanted["oid"] in self.fake_hub.large:
            return wanted
        return {**wanted, "actions": {"upload": {"href": f"{self.fake_hub.url}/large/{wanted['oid']}"}}}

    def _commit(self, name: str) -> None:
        repo = self.fake_hub.models[name]
        files = dict(repo.commits[repo.tags["main"]])
        for line in self.body.splitlines():
            kind, value = (json.loads(line)[key] for key in ("key", "value"))
            if kind == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                files[value["path"]] = self.fake_hub.large[value["oid"]]
        sha = repo.commit(files)
        self._json({"commitUrl": f"{self.fake_hub.url}/{name}/commit/{sha}", "commitOid": sha})

    # Downloads --------------------------------------------------------------------------------------

    def _find(self, table: dict[str, _Value]) -> _Value | None:
        return next((value for part, value in table.items() if part in self.path), None)

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
            private = "/".join(parts[:2]) in self.fake_hub.private
            siblings = [{"rfilename": name} for name in sorted(files)]
            self._json({"id": "/".join(parts[:2]), "sha": sha, "siblings": siblings, "private": private, "tags": []})

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
            headers = {"ETag": f'"{_etag(path, content)}"', "X-Repo-Commit": sha}
            content = self._find(self.fake_hub.corrupt) or content
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
        if self.command == "HEAD":
            return
        hub = self.fake_hub
        stalls, drops = (any(part in self.path for part in parts) for parts in (hub.stalls, hub.drops))
        self.wfile.write(content[: len(content) // 2] if stalls or drops else content)
        if stalls:
            self.wfile.flush()
            self.fake_hub.closing.wait(60)
        if stalls or drops:
            self.close_connection = True


def _etag(path: str, content: bytes) -> str:
    """Large files are known by their sha256, others by their git id."""
    return (hashlib.sha256 if path.endswith(".safetensors") else hashlib.sha1)(content).hexdigest()


def _upload_mode(path: str) -> str:
    return "lfs" if path.endswith((".safetensors", ".onnx")) else "regular"


def _tree(files: dict[str, bytes]) -> list[dict[str, object]]:
    folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    entries: list[dict[str, object]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": p} for p in folders]
    for path, content in files.items():
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry: dict[str, object] = {"type": "file", "oid": oid, "size": len(content), "path": path}
        if path.endswith(".safetensors"):
            entry["lfs"] = {"oid": _etag(path, content), "size": len(content), "pointerSize": 134}
        entries.append(entry)
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
