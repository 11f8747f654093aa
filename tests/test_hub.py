"""Hub loading against a stand-in over HTTP, each in a process of its own, as the libraries read settings at import."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_hub import FakeHub

TOKEN = "hf_canary0123456789"

CSV = b"text,label\n" + b"".join(b"row %d,%d\n" % (i, i % 2) for i in range(20))
OTHER_CSV = b"text,label\n" + b"".join(b"other %d,%d\n" % (i, i % 2) for i in range(10))
README = b"""---
configs:
- config_name: small
  data_files:
  - {split: train, path: small/train.csv}
  - {split: validation, path: small/validation.csv}
- config_name: large
  data_files: large.csv
---
"""
DATA = {"README.md": README, "small/train.csv": CSV, "small/validation.csv": CSV, "large.csv": CSV}

LOAD_DATA = """
import sys, json, time
from taskrecipe import hub
from taskrecipe.data import hub_datasets as hub_rows
repo, revision, name = json.loads(sys.argv[1])
splits, commit = hub_rows.load_splits(hub.Repo("dataset", repo, revision), name, streaming=False)
print(json.dumps({"commit": commit, "texts": {k: list(v["text"]) for k, v in splits.items()}}))
"""

FETCH_MODEL = """
import sys, json
from pathlib import Path
from taskrecipe import hub
repo, revision, part = json.loads(sys.argv[1])
folder = hub.model_folder(hub.Repo("model", repo, revision), part)
print(json.dumps(sorted(path.name for path in folder.iterdir())))
"""

LOAD_MODEL = """
import sys, json
from taskrecipe.model import ModelSource
from transformers import AutoModel
source = ModelSource(**json.loads(sys.argv[1]))
model = source.model(AutoModel)
files = sorted(path.name for path in source.folder.iterdir())
tokens = source.tokenizer()("a")["input_ids"]
print(json.dumps({"files": files, "tokens": tokens, "commit": source.folder.name, "size": model.config.hidden_size}))
"""


STREAM = """
import sys, json
from pathlib import Path
from taskrecipe.data.load import load_data
from taskrecipe.data.streams import read_blocks
from taskrecipe.recipe import Column, Recipe
from taskrecipe.spec.spec import Spec

class Texts(Recipe):
    def columns(self):
        return {"words": Column("a text")}

spec = Spec.model_validate(json.loads(sys.argv[1]))
loaded = load_data(spec, Texts(spec), Path("unused"))
rows = [list(block["words"]) for block in read_blocks(loaded.splits["train"], 4, 1)]
print(json.dumps([rows, len(loaded.splits["validation"]), loaded.origin, loaded.commit, loaded.fingerprint]))
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub that nothing else knows of; stopped at the end."""
    fake = FakeHub()
    yield fake
    fake.unplug()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty HF_HOME."""
    return tmp_path / "home"


