"""The mirror of a run: at every moment it can be resumed from, and training neither waits for it nor ends by it."""

from __future__ import annotations

import io
import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.checkpointing import contents
from tests.support.commands import Zygote
from tests.support.runs import bits, log, results, steps, train, write_spec

from taskrecipe.checkpoints.checkpoint import Checkpoint
from taskrecipe.checkpoints.store import Checkpoints, Contents
from taskrecipe.errors import DamagedCheckpointError, UsageError
from taskrecipe.remote import mirror
from taskrecipe.remote.fetch import fetch_run
from taskrecipe.remote.mirror import Mirror, is_own_folder
from taskrecipe.remote.run_copy import RunCopy
from taskrecipe.remote.storage import Readable, Storage
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.mirroring import Mirroring

COMMITS = [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (6, 6)]
"""Steps, and the best one at each."""


@pytest.fixture
def remote() -> Iterator[MemoryFileSystem]:
    """An empty filesystem at memory://."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """The folder of a run that has begun."""
    with RunFolder.create("run", tmp_path / "run") as made:
        made.write_text("spec.toml", "seed = 1\n")
        made.write_json("environment.json", {})
        made.log({"event": "start", "step": 0})
        yield made


def commit(folder: RunFolder, step: int, best: int, keep: int = 1) -> None:
    store = Checkpoints(folder.checkpoints, keep=keep, run_id=folder.run_id)
    state = json.dumps({"progress": {"best": {"step": best}}}).encode()
    files: Contents = {**contents(step), "state.json": state}
    store.commit(step, files, best=best)
    folder.log({"event": "update", "step": step})


class Died(Exception):  # noqa: N818
    """The process ends here."""


class Failing(Storage):
    """Ends the process after some operations, a write in its middle."""

    left = 10**9

    def write(self, name: str, source: Readable) -> None:
        if self.left <= 0:
            content = source.read()
            super().write(name, io.BytesIO(content[: len(content) // 2]))
            raise Died
        self.left -= 1
        super().write(name, source)

    def remove(self, name: str) -> None:
        if self.left <= 0:
            raise Died
        self.left -= 1
        super().remove(name)


def find_whole(place: Path) -> dict[int, int]:
    """The checkpoints at a mirror that verify, each with the best one at its time."""
    whole = {}
    for path in place.glob("checkpoints/step-*"):
        try:
            checkpoint = Checkpoint.read(path)
        except DamagedCheckpointError:
            continue
        checkpoint.verify()  # what has a manifest is whole
        whole[checkpoint.step] = checkpoint.json("state.json")["progress"]["best"]["step"]
    return whole


@pytest.mark.parametrize("skip", [1, 2])
def test_a_mirror_is_whole_wherever_copying_ends(skip: int, folder: RunFolder, tmp_path: Path) -> None:
    """Every operation is once the last one, with every second checkpoint skipped and without."""
    moments: dict[int, Path] = {}
    for number, (step, best) in enumerate(COMMITS):
        commit(folder, step, best)
        if number % skip == skip - 1:
            moments[step] = Path(shutil.copytree(folder.path, tmp_path / f"moment-{step}"))
    operations = finished = 0
    while finished != COMMITS[-1][0]:
        place, finished = tmp_path / f"far-{operations}", 0
        storage = Failing(place.as_uri(), "key")
        storage.left = operations
        copy = RunCopy(folder.path, folder.run_id, storage)
        with suppress(Died):
            for step, moment in moments.items():
                copy.folder = moment
                copy.update()
                finished = step
        whole = find_whole(place)
        newest = max(whole, default=0)
        assert newest >= finished, "a checkpoint that was there is lost"
        assert not whole or whole[newest] in whole, "the newest checkpoint names a best one that is not there"
        if operations % 5 == 0:
            RunCopy(folder.path, folder.run_id, Storage(place.as_uri(), "key")).update()
            assert sorted(find_whole(place)) == steps(folder.path), "another process completes the copy"
            assert {path.name for path in place.glob("checkpoints/*")} >= {"best", "last"}
        operations += 1
    assert operations > 50


def test_a_fetch_takes_the_newest_whole_checkpoint_and_its_best(folder: RunFolder, tmp_path: Path) -> None:
    for step, best in COMMITS[:5]:
        commit(folder, step, best, keep=3)
    far = tmp_path / "far" / "run"
    RunCopy(folder.path, folder.run_id, Storage(far.as_uri(), "key")).update()
    assert sorted(find_whole(far)) == [3, 4, 5]
    target, warnings = fetch_run(far.as_uri(), tmp_path / "near", to_resume=True)
    assert (steps(target), warnings) == ([3, 5], [])
    assert json.loads((target / "run.json").read_text())["mirror"] == far.as_uri()

    (far / "checkpoints/step-5/model.safetensors").write_bytes(b"x" * 100)
    target, warnings = fetch_run(far.as_uri(), tmp_path / "other", to_resume=True)
    assert steps(target) == [3, 4]
    assert len(warnings) == 1
    assert "checkpoint step-5 of" in warnings[0]

    for path in far.glob("checkpoints/step-*/MANIFEST.json"):
        path.unlink()
    with pytest.raises(UsageError, match="has no checkpoint that is whole"):
        fetch_run(far.as_uri(), tmp_path / "none", to_resume=True)
    assert not (tmp_path / "none").exists()


def test_a_fetch_into_the_same_run_keeps_what_is_newer(folder: RunFolder, tmp_path: Path) -> None:
    far = tmp_path / "far" / "run"
    commit(folder, 1, 1)
    RunCopy(folder.path, folder.run_id, Storage(far.as_uri(), "key")).update()
    commit(folder, 2, 1)
    folder.close()
    lines = (folder.path / "log.jsonl").read_bytes()
    fetch_run(far.as_uri(), folder.path, to_resume=True)
    assert (steps(folder.path), (folder.path / "log.jsonl").read_bytes()) == ([1, 2], lines)
    other = RunFolder.create("other", tmp_path / "other")
    commit(other, 1, 1)
    other.close()
    with pytest.raises(UsageError, match="other already holds a run"):
        fetch_run(far.as_uri(), other.path)


def test_names_of_a_mirror_that_lead_out_of_the_folder_are_not_followed(
    folder: RunFolder, tmp_path: Path, remote: MemoryFileSystem
) -> None:
    commit(folder, 1, 1)
    RunCopy(folder.path, folder.run_id, Storage("memory://runs/run", "key")).update()
    remote.store["/runs/run/../../stolen.txt"] = remote.store["/runs/run/spec.toml"]
    fetch_run("memory://runs/run", tmp_path / "a" / "b")
    assert not list(tmp_path.rglob("stolen.txt"))


# The thread ----------------------------------------------------------------------------------------


def finish(thread: Mirror) -> None:
    thread.close()
    assert thread.wait(20)


def test_what_is_at_the_mirror_is_what_is_here(folder: RunFolder, tmp_path: Path, remote: MemoryFileSystem) -> None:
    (folder.path / "model").mkdir()
    (folder.path / "model" / "weights").write_bytes(b"new")
    remote.pipe_file("/runs/run/model/former", b"old")
    remote.pipe_file("/runs/run/run.json", (folder.path / "run.json").read_bytes())
    commit(folder, 1, 1)
    folder.write_json("results.json", {"status": "finished"})
    thread = Mirror(folder, "memory://runs")
    thread.start()
    finish(thread)
    assert thread.is_complete
    assert json.loads(remote.cat_file("/runs/run/results.json")) == {
        "status": "finished",
        "mirror": {"url": "memory://runs/run", "complete": True, "checkpoint": "step-1"},
    }
    found = {name.removeprefix("/runs/run/"): remote.cat_file(name) for name in remote.find("/runs/run")}
    assert found == {
        path.relative_to(folder.path).as_posix(): path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_another_run_of_that_name_is_left_alone(folder: RunFolder, tmp_path: Path, remote: MemoryFileSystem) -> None:
    remote.pipe_file("/runs/run/run.json", b'{"id": "another"}')
    remote.pipe_file("/runs/run-2/notes.txt", b"no run at all")
    for _ in range(2):
        thread = Mirror(folder, "memory://runs")
        thread.start()
        finish(thread)
        assert thread.url == "memory://runs/run-3"
    assert remote.cat_file("/runs/run/run.json") == b'{"id": "another"}'
    assert remote.ls("/runs/run-2", detail=False) == ["/runs/run-2/notes.txt"]


class Broken(MemoryFileSystem):
    """Fails or waits as it is told."""

    protocol = "broken"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in its parent
    pseudo_dirs = [""]  # noqa: RUF012
    error: Exception | None = None
    gate = threading.Event()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("broken://", "memory://"))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "w" in mode:
            assert Broken.gate.wait(30)
            if Broken.error:
                raise Broken.error
        return super()._open(path, mode, **options)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> type[Broken]:
    fsspec.register_implementation("broken", Broken, clobber=True)
    Broken.store.clear()
    Broken.error = None
    Broken.gate.set()
    monkeypatch.setattr(mirror, "PAUSES", (0.0, 0.0))
    return Broken


def test_an_error_is_one_warning_of_its_kind_and_the_next_try_catches_up(
    folder: RunFolder, broken: type[Broken]
) -> None:
    thread, warnings = Mirror(folder, "broken://runs"), []
    broken.error = PermissionError("denied")
    thread.start()
    for step in (1, 2):
        commit(folder, step, 1)
        thread.update()
        time.sleep(0.2)
        warnings += thread.take_warnings()
    assert len(warnings) == 1
    assert "[checkpoint].mirror: 'broken://runs/run' can't be opened with your credentials" in warnings[0]
    broken.error = ConnectionError("reset")
    thread.update()
    time.sleep(0.2)
    assert "can't be reached" in thread.take_warnings()[0]
    broken.error = None
    finish(thread)
    assert thread.is_complete
    assert "/runs/run/checkpoints/step-2/MANIFEST.json" in broken.store


def test_a_place_that_never_works_is_recorded(folder: RunFolder, broken: type[Broken]) -> None:
    broken.error = OSError("quota of s3://user:secret@host used up")
    folder.write_json("results.json", {"status": "finished"})
    thread = Mirror(folder, "broken://runs")
    thread.start()
    finish(thread)
    assert not thread.is_complete
    recorded = json.loads((folder.path / "results.json").read_text())["mirror"]
    assert recorded["complete"] is False
    assert "quota of" in recorded["error"]
    assert "secret" not in recorded["error"]


def test_training_does_not_wait_for_a_slow_place(folder: RunFolder, broken: type[Broken]) -> None:
    """Checkpoints come and go while the first is being copied; the copy then takes the newest."""
    commit(folder, 1, 1)
    broken.gate.clear()
    thread = Mirror(folder, "broken://runs")
    thread.start()
    start = time.perf_counter()
    for step in range(2, 12):
        commit(folder, step, step)
        thread.update()
    assert time.perf_counter() - start < 5
    assert not broken.store
    broken.gate.set()
    finish(thread)
    assert {path.split("/")[4] for path in broken.store if "/checkpoints/step" in path} == {"step-11"}


# Commands ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without interruption."""
    return train(zygote, write_spec(tmp_path_factory.mktemp("reference")))


