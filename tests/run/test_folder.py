from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from taskrecipe.errors import UsageError
from taskrecipe.report.run_files import read_weights
from taskrecipe.run.environment import describe_environment
from taskrecipe.run.folder import RunFolder


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(out: str = "run") -> RunFolder:
    return RunFolder.create("name", Path(out))


# Where --------------------------------------------------------------------------------------------------


def test_runs_of_one_name_get_a_folder_each():
    folders = [RunFolder.create("mrpc") for _ in range(3)]
    assert [str(folder.path) for folder in folders] == ["runs/mrpc", "runs/mrpc-2", "runs/mrpc-3"]
    assert [folder.name for folder in folders] == ["mrpc", "mrpc-2", "mrpc-3"]
    assert len({folder.run_id for folder in folders}) == 3


@pytest.mark.parametrize("name", ["", ".", "..", "...", "a/b", "../x", "x" * 65, "a b", "a\0", "~"])
def test_a_name_that_could_lead_elsewhere_is_refused(name: str):
    with pytest.raises(UsageError, match="can't be a run's name"):
        RunFolder.create(name)
    assert not Path("runs").exists()


def test_a_folder_that_is_asked_for_is_made_with_its_parents(tmp_path: Path):
    assert _run("a/b").path == tmp_path / "a" / "b"


def test_an_empty_folder_may_be_asked_for():
    Path("empty").mkdir()
    assert _run("empty").path.name == "empty"


def test_a_folder_with_something_in_it_is_left_as_it_is():
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty and not a run"):
        _run("full")
    assert [path.name for path in Path("full").iterdir()] == ["notes.txt"]


def test_a_folder_with_a_run_in_it_points_to_resuming():
    with _run() as run:
        run.log({"event": "start", "step": 0})
    with pytest.raises(UsageError, match=r"already holds a run: continue it with `recipe resume .*run`"):
        _run()


@pytest.mark.parametrize("left", [[".spec.toml.tmp"], ["spec.toml", "environment.json"]], ids=["killed", "refused"])
def test_a_folder_of_a_run_that_never_began_may_be_used(left: list[str]):
    """As a kill in the first moment leaves it, or data that doesn't fit: there is nothing to resume, or to lose."""
    first = _run()
    first.close()
    for name in left:
        (first.path / name).touch()
    with _run() as again:
        assert again.run_id != first.run_id


def test_a_name_whose_run_never_began_is_used_again():
    first = RunFolder.create("mrpc")
    first.write_text("spec.toml", "a = 1")
    (first.path / "sample").mkdir()
    first.close()
    with RunFolder.create("mrpc") as again:
        assert again.path == first.path
        assert {path.name for path in again.path.iterdir()} == {".lock", ".lock-holder.json", "run.json"}


def test_a_spec_without_a_run_is_not_overwritten():
    Path("mine").mkdir()
    Path("mine/spec.toml").write_text("mine")
    with pytest.raises(UsageError, match="not empty and not a run"):
        _run("mine")
    assert Path("mine/spec.toml").read_text() == "mine"


# Discarding ---------------------------------------------------------------------------------------------


def test_a_run_that_fails_before_its_first_update_leaves_nothing():
    run = RunFolder.create("name", Path("a/run"))
    run.write_text("spec.toml", "a = 1")
    run.checkpoints.mkdir()
    run.log({"event": "start", "step": 0})
    assert run.discard()
    assert list(Path("a").iterdir()) == []
    with RunFolder.create("name", Path("a/run")):
        pass


def test_an_empty_folder_that_was_given_is_left_empty():
    Path("given").mkdir()
    assert _run("given").discard()
    assert list(Path("given").iterdir()) == []


@pytest.mark.parametrize("file", ["model", "checkpoints/step-1", "notes.txt"])
def test_what_someone_may_need_is_not_discarded(file: str):
    run = _run()
    (run.path / file).mkdir(parents=True)
    assert not run.discard()
    assert (run.path / file).exists()
    assert (run.path / "run.json").exists()


def test_a_run_with_updates_is_not_discarded():
    run = _run()
    run.log({"event": "update", "step": 1})
    assert not run.discard()
    assert (run.path / "log.jsonl").exists()


def test_a_folder_that_was_only_opened_is_not_discarded():
    _run().close()
    opened = RunFolder.open(Path("run"))
    opened.lock()
    assert not opened.discard()
    assert (opened.path / "run.json").exists()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("/", "name a new folder inside it"),
        ("/..", "name a new folder inside it"),
        ("~", "name a new folder inside it"),
        ("file", "is a file"),
        ("file/below", "can't make the run folder"),
        ("/proc/run", "can't make the run folder"),
        ("x" * 300, "can't make the run folder"),
        ("loop", "can't"),
        ("~nobody-of-that-name/x", "can't be a run folder"),
        ("a\0b", "can't be a run folder"),
    ],
)
def test_a_place_that_can_not_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError, match=message):
        _run(out)
    assert list(home.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="everything can be written by root")
