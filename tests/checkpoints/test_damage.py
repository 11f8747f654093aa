"""A checkpoint that is not what was written is never loaded; the one before is, and that is told."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path

import pytest
import torch
from tests.support.checkpointing import contents, names, store, tensor_contents, told_step

from taskrecipe.checkpoints.checkpoint import Checkpoint
from taskrecipe.checkpoints.store import Checkpoints
from taskrecipe.errors import DamagedCheckpointError

FILES = [*tensor_contents(0), "MANIFEST.json"]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        store(folder).commit(step, tensor_contents(step), best=1)
    return store(folder)


def _assert_the_one_before_is_used(checkpoints: Checkpoints, damaged: str) -> None:
    told: list[str] = []
    newest = checkpoints.newest(told.append)
    assert newest is not None
    assert told_step(newest) == 1
    assert newest.tensors("model.safetensors")["weight"].eq(1.0).all()
    assert len(told) == 1
    assert "step-2 is damaged" in told[0]
    assert damaged in told[0]


def test_a_flipped_bit_anywhere_is_noticed(checkpoints: Checkpoints):
    chance = random.Random(0)
    for trial in range(100):
        path = checkpoints.folder / "step-2" / FILES[trial % len(FILES)]
        original = path.read_bytes()
        place = chance.randrange(len(original))
        flipped = bytearray(original)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        _assert_the_one_before_is_used(checkpoints, path.name)
        path.write_bytes(original)
    assert told_step(checkpoints.at("last")) == 2


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("left", [0.0, 0.5, 0.999])
def test_a_truncated_file_is_noticed(checkpoints: Checkpoints, name: str, left: float):
    path = checkpoints.folder / "step-2" / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * left)])
    _assert_the_one_before_is_used(checkpoints, name)


def test_a_file_of_another_size_is_told_by_its_size(checkpoints: Checkpoints):
    (checkpoints.folder / "step-2" / "state.json").write_bytes(b"")
    _assert_the_one_before_is_used(checkpoints, "state.json has 0 bytes instead of 11")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(checkpoints: Checkpoints, name: str):
    (checkpoints.folder / "step-2" / name).unlink()
    _assert_the_one_before_is_used(checkpoints, name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_has_become_a_folder_is_noticed(checkpoints: Checkpoints, name: str):
    (checkpoints.folder / "step-2" / name).unlink()
    (checkpoints.folder / "step-2" / name).mkdir()
    _assert_the_one_before_is_used(checkpoints, name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_checkpoint_before_is_noticed(checkpoints: Checkpoints, name: str):
    shutil.copy(checkpoints.folder / "step-1" / name, checkpoints.folder / "step-2" / name)
    _assert_the_one_before_is_used(checkpoints, "step-2")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 2}', '{"format": 1, "files": {"a": 1}}', "[" * 100_000, "\xff"]
)
def test_a_manifest_that_is_none_is_noticed(checkpoints: Checkpoints, text: str):
    (checkpoints.folder / "step-2" / "MANIFEST.json").write_text(text, encoding="latin-1")
    _assert_the_one_before_is_used(checkpoints, "MANIFEST.json")


def test_where_all_are_damaged_none_is_used(checkpoints: Checkpoints):
    told: list[str] = []
    for step in (1, 2):
        (checkpoints.folder / f"step-{step}" / "state.json").write_bytes(b"{}")
    assert checkpoints.newest(told.append) is None
    assert len(told) == 2


def test_reading_checks_what_it_reads_even_if_nobody_verified(checkpoints: Checkpoints):
    path = checkpoints.folder / "step-2" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors"):
        checkpoints.at("last").tensors("model.safetensors")
    assert checkpoints.at("last").json("state.json") == {"step": 2}


def test_a_damaged_one_is_replaced_when_its_step_comes_again(checkpoints: Checkpoints):
    (checkpoints.folder / "step-2" / "MANIFEST.json").write_text("{}")
    _assert_the_one_before_is_used(checkpoints, "MANIFEST.json")
    checkpoints.commit(2, contents(2), best=1)
    assert told_step(store(checkpoints.folder).at("last")) == 2
    assert "step-2.aside-1" in names(checkpoints.folder)


# No code from data --------------------------------------------------------------------------------------


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"import pathlib; pathlib.Path({str(self.marker)!r}).touch()",)


def test_a_planted_pickle_never_runs(checkpoints: Checkpoints, tmp_path: Path):
    marker = tmp_path / "ran"
    payload = pickle.dumps(Payload(marker))
    pickle.loads(payload)
    assert marker.exists(), "the payload would run if it were loaded"
    marker.unlink()
    folder = checkpoints.folder / "step-2"
    for name in ("optimizer.bin", "model.bin", "random_states_0.pkl", "pytorch_model.bin"):
        (folder / name).write_bytes(payload)
    newest = checkpoints.newest(pytest.fail)
    assert newest is not None
    assert newest.step == 2
    for name in ("model.safetensors", "state.json"):
        (folder / name).write_bytes(payload)
        with pytest.raises(DamagedCheckpointError):
            Checkpoint.read(folder).tensors(name)
    with pytest.raises(DamagedCheckpointError, match=r"has no optimizer\.bin"):
        newest.tensors("optimizer.bin")
    assert not marker.exists()


def test_even_with_a_fitting_checksum_a_pickle_is_no_tensor_file(tmp_path: Path):
    marker = tmp_path / "ran"
    committed = store(tmp_path / "checkpoints").commit(
        1, {"model.safetensors": pickle.dumps(Payload(marker)), "state.json": pickle.dumps(Payload(marker))}, best=None
    )
    with pytest.raises(Exception, match=r"(?i)header"):
        committed.tensors("model.safetensors")
    with pytest.raises(ValueError, match=r"utf-8|JSON|decode"):
        committed.json("state.json")
    assert not marker.exists()


def test_torch_is_never_asked_to_unpickle(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    monkeypatch.setattr(pickle, "loads", lambda *_, **__: pytest.fail("pickle.loads was called"))
    newest = checkpoints.newest(pytest.fail)
    assert newest is not None
    assert newest.tensors("optimizer.safetensors").keys() == {"state/0/exp_avg"}
