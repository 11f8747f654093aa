"""Hub loading against a stand-in over HTTP, each in a process of its own, as the libraries read settings at import."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

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
from taskrecipe.core.data import hub, hub_rows
repo, revision, name = json.loads(sys.argv[1])
splits, commit = hub_rows.load(hub.Repo("dataset", repo, revision), name, streaming=False)
print(json.dumps({"commit": commit, "texts": {k: list(v["text"]) for k, v in splits.items()}}))
"""

FETCH_MODEL = """
import sys, json
from pathlib import Path
from taskrecipe.core.data import hub
repo, revision, part = json.loads(sys.argv[1])
folder = hub.model_folder(hub.Repo("model", repo, revision), part)
print(json.dumps(sorted(path.name for path in folder.iterdir())))
"""

LOAD_MODEL = """
import sys, json
from taskrecipe.core.model import ModelSource
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
from taskrecipe.core.data.load import blocks, load
from taskrecipe.core.recipe import Column, Recipe
from taskrecipe.core.spec.spec import Spec

class Texts(Recipe):
    def columns(self):
        return {"words": Column("a text")}

spec = Spec.model_validate(json.loads(sys.argv[1]))
loaded = load(spec, Texts(spec), Path("unused"))
rows = [list(block["words"]) for block in blocks(loaded.splits["train"], 4, 1)]
print(json.dumps([rows, len(loaded.splits["validation"]), loaded.origin, loaded.commit, loaded.fingerprint]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty HF_HOME."""
    return tmp_path / "home"


def run(code: str, argument: object, home: Path, **environment: str) -> Any:
    """Run `code` in a new process; what it prints is JSON, and an error is one sentence on the last line."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, json.dumps(argument)],
        env={**clean, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", **environment},
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
    assert hub.requests == ["HEAD /"]


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
    "no such repository": (["org/none", None, None], "data set 'org/none' is not on http://127.0.0.1:.* HF_TOKEN"),
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
    assert error.startswith("taskrecipe.core.errors.DataError: ")
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
from taskrecipe.core.data import hub
reason = hub.unreachable()
try:
    hub.model_folder(hub.Repo("model", "org/tiny"), "weights")
except Exception as error:
    print(json.dumps([reason, str(error), time.monotonic() - started, "datasets" in sys.modules]))
"""


@pytest.mark.parametrize("kind", ["refused", "silent", "unknown host", "failing", "proxy"])
def test_an_unreachable_hub_is_known_within_three_seconds(kind: str, hub: Any, home: Path) -> None:
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
        reason, error, seconds, heavy = run(PROBE, None, home, **environment)
    assert seconds < 3
    assert not heavy
    assert reason in error
    assert "secret" not in error
    assert error.endswith("name a local folder or files, or train on sample data with --sample")


UNPLUG = """
import json, os
{first}
from taskrecipe.core.data import hub
assert hub.unreachable()
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
    from taskrecipe.core.data import hub

    monkeypatch.setattr(hub, "_probe", lambda endpoint: time.sleep(60))
    monkeypatch.setattr(hub, "PROBE_SECONDS", 0.2)
    started = time.monotonic()
    assert hub._ask("https://user:secret@hub.test:8080/x") == "https://hub.test:8080 did not answer within 0.2 seconds"
    assert time.monotonic() - started < 1


def test_passwords_in_addresses_are_not_told() -> None:
    from taskrecipe.core.data import hub

    assert hub._without_secrets("no way to https://user:secret@host/x today\nmore") == "no way to https://host/x today"
