"""The README shows real output: every `$ command` of its console blocks is run, and must print what stands there.

`make readme` writes the output of today into it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(console|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def rewritten(text: str) -> str:
    """The text with the output of every command in it; a TOML block that begins with a file's name is that file."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "specs").symlink_to(ROOT / "specs")

        def block(found: re.Match[str]) -> str:
            kind, body = found.groups()
            if kind == "console":
                commands = [line for line in body.splitlines() if line.startswith("$ ")]
                return "\n".join(["```console", *(_with_output(command, place) for command in commands), "```"])
            if name := re.match(r"# ([a-z]+\.toml)\n", body):
                (place / name[1]).write_text(body)
            return found[0]

        return BLOCK.sub(block, text)


def _with_output(command: str, place: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command.removeprefix("$ ")],
        cwd=place,
        env={**os.environ, "PATH": path, "COLUMNS": "100", "TASKRECIPE_DISABLE_PLUGINS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"{command}\n{done.stdout}".rstrip("\n")


def test_every_command_prints_what_the_readme_says():
    text = README.read_text()
    assert text.count("\n$ recipe") > 10
    assert rewritten(text) == text


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
