"""Starts two runs in one folder at the same moment, again and again: FOLDER ROUNDS. Prints what each pair got."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from taskrecipe.errors import UsageError
from taskrecipe.run.folder import RunFolder


def start(folder: Path, moment: float, report: int) -> None:
    """Try to have the folder, tell how it went, and hold it until killed."""
    while time.monotonic() < moment:
        pass
    try:
        run = RunFolder.create("name", folder)
        answer = f"have {run.run_id}"
    except UsageError as error:
        answer = f"refused {error}"
    os.write(report, f"{answer}\n".encode())
    signal.pause()


def one_round(folder: Path) -> list[str]:
    reading, writing = os.pipe()
    moment = time.monotonic() + 0.02
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            start(folder, moment, writing)
        children.append(child)
    answers = b""
    while answers.count(b"\n") < 2:
        answers += os.read(reading, 1 << 16)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return answers.decode().splitlines()


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        print("\t".join(sorted(one_round(Path(sys.argv[1]) / str(number)))))
