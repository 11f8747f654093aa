"""Running `recipe` as a user does, but without importing torch for each command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Started:
    """A command that was started."""

    zygote: Zygote
    pid: int
    stdout_path: Path
    stderr_path: Path
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.zygote.ask({"poll": self.pid})
        return self.code

    def wait(self, timeout: float = 120.0) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
                raise TimeoutError(f"still running after {timeout} s:\n{self.stderr[-2000:]}")
            time.sleep(0.01)
        assert self.code is not None
        return self.code

    def send(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text() if self.stdout_path.exists() else ""

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text() if self.stderr_path.exists() else ""


class Zygote:
    """The process that commands are forked from."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.count = folder, 0
        self.environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.support.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )
        assert self._read() == "ready\n"

    def start(
        self,
        *arguments: str,
        cwd: Path,
        stderr: Path | None = None,
        merged: bool = False,
        code: str | None = None,
        constraints: dict[str, Any] | None = None,
        **env: str,
    ) -> Started:
        """Start a command. Its errors go into `stderr`, a file or a named pipe; by default into a new file.

        With `merged` they go where its output goes. With `code`, that Python code is run instead of a command.
        `constraints` make its environment worse: see `tests.support.constraints`.
        """
        self.count += 1
        out, err = (self.folder / f"{self.count}.{name}" for name in ("stdout", "stderr"))
        err = stderr or (out if merged else err)
        request = {"arguments": arguments, "cwd": str(cwd), "env": env, "stdout": str(out), "stderr": str(err)}
        request |= {"constraints": constraints} if constraints is not None else {}
        request |= {"code": code} if code is not None else {}
        return Started(self, self.ask(request), out, err)

    def run(self, *arguments: str, cwd: Path, timeout: float = 120.0, merged: bool = False, **env: str) -> Started:
        started = self.start(*arguments, cwd=cwd, merged=merged, **env)
        started.wait(timeout)
        return started

    def run_code(self, code: str, cwd: Path, timeout: float = 120.0, **env: str) -> Started:
        """Run Python code in a process that has imported torch already."""
        started = self.start(cwd=cwd, code=code, **env)
        started.wait(timeout)
        return started

    def ask(self, request: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self._read())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()