def start(zygote: Zygote, cwd: Path, *arguments: str) -> int:
    done = zygote.run(*arguments, cwd=cwd)
    assert done.code == 0, done.stderr
    return done.code


def test_a_run_that_lost_its_machine_goes_on_from_its_mirror(zygote: Zygote, reference: Path, tmp_path: Path) -> None:
    """It is interrupted, everything here is deleted, and it goes on elsewhere, to the bits of one run."""
    spec = write_spec(tmp_path)
    far = (tmp_path / "far").as_uri()
    mirrored = ("--set", f"checkpoint.mirror={far}")
    begun = zygote.start("run", str(spec), "--out", "first", *mirrored, cwd=tmp_path)
    while not (tmp_path / "first/checkpoints/step-2").exists() and begun.poll() is None:
        time.sleep(0.01)
    begun.send(signal.SIGTERM)
    assert begun.wait() == 143
    stopped = max(steps(tmp_path / "far/first"))
    assert stopped == max(steps(tmp_path / "first")), "the checkpoint of the signal is there before the command ends"
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "elsewhere").mkdir()
    start(zygote, tmp_path / "elsewhere", "resume", f"{far}/first")
    folder = tmp_path / "elsewhere/runs/first"
    assert bits(zygote, folder) == bits(zygote, reference)
    assert [line["step"] for line in log(folder, "update")] == list(range(1, 10))
    assert log(folder, "start")[-1]["resumed_from"] == stopped
    assert results(folder)["mirror"] == {"url": f"{far}/first", "complete": True, "checkpoint": "step-9"}
    assert results(tmp_path / "far/first") == results(folder)
    assert steps(tmp_path / "far/first") == steps(folder)

    copied = zygote.run("fetch", f"{far}/first", "--out", "copy", cwd=tmp_path)
    assert (copied.code, copied.stdout) == (0, "copy\n")
    refused = zygote.run("evaluate", f"{far}/first", cwd=tmp_path)
    assert refused.code == 2
    assert f"recipe fetch {far}/first" in refused.stderr
    wrong = zygote.run("fetch", far, cwd=tmp_path)
    assert wrong.code == 2
    assert "is not the copy of a run: it has no run.json; runs in it: first" in wrong.stderr


