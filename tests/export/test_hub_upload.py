"""Uploading to a stand-in for the hub, over HTTP: private by default, whole or not at all, and without secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.commands import Zygote
from tests.support.fake_hub import FakeHub
from tests.support.runs import train, write_spec

TOKEN = "hf_canary0123456789canary"

UPLOAD = """
import sys
from pathlib import Path
from taskrecipe import RecipeError
from taskrecipe.export.hub_upload import open_repository, upload_folder
try:
    open_repository(sys.argv[1], private=True)
    print(upload_folder(Path(sys.argv[2]), sys.argv[1], "Add a model"))
except RecipeError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()
    yield fake
    fake.unplug()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "part").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# m\n")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "part" / "config.json").write_text("{}")
    return folder


def ask(hub: FakeHub, *arguments: str, token: str = TOKEN, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the hub in its environment: the library reads its address when it is imported."""
    settings = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": token, **more}
    environment = {**os.environ, **settings, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def upload(hub: FakeHub, folder: Path, repo: str = "me/model", **more: str) -> subprocess.CompletedProcess[str]:
    return ask(hub, "-c", UPLOAD, repo, str(folder), **more)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def newest(hub: FakeHub, repo: str = "me/model") -> dict[str, bytes]:
    found = hub.models[repo]
    return found.commits[found.tags["main"]]


def test_every_file_arrives_in_one_commit_of_a_private_repository(hub: FakeHub, model: Path) -> None:
    done = upload(hub, model)
    assert done.returncode == 0, done.stderr
    assert newest(hub) == files_of(model)
    assert len(hub.models["me/model"].commits) == 2  # the first is the empty one that creating makes
    assert hub.private == {"me/model"}
    assert "private=True" in done.stdout


def test_an_existing_repository_gets_a_further_commit_and_stays_as_public_as_it_was(hub: FakeHub, model: Path) -> None:
    hub.add("models", "me/model", {"notes.md": b"mine"})
    done = upload(hub, model)
    assert done.returncode == 0, done.stderr
    assert newest(hub) == {"notes.md": b"mine", **files_of(model)}
    assert "private=False" in done.stdout


def test_a_token_without_the_right_to_write_is_refused_in_a_sentence(hub: FakeHub, model: Path) -> None:
    hub.writers = {"Bearer another"}
    done = upload(hub, model)
    assert done.returncode == 1
    assert "refuses to write into 'me/model' (status 403)" in done.stderr
    assert "hf auth login" in done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert hub.models == {}


def test_without_a_token_nothing_is_asked(hub: FakeHub, model: Path, tmp_path: Path) -> None:
    done = upload(hub, model, token="", HF_HOME=str(tmp_path / "home"))
    assert "needs a token of the hub" in done.stderr
    assert hub.requests == []


def test_a_connection_that_ends_is_a_sentence_and_large_files_are_not_sent_twice(hub: FakeHub, model: Path) -> None:
    hub.drops.add("/commit/")
    done = upload(hub, model)
    assert done.returncode == 1
    assert "did not finish" in done.stderr
    assert "Run the same command again" in done.stderr
    assert TOKEN not in done.stderr
    assert newest(hub) == {}
    hub.drops.clear()
    hub.requests.clear()
    assert upload(hub, model).returncode == 0
    assert newest(hub) == files_of(model)
    assert not [request for request in hub.requests if request.startswith("PUT")]


def test_a_file_that_arrived_changed_is_noticed(hub: FakeHub, model: Path) -> None:
    assert upload(hub, model).returncode == 0
    [name] = hub.large
    hub.large[name] = b"another"  # the hub believes that it has the file
    (model / "part" / "config.json").write_text('{"changed": true}')
    done = upload(hub, model)
    assert "model.safetensors on the hub is not the file that was uploaded" in done.stderr


@pytest.mark.parametrize("secret", ["hf_" + "a1B2" * 8, "https://me:password@host/x", "canary-of-a-secret-variable"])
def test_a_secret_is_never_uploaded(secret: str, hub: FakeHub, model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"note": secret}))
    done = upload(hub, model, MY_TOKEN="canary-of-a-secret-variable")
    assert "config.json holds what looks like a secret" in done.stderr
    assert secret not in done.stderr
    assert newest(hub) == {}


@pytest.mark.parametrize("repo", ["no-owner/a/b", "me/..", "me/model name"])
def test_a_name_that_the_hub_does_not_allow_is_refused(repo: str, hub: FakeHub, model: Path) -> None:
    done = upload(hub, model, repo)
    assert "the hub takes OWNER/NAME" in done.stderr
    assert hub.models == {}


def test_a_run_is_uploaded_with_its_card(hub: FakeHub, zygote: Zygote, tmp_path: Path) -> None:
    run = train(zygote, write_spec(tmp_path), "run", "--set", "train.updates=3")
    arguments = ("export", str(run), "--to", "hub", "--repo", "me/mrpc", "--json")
    done = ask(hub, "-m", "taskrecipe", *arguments)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["url"] == f"{hub.url}/me/mrpc"
    assert told["private"] is True
    assert told["difference"] == 0.0
    assert told["commit"] == hub.models["me/mrpc"].tags["main"]
    files = newest(hub, "me/mrpc")
    assert set(files) == {path.name for path in (run / "model").iterdir()}
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert b'pipeline("text-classification", model="me/mrpc")' in files["README.md"]
    assert not any(str(tmp_path).encode() in content or TOKEN.encode() in content for content in files.values())
