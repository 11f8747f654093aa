"""Fills small disks with checkpoints, as root of a mount namespace: FOLDER. Prints at which save each was full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taskrecipe.errors import DiskFullError
from taskrecipe.run.folder import RunFolder
from tests.support.checkpointing import contents, names, store, told_step

SIZE = 2**20
CHECKPOINT = 3 * SIZE


def mount(folder: Path, size: int, *options: str) -> None:
    settings = ",".join([*options, f"size={size}"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", settings, "tmpfs", str(folder)], check=True)


def fill(folder: Path, fits: int) -> None:
    """Commit until nothing more fits, look at what is left, then make room and go on."""
    folder.mkdir()
    mount(folder, fits * CHECKPOINT + SIZE)
    checkpoints = store(folder / "checkpoints", keep=9)
    for step in range(1, fits + 1):
        checkpoints.commit(step, contents(step, SIZE), best=1)
    full = fits + 1
    needed = sum(map(len, contents(full, SIZE).values()))
    with pytest.raises(DiskFullError, match=f"step-{full}: {needed:,} bytes are needed"):
        checkpoints.commit(full, contents(full, SIZE), best=1)
    assert all(told_step(store(folder / "checkpoints").at(f"step-{step}")) == step for step in range(1, full))
    assert not [name for name in names(folder / "checkpoints") if name.startswith(".")]
    mount(folder, 2 * full * CHECKPOINT, "remount")
    assert told_step(checkpoints.commit(full, contents(full, SIZE), best=1)) == full
    print(full)


def fill_run_folder(folder: Path) -> None:
    """Whatever doesn't fit any more leaves what was there before it."""
    folder.mkdir()
    mount(folder, SIZE)
    run = RunFolder.create("name", folder)
    run.write_json("results.json", {"status": "before"})
    run.log({"event": "start", "step": 0})
    filler = (folder / "filler").open("wb", buffering=0)
    try:
        while filler.write(bytes(1000)):
            pass
    except OSError:
        filler.close()
    with pytest.raises(DiskFullError, match=r"log\.jsonl"):
        run.log({"event": "update", "step": 1, "text": "x" * 5000})
    with pytest.raises(DiskFullError, match=r"results\.json"):
        run.write_json("results.json", {"status": "x" * 5000})
    assert run.read_json("results.json") == {"status": "before"}
    (folder / "filler").unlink()
    run.log({"event": "update", "step": 2})
    assert list(run.read_log()) == [{"event": "start", "step": 0}, {"event": "update", "step": 2}]


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for earlier in (0, 1, 2):
        fill(root / str(earlier), earlier)
    fill_run_folder(root / "run")