def run(code: str, argument: object, home: Path, **environment: str) -> Any:
    """Run `code` in a new process; what it prints is JSON, and an error is one sentence on the last line."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    own = {"HF_HOME": str(home), "TASKRECIPE_CACHE": str(home / "own"), "HF_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, json.dumps(argument)],
        env={**clean, **own, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert TOKEN not in done.stdout + done.stderr
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_a_data_set_is_fetched_at_its_newest_commit_and_read_again_unplugged(hub: Any, home: Path) -> None:
    first = hub.add("datasets", "org/pairs", DATA)
    fetched = run(LOAD_DATA, ["org/pairs", None, "small"], home, HF_ENDPOINT=hub.url)
    assert fetched["commit"] == first
    assert fetched["texts"]["train"][:2] == ["row 0", "row 1"]
    assert not any("large.csv" in request for request in hub.requests)
    assert f"Bearer {TOKEN}" in hub.tokens

    newer = hub.add("datasets", "org/pairs", {**DATA, "small/train.csv": OTHER_CSV})
    again = run(LOAD_DATA, ["org/pairs", None, "small"], home, HF_ENDPOINT=hub.url)
    assert (again["commit"], again["texts"]["train"][0]) == (newer, "other 0")

    hub.unplug()
    unplugged = run(LOAD_DATA, ["org/pairs", None, "small"], home, HF_ENDPOINT=hub.url)
    assert unplugged == again


def test_a_pinned_commit_is_kept_though_a_newer_one_is_stored(hub: Any, home: Path) -> None:
    old = hub.add("datasets", "org/pairs", DATA, tag="v1")
    hub.add("datasets", "org/pairs", {**DATA, "small/train.csv": OTHER_CSV})
    pinned = run(LOAD_DATA, ["org/pairs", "v1", "small"], home, HF_ENDPOINT=hub.url)
    run(LOAD_DATA, ["org/pairs", None, "small"], home, HF_ENDPOINT=hub.url)
    hub.unplug()
    for revision in ("v1", old):
        assert run(LOAD_DATA, ["org/pairs", revision, "small"], home, HF_ENDPOINT=hub.url) == pinned
    assert pinned["commit"] == old


def test_a_stored_data_set_is_not_fetched_again(hub: Any, home: Path) -> None:
    sha = hub.add("datasets", "Some-Org/MyPairs_v2", DATA)
    run(LOAD_DATA, ["Some-Org/MyPairs_v2", sha, "small"], home, HF_ENDPOINT=hub.url)
    hub.requests.clear()
    run(LOAD_DATA, ["Some-Org/MyPairs_v2", sha, "small"], home, HF_ENDPOINT=hub.url)
    assert hub.requests == []


def test_training_rows_are_streamed_and_others_stored(hub: Any, home: Path) -> None:
    sha = hub.add("datasets", "org/pairs", DATA)
    data = {
        "path": "org/pairs",
        "name": "small",
        "streaming": True,
        "columns": {"words": "text"},
        "limit": {"train": 10, "validation": 5},
    }
    spec = {
        "spec_version": 1,
        "recipe": "glue",
        "task": {"name": "sst2"},
        "model": {"type": "bert"},
        "train": {"learning_rate": 1e-3, "updates": 1},
        "data": data,
    }
    first = run(STREAM, spec, home, HF_ENDPOINT=hub.url)
    assert first[:4] == [[[f"row {n}" for n in range(4, 8)], ["row 8", "row 9"]], 5, "hub", sha]
    hub.add("datasets", "org/pairs", {**DATA, "small/train.csv": OTHER_CSV})
    newer = run(STREAM, spec, home, HF_ENDPOINT=hub.url)
    assert newer[0][0] == [f"other {n}" for n in range(4, 8)]
    assert newer[4]["train"] != first[4]["train"]


HUB_ERRORS = {
    "no such repository": (
        ["org/none", None, None],
        "data set 'org/none' is not on http://127.0.0.1:.* the token must have access to it",
    ),
    "no such revision": (["org/pairs", "v9", "small"], "data set 'org/pairs' at revision 'v9': .* no such revision"),
    "no such configuration": (["org/pairs", None, "tiny"], "'tiny' not found. Available: .*small"),
    "no configuration chosen": (["org/pairs", None, None], "small"),
    "not a hub id": (["../pairs", None, None], "neither a folder on this machine nor a name that the hub allows"),
}


@pytest.mark.parametrize("name", HUB_ERRORS)
def test_what_the_hub_has_not_is_an_error_of_one_sentence(name: str, hub: Any, home: Path) -> None:
    hub.add("datasets", "org/pairs", DATA)
    argument, message = HUB_ERRORS[name]
    error = run(LOAD_DATA, argument, home, HF_ENDPOINT=hub.url)
    assert isinstance(error, str)
    assert error.startswith("taskrecipe.errors.DataError: ")
    assert re.search(message, error), error


def model_files(folder: Path) -> dict[str, bytes]:
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=5)
    BertModel(config).save_pretrained(folder, max_shard_size="1KB")
    words = Tokenizer(WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_is_fetched_without_pickles_or_code_and_works_unplugged(hub: Any, home: Path, tmp_path: Path) -> None:
    files = model_files(tmp_path)
    extra = {"pytorch_model.bin": b"pickle", "modeling_x.py": b"1/0", "onnx/model.safetensors": b"", "tf_model.h5": b""}
    sha = hub.add("models", "org/tiny", {**files, **extra, "unrelated.safetensors": b"x"})

    fetched = run(LOAD_MODEL, {"name": "org/tiny"}, home, HF_ENDPOINT=hub.url)
    assert fetched == {"files": sorted(files), "tokens": [1], "commit": sha, "size": 8}

    hub.unplug()
    assert run(LOAD_MODEL, {"name": "org/tiny"}, home, HF_ENDPOINT=hub.url) == fetched
    assert run(FETCH_MODEL, ["org/tiny", sha, "weights"], home, HF_HUB_OFFLINE="1") == sorted(files)
    missing = run(FETCH_MODEL, ["org/tiny", "v2", "weights"], home, HF_HUB_OFFLINE="1")
    assert "model 'org/tiny' at revision 'v2' is not in the cache, and HF_HUB_OFFLINE is set" in missing


def test_a_model_without_pretrained_fetches_no_weights(hub: Any, home: Path, tmp_path: Path) -> None:
    hub.add("models", "org/tiny", model_files(tmp_path))
    fetched = run(FETCH_MODEL, ["org/tiny", None, "config"], home, HF_ENDPOINT=hub.url)
    assert "config.json" in fetched
    assert not [name for name in fetched if name.endswith(".safetensors")]
    hub.unplug()
    assert run(FETCH_MODEL, ["org/tiny", None, "processor"], home, HF_ENDPOINT=hub.url) == fetched
    needs_weights = run(FETCH_MODEL, ["org/tiny", None, "weights"], home, HF_ENDPOINT=hub.url)
    assert "model 'org/tiny' is not in the cache, and http://127.0.0.1" in needs_weights


def test_a_model_with_only_pickles_is_refused(hub: Any, home: Path) -> None:
    hub.add("models", "org/old", {"config.json": b'{"model_type": "bert"}', "pytorch_model.bin": b"pickle"})
    error = run(FETCH_MODEL, ["org/old", None, "weights"], home, HF_ENDPOINT=hub.url)
    assert "model 'org/old' has no safetensors, only 'pytorch_model.bin', a pickle" in error
    assert not any("pytorch_model.bin" in request for request in hub.requests)


PROBE = """
import json, sys, time
started = time.monotonic()
from taskrecipe import hub, hub_connection
hub_connection.PROBE_SECONDS = json.loads(sys.argv[1])
repo = hub.Repo("model", "org/tiny")
reason = hub.unreachable(repo)
try:
    hub.model_folder(repo, "weights")