SLOW = """
import sys, time
from taskrecipe.cli import main
from taskrecipe.remote.storage import Storage

write = Storage.write
def write_slowly(self, name, source):
    content = source.read()
    for end in (len(content) // 3, len(content)):
        import io
        write(self, name, io.BytesIO(content[:end]))
        time.sleep(0.004)
Storage.write = write_slowly
sys.argv = {arguments!r}
main()
"""


@pytest.mark.parametrize(("trials", "most"), [(1, 1), pytest.param(12, 6, marks=pytest.mark.chaos)])
def test_killed_while_copying_a_run_goes_on_from_its_mirror(
    trials: int, most: int, zygote: Zygote, reference: Path, tmp_path: Path
) -> None:
    """The local folder is deleted after each kill, so that the mirror is all there is."""
    spec, chance = write_spec(tmp_path), random.Random(trials)
    expected = bits(zygote, reference)
    for trial in range(trials):
        far, kills = tmp_path / f"far-{trial}", 0
        arguments = ["recipe", "run", str(spec), "--out", "run", "--set", f"checkpoint.mirror={far.as_uri()}"]
        while True:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            done = zygote.start(cwd=tmp_path, code=SLOW.format(arguments=arguments))
            if kills < most:
                time.sleep(chance.uniform(1.0, 3.0))
                done.send(signal.SIGKILL)
            if done.wait() == 0:
                break
            assert done.code == -signal.SIGKILL, done.stderr
            kills += 1
            if find_states(far / "run"):
                arguments = ["recipe", "resume", f"{far.as_uri()}/run", "--out", "run"]
            else:
                shutil.rmtree(far, ignore_errors=True)
        assert bits(zygote, tmp_path / "run") == expected
        assert [line["step"] for line in log(tmp_path / "run", "update")] == list(range(1, 10))
        assert results(tmp_path / "run")["mirror"]["complete"]


