"""Pages that show commands: run every command and snippet of a page, and write what it prints today.

Blocks are run in order, in one folder:

- `console`: lines that begin with `$ ` are commands, the lines below are what they print. In these, `…` stands for any
  text, and a line that is only `…` for any lines.
- `python`: code that must not fail. A block `output` below it holds what it prints.
- Any block with a file's name is that file: in a comment on its first line (`# wrong.toml`) or as `title="wrong.toml"`.
- `sh`: commands that can't be run by a test. Those that begin with `recipe` are parsed: see `parse_command`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import Zygote

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r'# ([\w-]+\.toml)\n|title="([\w./-]+)"')
ENVIRONMENT = {"COLUMNS": "100", "TASKRECIPE_DISABLE_PLUGINS": "1", "OMP_NUM_THREADS": "1"}
SHELL_SYNTAX = re.compile(r"[|<>&;$*`]")


@dataclass
class PageRunner:
    """Runs the blocks of a page in `place`."""

    place: Path
    zygote: Zygote

    def rewrite(self, text: str) -> str:
        """Return the page with the output of today. What is shown stays if it still fits."""
        printed = ""

        def block(found: re.Match[str]) -> str:
            nonlocal printed
            kind, options, body = found.groups()
            if name := FILE_NAME.match(body) or FILE_NAME.search(options):
                path = self.place / next(filter(None, name.groups()))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body)
            elif kind == "console":
                return f"```console{options}\n{self._run_console(body)}\n```"
            elif kind == "python":
                printed = self._run_python(body)
            elif kind == "output":
                return found[0] if fits(body, printed) else f"```output{options}\n{printed.rstrip()}\n```"
            elif kind == "sh":
                for line in filter(None, body.splitlines()):
                    parse_command(line)
            return found[0]

        return BLOCK.sub(block, text)

    def _run_console(self, body: str) -> str:
        parts = re.split(r"^(?=\$ )", body, flags=re.MULTILINE)
        return "\n".join(self._run_command(*part.rstrip("\n").partition("\n")[::2]) for part in parts if part)

    def _run_command(self, line: str, shown: str) -> str:
        command = line.removeprefix("$ ").partition("   # ")[0]
        printed = self._run_recipe(command) if self._is_plain(command) else self._run_shell(command)
        return f"{line}\n{shown if fits(shown, printed) else printed}".rstrip("\n")

    @staticmethod
    def _is_plain(command: str) -> bool:
        return command.startswith("recipe ") and not SHELL_SYNTAX.search(command)

    def _run_recipe(self, command: str) -> str:
        done = self.zygote.run(*shlex.split(command)[1:], cwd=self.place, merged=True, **ENVIRONMENT)
        return done.stdout

    def _run_shell(self, command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.place,
            env={**os.environ, **self.zygote.environment, **ENVIRONMENT, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def _run_python(self, code: str) -> str:
        done = self.zygote.run_code(code, cwd=self.place, **ENVIRONMENT)
        assert done.code == 0, f"{code}\n{done.stderr}"
        return done.stdout


def fits(shown: str, printed: str) -> bool:
    """Whether what is shown is what was printed; `…` stands for anything."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", "[^\n]*?") + r"\n"
        for line in shown.rstrip("\n").split("\n")
    )
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n") is not None


def parse_command(line: str) -> None:
    """Raise if a line is a `recipe` command that doesn't exist, or has an option that it doesn't take."""
    import typer

    from taskrecipe.cli.app import app

    words = shlex.split(line, comments=True)
    if words[:3] == ["python", "-m", "taskrecipe"] or ("-m" in words and "taskrecipe" in words):
        words = ["recipe", *words[words.index("taskrecipe") + 1 :]]
    if words[:1] == ["recipe"]:
        command = typer.main.get_command(app).commands[words[1]]  # type: ignore[attr-defined]
        command.make_context(words[1], words[2:])