def test_a_read_only_place_is_named():
    Path("locked").mkdir(mode=0o500)
    with pytest.raises(UsageError, match=r"can't make the run folder .*Permission denied"):
        _run("locked/run")


def test_a_run_is_found_again():
    made = _run()
    assert RunFolder.open(Path("run")).run_id == made.run_id


@pytest.mark.parametrize(
    ("marker", "message"),
    [(None, "is not the folder of a run: it has no run.json"), ("{", "is damaged"), ("[]", "is damaged")],
)
def test_a_folder_that_is_no_run_can_not_be_opened(marker: str | None, message: str):
    Path("other").mkdir()
    if marker is not None:
        Path("other/run.json").write_text(marker)
    with pytest.raises(UsageError, match=message):
        RunFolder.open(Path("other"))


def test_a_run_can_be_read_while_it_removes_checkpoints():
    run = _run()
    stop = threading.Event()

    def save_and_remove() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            checkpoint = run.checkpoints / f"step-{number}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "MANIFEST.json").write_text("{}")
            trash = checkpoint.rename(run.checkpoints / f".trash-{number}")
            shutil.rmtree(trash)

    training = threading.Thread(target=save_and_remove)
    training.start()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert RunFolder.open(run.path).run_id == run.run_id
            read_weights(run.path)
    finally:
        stop.set()
        training.join()


@pytest.mark.parametrize("marker", [None, "{"])
def test_a_run_whose_marker_is_lost_is_not_restarted_but_can_be_repaired(marker: str | None):
    run = RunFolder.create("mrpc")
    checkpoint = run.checkpoints / "step-3"
    checkpoint.mkdir(parents=True)
    (checkpoint / "MANIFEST.json").write_text(json.dumps({"run_id": run.run_id}))
    run.close()
    (run.path / "run.json").unlink() if marker is None else (run.path / "run.json").write_text(marker)
    with pytest.raises(UsageError, match="Its checkpoints are there: write") as caught:
        RunFolder.latest("mrpc")
    (run.path / "run.json").write_text(str(caught.value).split("write ")[1].split(" into")[0])
    found = RunFolder.latest("mrpc")
    assert found is not None
    assert found.run_id == run.run_id


def test_a_place_that_is_not_there_can_not_be_opened():
    with pytest.raises(UsageError, match=r"nowhere is not the folder of a run.*No such file"):
        RunFolder.open(Path("nowhere"))


# Whose --------------------------------------------------------------------------------------------------


def test_a_new_run_has_the_lock_until_it_is_closed():
    with _run() as made:
        other = RunFolder.open(made.path)
        with pytest.raises(UsageError, match=f"in use by process {os.getpid()}"):
            other.lock()
    other.lock()
    other.close()


# What ---------------------------------------------------------------------------------------------------


def test_a_file_is_the_old_or_the_new_one_and_nothing_else_is_left(monkeypatch: pytest.MonkeyPatch):
    run = _run()
    run.write_json("results.json", {"status": "old"})

    def killed(file: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            run.write_json("results.json", {"status": "new"})
    assert run.read_json("results.json") == {"status": "old"}
    assert {path.name for path in run.path.iterdir()} == {".lock", ".lock-holder.json", "run.json", "results.json"}


def test_files_can_be_read_by_those_whom_the_system_lets():
    run = _run()
    run.write_text("spec.toml", "a = 1\n")
    (run.path / "made.txt").touch()
    assert (run.path / "spec.toml").stat().st_mode == (run.path / "made.txt").stat().st_mode


def test_a_file_that_is_missing_or_damaged_is_named():
    run = _run()
    (run.path / "damaged.json").write_text("{")
    for name in ("missing.json", "damaged.json"):
        with pytest.raises(UsageError, match=name):
            run.read_json(name)


def test_the_log_grows_by_lines_that_others_see_at_once():
    run = _run()
    for step in range(3):
        run.log({"event": "update", "step": step, "loss": step / 3})
        last = (run.path / "log.jsonl").read_text().splitlines()[-1]
        assert json.loads(last) == {"event": "update", "step": step, "loss": step / 3}
    assert [record["step"] for record in run.read_log()] == [0, 1, 2]


def test_what_came_after_the_checkpoint_is_dropped_from_the_log():
    run = _run()
    for step in range(6):
        run.log({"event": "update", "step": step})
        run.log({"event": "evaluate", "step": step})
    with (run.path / "log.jsonl").open("a") as file:
        file.write('{"event": "update", "st')
    assert len(list(run.read_log())) == 12
    assert run.count_damaged_log_lines() == 1
    assert run.drop_log_after(3) == 1
    assert run.count_damaged_log_lines() == 0
    run.log({"event": "start", "step": 3})
    told = [(record["event"], record["step"]) for record in map(json.loads, _lines(run))]
    assert told == [(event, step) for step in range(4) for event in ("update", "evaluate")] + [("start", 3)]


def test_names_that_are_no_proper_text_can_be_told():
    run = _run()
    odd = {"event": "warning", "step": 0, "message": "file \udcff of größe 1"}
    run.log(odd)
    run.write_json("results.json", odd)
    assert list(run.read_log()) == [odd]
    assert run.read_json("results.json") == odd


def test_a_torn_line_alone_is_dropped_too():
    run = _run()
    run.log({"event": "start", "step": 0})
    with (run.path / "log.jsonl").open("a") as file:
        file.write('{"event": "end", "step": 0}')  # complete but for its end of line: more may have been to come
    run.drop_log_after(0)
    assert _lines(run) == ['{"event": "start", "step": 0}']


def test_a_long_log_is_cut_without_being_held_in_memory():
    run = _run()
    line = json.dumps({"event": "update", "step": 0, "text": "x" * 10_000})
    (run.path / "log.jsonl").write_text(f"{line}\n" * 2_000 + "damaged\n")
    tracemalloc.start()
    assert run.drop_log_after(0) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(_lines(run)) == 2_000
    assert peak < 2**20


def test_a_log_that_is_not_there_yet_is_empty():
    run = _run()
    run.drop_log_after(3)
    assert list(run.read_log()) == []


def _lines(run: RunFolder) -> list[str]:
    return (run.path / "log.jsonl").read_text().splitlines()


# The model ----------------------------------------------------------------------------------------------


def _export(run: RunFolder, text: str) -> None:
    with run.replacing_model() as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "config.json").write_text(text)