def find_states(place: Path) -> list[int]:
    """The whole checkpoints of a run at a mirror."""
    found = []
    for path in place.glob("checkpoints/step-*"):
        try:
            found.append(Checkpoint.read(path).step)
        except DamagedCheckpointError:
            continue
    return found


IN_MEMORY = """
import json, shutil
from taskrecipe import fetch, resume, train

settings = {"checkpoint.mirror": "memory://bucket/runs"}
first = train("spec.toml", out="first", quiet=True, set={**settings, "train.updates": 4})
shutil.rmtree("first")
longer = {"set": {"train.updates": 9}, "allow": ["train.updates"]}
resumed = resume("memory://bucket/runs/first", out="second", quiet=True, **longer)
copy = fetch("memory://bucket/runs/first", "third")
assert copy.results == resumed.results, (copy.results, resumed.results)
assert resumed.results["mirror"]["url"] == "memory://bucket/runs/first"
"""


def test_python_can_resume_and_fetch_from_a_url(zygote: Zygote, tmp_path: Path) -> None:
    write_spec(tmp_path)
    done = zygote.run_code(IN_MEMORY, tmp_path)
    assert done.code == 0, done.stderr
    assert bits(zygote, tmp_path / "second") == bits(zygote, tmp_path / "third")


@pytest.mark.chaos
@pytest.mark.parametrize("shard", ["none", "full"])
def test_several_processes_have_one_mirror(shard: str, zygote: Zygote, tmp_path: Path) -> None:
    spec, far = write_spec(tmp_path, dropout=0.0), (tmp_path / "far").as_uri()
    options = ("--processes", "2", "--set", f'launch.shard="{shard}"')
    shorter = ("--set", "train.updates=5", "--set", f"checkpoint.mirror={far}")
    first = train(zygote, spec, "first", *options, *shorter, "--set", "schedule.name=constant")
    assert steps(tmp_path / "far/first") == steps(first)
    shutil.rmtree(first)
    plain = train(zygote, spec, "plain", *options, "--set", "schedule.name=constant")
    longer = ("--set", "train.updates=9", "--allow", "train.updates")
    start(zygote, tmp_path, "resume", f"{far}/first", "--processes", "2", *longer)
    assert bits(zygote, tmp_path / "runs/first") == bits(zygote, plain)