except Exception as error:
    seconds = time.monotonic() - started
    print(json.dumps([reason, str(error), seconds, hub.is_only_slow(repo), "datasets" in sys.modules]))
"""


@pytest.mark.parametrize("kind", ["refused", "silent", "unknown host", "failing", "proxy"])
def test_an_unreachable_hub_is_known_soon(kind: str, hub: FakeHub, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts connections, and answers none
        silent = f"http://user:secret@127.0.0.1:{listener.getsockname()[1]}"
        hub.failing = True
        environment = {
            "refused": {"HF_ENDPOINT": "http://127.0.0.1:9"},
            "silent": {"HF_ENDPOINT": silent},
            "unknown host": {"HF_ENDPOINT": "http://hub.invalid"},
            "failing": {"HF_ENDPOINT": hub.url},
            "proxy": {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": "http://user:secret@127.0.0.1:9"},
        }[kind]
        reason, error, seconds, is_slow, heavy = run(PROBE, 2, home, **environment)
    assert seconds < 30  # the libraries' own retries take minutes
    assert is_slow == (kind == "silent")
    assert not heavy
    assert reason in error
    assert "secret" not in error
    assert error.endswith("name a local folder or files, or train on sample data with --sample")


def test_an_api_that_hangs_while_the_front_page_answers_is_not_waited_for(hub: FakeHub, home: Path) -> None:
    hub.add("models", "org/tiny", {"config.json": b"{}"})
    hub.delays["/api/"] = 60
    reason, error, seconds, is_slow, _ = run(PROBE, 2, home, HF_ENDPOINT=hub.url)
    assert reason == f"{hub.url} did not answer within 2 seconds"
    assert is_slow
    assert "is not in the cache, and http://127.0.0.1" in error
    assert seconds < 10


def test_a_hub_that_is_only_slow_is_waited_for(hub: FakeHub, home: Path) -> None:
    hub.add("models", "org/tiny", {"config.json": b"{}"})
    hub.delays["/api/models/org/tiny/revision"] = 3
    assert run(FETCH_MODEL, ["org/tiny", None, "config"], home, HF_ENDPOINT=hub.url) == ["config.json"]


WAITING = """
import json, sys, time
from taskrecipe import hub, hub_connection
hub_connection.REQUEST_SECONDS = 1.0
started = time.monotonic()
try:
    hub.model_folder(hub.Repo("model", "org/tiny"), "weights")