def _exported(run: RunFolder) -> str:
    return (run.model / "sub" / "config.json").read_text()


def test_a_model_takes_the_place_of_the_one_before_whole():
    run = _run()
    _export(run, "one")
    assert _exported(run) == "one"
    _export(run, "two")
    assert _exported(run) == "two"
    assert {path.name for path in run.path.iterdir()} == {".lock", ".lock-holder.json", "run.json", "model"}


def test_an_export_that_fails_leaves_the_one_before():
    run = _run()
    _export(run, "one")
    with pytest.raises(TypeError), run.replacing_model() as folder:
        (folder / "config.json").write_text(1)  # type: ignore[arg-type]
    assert _exported(run) == "one"
    assert {path.name for path in run.path.iterdir()} == {".lock", ".lock-holder.json", "run.json", "model"}


def test_a_kill_between_the_renames_of_an_export_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch):
    run = _run()
    _export(run, "one")
    real = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.name == ".tmp-model":
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            _export(run, "two")
    run.close()
    again = RunFolder.open(run.path)
    again.lock()
    assert _exported(again) == "one"
    _export(again, "three")
    assert _exported(again) == "three"


# Secrets ------------------------------------------------------------------------------------------------


def test_no_canary_gets_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    canaries = {"HF_TOKEN": "canary-1-hf-token", "WANDB_API_KEY": "canary-2-wandb", "MY_PASSWORD": 'canary-3-äö"\\'}
    for name, value in canaries.items():
        monkeypatch.setenv(name, value)
    repository = tmp_path / "repository"
    repository.mkdir()
    for command in (
        "git init -q",
        "git remote add origin https://me:canary-4-remote@host/x.git",
        "git -c user.name=canary-5 -c user.email=canary-6 commit -q --allow-empty -m first",
    ):
        subprocess.run(command.split(), check=True, cwd=repository)
    run = _run()
    spread = " ".join(canaries.values())
    run.write_json("environment.json", describe_environment(repository) | {"note": spread})
    run.write_text("spec.toml", f"a = '{spread}'\n")
    run.write_json("results.json", {"error": [spread], spread: 1})
    run.log({"event": "warning", "step": 0, "message": spread})
    assert run.read_json("environment.json")["git"]["remote"] == "https://[redacted]@host/x.git"
    written = [path for path in run.path.rglob("*") if path.is_file()]
    assert len(written) == 7
    for path in written:
        assert "canary" not in path.read_text()


@pytest.mark.parametrize("name", ["run.json", "log.jsonl", "model/config.json", "checkpoints/step-1/state.json"])
def test_a_named_pipe_among_the_files_is_refused_and_not_waited_for(name: str, tmp_path: Path):
    RunFolder.create("name", tmp_path / "run").close()
    (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "run" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(UsageError, match="is not a regular file; remove it"):
        RunFolder.open(tmp_path / "run")


def test_a_folder_left_before_its_spec_was_written_is_used_again(tmp_path: Path) -> None:
    RunFolder.create("run", tmp_path / "run").close()
    (tmp_path / "run" / "checkpoints").mkdir()
    RunFolder.create("run", tmp_path / "run").close()
    (tmp_path / "run" / "checkpoints" / "step-1").mkdir()
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create("run", tmp_path / "run")