def test_a_mirror_is_checked_where_it_stands(zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    text = spec.read_text()
    for given, message in (
        ("backup/runs", "[checkpoint].mirror must be a URL such as 's3://bucket/runs'"),
        ("s4://bucket", "has the unknown protocol 's4'"),
        ("https://user:word@host", "looks like a secret"),
    ):
        spec.write_text(text.replace("keep = 2", f'keep = 2\nmirror = "{given}"'))
        done = zygote.run("validate", str(spec), cwd=tmp_path)
        assert done.code == 2
        assert "spec.toml:22:10: error" in done.stdout
        assert message in done.stdout
    spec.write_text(text.replace("keep = 2", 'keep = 2\nmirror = "s3://bucket/runs"'))
    assert zygote.run("validate", str(spec), cwd=tmp_path).code == 0
    refused = zygote.run("run", str(spec), cwd=tmp_path)
    assert refused.code == 2
    assert "[checkpoint].mirror: s3:// needs the package 's3fs'" in refused.stderr


@pytest.mark.parametrize(
    ("url", "expected"),
    [("file://{0}", True), ("file://{0}/run", True), ("file://{0}/far", False), ("memory://runs", False)],
)
def test_a_folder_is_not_copied_into_itself(url: str, expected: bool, folder: RunFolder) -> None:
    given, warnings = url.format(folder.path.parent), list[str]()
    assert is_own_folder(folder, given) is expected
    if expected:
        Mirroring(folder, given).start(warnings)
        assert "holds this very folder, so nothing is copied there" in warnings[0]