except Exception as error:
    print(json.dumps([type(error).__name__, str(error), time.monotonic() - started]))
"""


def test_a_later_request_that_hangs_is_ended_too(hub: FakeHub, home: Path) -> None:
    hub.add("models", "org/tiny", {"config.json": b"{}"})
    hub.delays["/api/models/org/tiny/tree"] = 60
    kind, message, seconds = run(WAITING, None, home, HF_ENDPOINT=hub.url)
    assert kind == "DataError"
    assert "stalled 2 times" in message
    assert seconds < 30


def test_a_stalled_download_ends_soon(hub: FakeHub, home: Path) -> None:
    hub.add("models", "org/tiny", {"config.json": b"{}", "model.safetensors": bytes(1000)})
    hub.stalls.add("model.safetensors")
    kind, message, seconds = run(WAITING, None, home, HF_ENDPOINT=hub.url, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert kind == "DataError"
    assert "the request for 'model.safetensors' stalled 2 times" in message
    assert seconds < 15


def test_a_dropped_download_ends_with_a_sentence(hub: FakeHub, home: Path) -> None:
    hub.add("models", "org/tiny", {"config.json": b"{}", "model.safetensors": bytes(2)})
    hub.drops.add("model.safetensors")
    kind, message, seconds = run(WAITING, None, home, HF_ENDPOINT=hub.url)
    assert kind == "DataError"
    assert message.startswith("model 'org/tiny' can't be fetched from http://127.0.0.1")
    assert seconds < 30


def test_a_failing_api_is_named_where_nothing_is_cached(hub: FakeHub, home: Path) -> None:
    commit = """
import json, sys
from taskrecipe import hub, hub_connection
hub_connection._known.append(None)  # the hub answered at first
try:
    hub.commit(hub.Repo("dataset", "org/pairs"))
except Exception as error:
    print(json.dumps(str(error)))
"""
    hub.failing = True
    message = run(commit, None, home, HF_ENDPOINT=hub.url)
    assert message.startswith("data set 'org/pairs' is not in the cache, and http://127.0.0.1")
    assert "503" in message
    assert "None" not in message


REFUSALS = {
    "gated, with a token": (
        (403, "GatedRepo"),
        TOKEN,
        "model 'org/tiny' is gated: the token in use has no access to it. Request access at http://.*/org/tiny$",
    ),
    "gated, without": ((401, "GatedRepo"), "", "is gated: request access at http://.*/org/tiny, then set HF_TOKEN$"),
    "forbidden": (
        (403, ""),
        TOKEN,
        r"refuses access to model 'org/tiny' \(status 403\): the token in use",
    ),
    "private, with a token": ((401, "RepoNotFound"), TOKEN, "if it is private, the token must have access to it"),
    "private, without": ((401, "RepoNotFound"), "", "if it is private, set HF_TOKEN"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_says_what_to_do(name: str, hub: FakeHub, home: Path) -> None:
    status, token, message = REFUSALS[name]
    hub.add("models", "org/tiny", {"config.json": b"{}"})
    hub.statuses["/resolve/" if "gated" in name else "/api/"] = status
    error = run(FETCH_MODEL, ["org/tiny", None, "config"], home, HF_ENDPOINT=hub.url, HF_TOKEN=token)
    assert re.search(message, error), error


def blob(home: Path) -> Path:
    """The file of weights in the cache."""
    (link,) = home.glob("hub/models--org--tiny/snapshots/*/model.safetensors")
    return link.resolve()


@pytest.fixture
def tiny(hub: FakeHub) -> list[Any]:
    """A model whose weights nobody opens here, and how to ask for it."""
    hub.add("models", "org/tiny", {"config.json": b'{"model_type": "bert"}', "model.safetensors": bytes(range(200))})
    return ["org/tiny", None, "weights"]


def test_damaged_weights_in_the_cache_are_fetched_again(hub: FakeHub, tiny: list[Any], home: Path) -> None:
    fetched = run(FETCH_MODEL, tiny, home, HF_ENDPOINT=hub.url)
    assert blob(home).read_bytes() == bytes(range(200))
    blob(home).write_bytes(bytes(200))
    assert run(FETCH_MODEL, tiny, home, HF_ENDPOINT=hub.url) == fetched
    assert blob(home).read_bytes() == bytes(range(200))


@pytest.mark.parametrize("online", [True, False])
def test_weights_that_stay_damaged_are_named(online: bool, hub: FakeHub, tiny: list[Any], home: Path) -> None:
    run(FETCH_MODEL, tiny, home, HF_ENDPOINT=hub.url)
    blob(home).write_bytes(bytes(200))
    hub.corrupt["model.safetensors"] = bytes(200)
    environment = {"HF_ENDPOINT": hub.url} if online else {"HF_HUB_OFFLINE": "1"}
    error = run(FETCH_MODEL, tiny, home, **environment)
    assert "model 'org/tiny': its weights in the cache are damaged" in error
    assert f"Delete '{blob(home)}'" in error


MISSING = """
import json, sys
from taskrecipe import hub_connection
from taskrecipe.data.load import missing_from_hub
from taskrecipe.spec.spec import Spec
hub_connection.PROBE_SECONDS = 1.0
try:
    print(json.dumps(missing_from_hub(Spec.model_validate(json.loads(sys.argv[1])))))
