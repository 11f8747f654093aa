"""Read the settings of a training: a command line, a shell script, a JSON or YAML file, an Accelerate config."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskrecipe.errors import UsageError

LARGEST_FILE = 2**20
_SCRIPT = re.compile(r"(?:.*/)?(run_\w+)\.py")
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_PICKLES = (".bin", ".pt", ".pth", ".pkl")
_LOAD = "torch.load('training_args.bin', weights_only=False)"
_DUMP = f'python -c "import torch; print({_LOAD}.to_json_string())" > args.json'
_ACCELERATE = {"compute_environment", "distributed_type"}


@dataclass
class Arguments:
    """The settings of a training by the names that the Trainer has for them."""

    values: dict[str, Any] = field(default_factory=dict)
    script: str | None = None
    """The example script, such as `run_glue`, if it is known."""
    source: str = "the command line"
    launched: dict[str, Any] = field(default_factory=dict)
    """Settings that were given to the launcher, not to the script."""

    @property
    def has_trainer(self) -> bool:
        """Whether the Trainer runs the loop, and its defaults hold."""
        return not (self.script or "").endswith("_no_trainer")


def read_words(words: Sequence[str]) -> Arguments:
    """Read a command line: a launcher, a script, and its options, of which the first two may be missing."""
    words = list(words)
    found = [(place, match) for place, word in enumerate(words) if (match := _SCRIPT.fullmatch(word))]
    if not found:
        own_script = [place for place, word in enumerate(words) if word.endswith(".py")]
        return Arguments(_read_options(words[own_script[0] + 1 :] if own_script else words))
    at, match = found[0]
    launched = _read_options([word for word in words[:at] if word != "-m"])
    after = words[at + 1 :]
    if after and not after[0].startswith("-") and after[0].endswith((".json", ".yaml", ".yml")):
        return Arguments(_read_table(Path(after[0])), match[1], f"{words[at]} {after[0]}", launched)
    return Arguments(_read_options(after), match[1], words[at], launched)


def read_file(path: Path) -> Arguments:
    """Read a file of settings, by its ending and content."""
    if path.suffix in _PICKLES:
        raise UsageError(
            f"{path} is a pickle, which runs code when it is opened; where you trust it, write it as JSON and convert "
            f"that: {_DUMP}"
        )
    if path.suffix in (".json", ".yaml", ".yml"):
        values = _read_table(path)
        if values.keys() >= _ACCELERATE:
            return Arguments({}, None, path.name, _from_accelerate(values))
        return Arguments(values, None, path.name)
    arguments = read_words(_read_script(_read_text(path)))
    arguments.source = path.name if arguments.script is None else f"{arguments.source} in {path.name}"
    return arguments


def _read_text(path: Path) -> str:
    try:
        if os.stat(path).st_size > LARGEST_FILE:  # noqa: PTH116 - also of what is no regular file
            raise UsageError(f"{path} is larger than {LARGEST_FILE} bytes; it can't be a file of settings")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text; a command line, JSON or YAML can be converted") from None
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from None


def _read_table(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    try:
        if path.suffix == ".json":
            values = json.loads(text)
        else:
            import yaml

            values = yaml.safe_load(text)
    except Exception as error:  # each parser has errors of its own, RecursionError among them
        raise UsageError(f"{path} is not valid {path.suffix[1:].upper()}: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UsageError(f"{path} must hold a table of settings by name")
    return values


def _read_script(text: str) -> list[str]:
    """Return the words of the command in a shell script that names a training script, with variables filled in."""
    variables: dict[str, str] = {}
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        filled = re.sub(r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], found[0]), line)
        try:
            words = shlex.split(filled, comments=True)
        except ValueError:
            raise UsageError(f"can't read this line of the script: {line.strip()[:100]}") from None
        if words and (assigned := _ASSIGNMENT.fullmatch(" ".join(words))):
            variables[assigned[1]] = assigned[2]
        elif words:
            commands.append(words)
    trained = [words for words in commands if any(word.endswith(".py") for word in words)]
    if len(trained) != 1:
        raise UsageError(f"the script must run one Python script; found {len(trained)}")
    return trained[0]


def _read_options(words: Sequence[str]) -> dict[str, Any]:
    """Return options and their values; one without a value is true, one with several is a list."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in _split_at_equals(words):
        if re.match(r"--?[A-Za-z]", word):
            name = word.lstrip("-").replace("-", "_")
            found[name] = []
        elif name:
            found[name].append(word)
    return {name: _parse_values(values) for name, values in found.items()}


def _split_at_equals(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        name, equals, value = word.partition("=")
        yield from (name, value) if equals and word.startswith("--") else (word,)


def _parse_values(values: list[str]) -> Any:
    if not values:
        return True
    return parse_scalar(values[0]) if len(values) == 1 else [parse_scalar(value) for value in values]


def parse_scalar(text: str) -> Any:
    """Return a number, a boolean, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _from_accelerate(values: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an Accelerate config that are there and mean something."""
    ignored = {"compute_environment", "debug", "main_training_function", "same_network", "enable_cpu_affinity"}
    ignored |= {"downcast_bf16", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "rdzv_backend", "machine_rank"}
    empty: tuple[Any, ...] = (None, [], {}, "", "no", "NO", "all", "MULTI_GPU", "MULTI_CPU")
    kept = {key: value for key, value in values.items() if key not in ignored and value not in empty}
    return {key: value for key, value in kept.items() if (key, value) != ("num_machines", 1)}