except Exception as error:
    print(json.dumps(f"error: {error}"))
"""


@pytest.mark.parametrize("is_slow", [True, False])
def test_no_sample_is_used_because_of_a_slow_hub(is_slow: bool, hub: FakeHub, home: Path) -> None:
    spec = {
        "spec_version": 1,
        "recipe": "glue",
        "task": {"name": "sst2"},
        "model": {"name": "org/tiny"},
        "train": {"learning_rate": 1e-3, "updates": 1},
        "data": {"path": "org/pairs", "offline": "sample"},
    }
    hub.delays["/api/"] = 60
    reason = run(MISSING, spec, home, HF_ENDPOINT=hub.url if is_slow else "http://127.0.0.1:9")
    assert reason.startswith("error: model 'org/tiny' is not" if is_slow else "model 'org/tiny' is not")


UNPLUG = """
import json, os
{first}
from taskrecipe import hub
assert hub.unreachable(hub.Repo("model", "org/tiny"))
import datasets, huggingface_hub, transformers.utils.hub
libraries = [datasets.config.HF_HUB_OFFLINE, transformers.utils.hub.is_offline_mode()]
print(json.dumps([*libraries, os.environ["HF_HUB_OFFLINE"]]))
"""


@pytest.mark.parametrize("first", ["", "import datasets"])
def test_no_library_tries_once_the_hub_is_out_of_reach(first: str, home: Path) -> None:
    told = run(UNPLUG.format(first=first), None, home, HF_ENDPOINT="http://127.0.0.1:9")
    assert told == [True, True, "1"]


def test_a_proxy_is_used(hub: Any, home: Path) -> None:
    hub.add("models", "org/tiny", {"config.json": b"{}"})
    wanted = ["org/tiny", None, "config"]
    assert run(FETCH_MODEL, wanted, home, HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=hub.url) == ["config.json"]


def test_looking_up_a_name_may_hang_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from taskrecipe import hub_connection

    monkeypatch.setattr(hub_connection._Probe, "send", lambda probe: time.sleep(60))
    monkeypatch.setattr(hub_connection, "PROBE_SECONDS", 0.2)
    started = time.monotonic()
    outage = hub_connection._ask("https://user:secret@hub.test:8080/x")
    assert outage == hub_connection.Outage("https://hub.test:8080 did not answer within 0.2 seconds")
    assert time.monotonic() - started < 3


def test_passwords_in_addresses_are_not_shown() -> None:
    from taskrecipe import hub_connection

    error = OSError("no way to https://user:secret@host/x today\nmore")
    assert hub_connection.first_line(error) == "no way to https://[redacted]@host/x today"
