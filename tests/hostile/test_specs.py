"""Hostile specs through the command: a message, the right exit code, at once, and nothing is changed.

To add a case, add a line to a table: a name, the content of `spec.toml` (or a function that sets up the folder), the
exit code, and words of the message. Every case runs in this process, in an empty folder.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from taskrecipe import SpecError, validate
from taskrecipe.cli import main
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.spec import Spec

SECRET = "hunter2hunter2"
GOOD = """\
spec_version = 1
recipe = "glue"
[task]
name = "mrpc"
[model]
name = "some/model"
[data]
path = "some/data"
[train]
epochs = 3
batch_size = 32
learning_rate = 5e-5
"""
TOP = "spec_version = 1\n"


def put(line: str, table: str = "", text: str = GOOD) -> str:
    """Return the good spec with a line added to a table, or before all tables; a key that is there is replaced."""
    key = line.partition("=")[0].strip()
    section, rest = (text, "") if not table else text.split(f"[{table}]\n", 1)
    if table:
        body = re.sub(rf"(?m)^{re.escape(key)} = .*\n", "", rest.partition("\n[")[0] + "\n", count=1)
        _, mark, after = rest.partition("\n[")
        return f"{section}[{table}]\n{line}\n{body}{mark[1:]}{after}"
    return f"{line}\n{re.sub(rf'(?m)^{re.escape(key)} = .*{chr(10)}', '', text, count=1) if key in text else text}"


def more(text: str) -> str:
    """Return the good spec with text added at its end."""
    return f"{GOOD}{text}\n"


def link(target: str) -> Callable[[], None]:
    """Make spec.toml a link."""
    return lambda: Path("spec.toml").symlink_to(target)


def parent(content: str | bytes | Callable[[], object], name: str = "base.toml") -> Callable[[], None]:
    """Make a good spec that extends a file of that content."""

    def set_up() -> None:
        if callable(content):
            content()
        else:
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        Path("spec.toml").write_text(f'extends = "{name}"\n{GOOD}')

    return set_up


def folder_of(path: str) -> Callable[[], None]:
    """Make a folder with a file for training, and a spec whose [data].path names it."""

    def set_up() -> None:
        Path(path).mkdir(parents=True)
        Path(path, "train.csv").write_text("sentence1,sentence2,label\n")
        Path("spec.toml").write_text(put(f'path = "{path}"', "data"))

    return set_up


def extends_many() -> None:
    for n in range(40):
        Path(f"p{n}.toml").write_text(f'extends = "p{n + 1}.toml"\nseed = 1\n')
    Path("p40.toml").write_text("seed = 1\n")
    Path("spec.toml").write_text(f'extends = "p0.toml"\n{GOOD}')


def large_hole() -> None:
    with Path("spec.toml").open("wb") as file:
        file.truncate(10**11)


@dataclass(frozen=True)
class Case:
    name: str
    content: str | bytes | Callable[[], object]
    code: int
    words: str


NETRC = f"machine example.org login me password {SECRET}\n"
FILES = [
    ("no file", lambda: None, 2, "no such file"),
    ("empty", "", 2, "has no keys"),
    ("only a comment", "# nothing\n", 2, "has no keys"),
    ("a folder", lambda: Path("spec.toml").mkdir(), 2, "has no *.toml"),
    ("a FIFO", lambda: os.mkfifo("spec.toml"), 2, "not a regular file"),
    ("a socket's name", lambda: Path("spec.toml").symlink_to("/dev/null"), 2, "does not end in .toml"),
    ("a link to itself", link("spec.toml"), 2, "symbolic links"),
    ("a link to nothing", link("nowhere.toml"), 2, "no such file"),
    ("a link to /dev/zero", link("/dev/zero"), 2, "does not end in .toml"),
    ("a link to /proc/self/environ", link("/proc/self/environ"), 2, "does not end in .toml"),
    ("a link to /proc/self/mem", link("/proc/self/mem"), 2, "does not end in .toml"),
    ("a link to a file with a password", lambda: (Path("netrc").write_text(NETRC), link("netrc")()), 2, "is not read"),
    ("a hundred gigabytes", large_hole, 2, "larger than 1024 KiB"),
    ("UTF-16", GOOD.encode("utf-16"), 2, "UTF-16"),
    ("Latin-1", f"# {chr(233)}\n{GOOD}".encode("latin-1"), 2, "not UTF-8"),
    ("random bytes", bytes(range(256)), 2, "error[syntax]"),
    ("an ELF file", b"\x7fELF\x02\x01\x01" + bytes(100), 2, "error[syntax]"),
    ("a NUL at the end", GOOD + "\x00", 2, "error[syntax]"),
    ("a byte order mark", "\ufeff" + GOOD, 0, "no problems"),
    ("CRLF", GOOD.replace("\n", "\r\n"), 0, "no problems"),
    ("a lone carriage return", GOOD.replace("\n", "\r"), 2, "error[syntax]"),
    ("JSON", '{"recipe": "glue"}', 2, "error[syntax]"),
    ("YAML", "recipe: glue\ntrain:\n  epochs: 3\n", 2, "error[syntax]"),
    ("Python", "import os\nos.system('true')\n", 2, "error[syntax]"),
]
SIZES = [
    ("10 MB", f"a = '{'x' * 10_000_000}'", 2, "larger than 1024 KiB"),
    ("a string of 1 MB", put(f'name = "{"x" * 1_000_000}"', "model"), 2, "characters at most"),
    ("lists 5,000 deep", "a = " + "[" * 5000 + "]" * 5000, 2, "32 levels"),
    ("tables 5,000 deep", "a = " + "{ a = " * 5000 + "1" + " }" * 5000, 2, "32 levels"),
    ("a dotted key of 20,000 parts", ".".join("a" * 20_000) + " = 1", 2, "32 levels"),
    ("a header of 20,000 parts", "[" + ".".join("a" * 20_000) + "]", 2, "32 levels"),
    ("60,000 keys", "".join(f"k{n} = 1\n" for n in range(60_000)), 2, "more than 10000"),
    ("4,000 unknown keys", "".join(f"k{n} = 1\n" for n in range(4000)), 2, "is not a key"),
    ("a list of 9,000", put("callbacks = [" + "1," * 9000 + "]"), 2, "callbacks"),
    ("a key of 900,000 characters", "x" * 900_000 + " = 1", 2, "error["),
    ("5,000 digits", put("epochs = " + "9" * 5000, "train"), 2, "too many digits"),
    ("5,000 hexadecimal digits", put("epochs = 0x" + "f" * 5000, "train"), 2, "too many digits"),
    ("2,000 callbacks", more("[[callbacks]]\nname = 'x'\n" * 2000), 2, "callbacks must be a list of at most 64"),
    ("escapes of 600 KB", f'a = "{chr(92)}u0041' + "\\u0041" * 100_000 + '"', 2, "characters at most"),
]
NUMBERS = [
    *(
        (f"epochs {value}", put(f"epochs = {value}", "train"), 2, words)
        for value, words in [
            ("0", "at least 1"), ("-1", "at least 1"), (str(2**31), "at most 2147483647"),
            (str(2**63), "at most 2147483647"), (str(10**30), "at most 2147483647"), ("1.5", "an integer"),
            ('"3"', "did you mean 3?"), ("true", "an integer"),
            ("[]", "an integer"), ("{}", "an integer"), ("1979-05-27", "an integer"), ("07:32:00", "an integer"),
        ]
    ),
    *(
        (f"learning rate {value}", put(f"learning_rate = {value}", "train"), 2, "[train].learning_rate must be")
        for value in ("nan", "inf", "-inf", "0.0", "-1.0", "1e400", "true", '"1e-3"', "[]", "{}")
    ),
    ("65 bits where any number is allowed", more(f"[model.config]\nx = {2**64}"), 2, "an integer of 64 bits"),
    ("seed -1", put("seed = -1"), 2, "seed must be"),
    ("version 0", put("spec_version = 0"), 2, "no such version exists"),
    ("version 99", put("spec_version = 99"), 2, "newer taskrecipe"),
    ("version of many digits", put(f"spec_version = {10**300}"), 2, "spec_version"),
    ("a batch that can't be split", put("accumulate = 5", "train"), 2, "equal size"),
    ("warmup longer than training", more("updates = 3\n[schedule]\nwarmup = 4"), 2, "ends training after 3"),
    ("warmup of 1.5", more("[schedule]\nwarmup = 1.5"), 2, "[schedule].warmup must be"),
]  # fmt: skip
TEXTS = [
    ("an empty name", put('name = ""', "model"), 2, "not empty"),
    ("a NUL in a name", put('name = "a\\u0000b"', "model"), 2, "U+0000"),
    ("an escape in a name", put('name = "a\\u001b[31mb"', "model"), 2, "U+001B"),
    ("a direction mark in a name", put('name = "a\\u202eb"', "model"), 2, "U+202E"),
    ("an escape in a key", put('"a\\u001b[31m" = 1'), 2, "\\x1b[31m"),
    ("a line end in a key", put('"a\\nerror: no" = 1'), 2, "\\nerror: no"),
    ("an empty key", put('"" = 1'), 2, "is not a key"),
    ("a secret", put('name = "hf_abcdefghijklmnopqrstuvwxyz"', "model"), 2, "looks like a secret"),
    ("a secret as a key", put('"hf_abcdefghijklmnopqrstuvwxyz" = 1'), 2, "looks like a secret"),
    ("a password in a URL", put('name = "https://me:hunter2hunter2@x.org/m"', "model"), 2, "looks like a secret"),
    *(
        (f"a run called {name}", put(f'name = "{name}"'), 2, "name must be text that matches")
        for name in ("../../x", "/", "~", "..", "a/b", "x" * 65, "a b", "-rf")
    ),
]
STRUCTURE = [
    ("a key twice", put("epochs = 3\nepochs = 4", "train"), 2, "already given"),
    ("a table twice", more("[train]"), 2, "already given"),
    ("a table that is a number", "train = 3\n" + GOOD.partition("[train]")[0], 2, "train must be a table"),
    ("a number that is a table", GOOD.replace("epochs = 3", "epochs.x = 3"), 2, "must be an integer"),
    ("a list of tables for a table", GOOD.replace("[train]", "[[train]]"), 2, "train must be a table"),
    ("an unclosed string", put('name = "x', "model"), 2, "error[syntax]"),
    ("no recipe", GOOD.replace('recipe = "glue"\n', ""), 2, "needs 'recipe'"),
    ("no version", GOOD.replace(TOP, ""), 2, "needs 'spec_version'"),
    ("no train", GOOD.partition("[train]")[0], 2, "the table [train] is missing"),
    ("an unknown recipe", put('recipe = "gleu"'), 2, "did you mean 'glue'?"),
    ("a recipe that is a list", put('recipe = ["glue"]'), 2, "recipe must be text"),
    ("a module as recipe", put('recipe = "os:system"'), 2, "no recipe is called"),
    ("an unknown optimizer", more("[optimizer]\nname = 'adamv'"), 2, "did you mean 'adamw'?"),
    ("an unknown metric", more("[evaluate]\nbest = 'f2'"), 2, "reports accuracy, f1, loss"),
    ("an unknown split", more("[evaluate]\nsplits = ['xyzzy']"), 2, "names the split 'xyzzy'"),
    ("remote code", put("trust_remote_code = true", "model"), 2, "code of a hub repository is never run"),
    ("an unknown key in a list", more("[[callbacks]]\nname = 'time_limit'\nminutes = 1.0\nx = 1"), 2, "is not a key"),
    *(
        (f"an unknown key in {table}", more(f"[{table}]\nxyzzy = 1") if table not in GOOD else put("xyzzy = 1", table),
         2, "'xyzzy' is not a key")
        for table in ("task", "model", "data", "train", "optimizer", "schedule", "evaluate", "checkpoint", "log",
                      "launch")
    ),
    *(
        (f"a time for {key}", put(f"{key} = 07:32:00") if key not in ("task", "model", "data", "train") else
         put(f"{key} = 07:32:00", "", re.sub(rf"\[{key}\]\n(?:[a-z].*\n)*", "", GOOD)), 2, "error[")
        for key in Spec.model_fields
    ),
]  # fmt: skip
MEANT = [
    ("Trainer: num_train_epochs", put("num_train_epochs = 3", "", GOOD.replace("epochs = 3\n", "")), 2,
     "train.epochs = 3"),
    ("Trainer: bf16", put("bf16 = true"), 2, 'train.precision = "bf16"'),
    ("Trainer: warmup_ratio", put("warmup_ratio = 0.1"), 2, "schedule.warmup = 0.1"),
    ("Trainer: output_dir", put('output_dir = "x"'), 2, "recipe run --out FOLDER"),
    ("Trainer: a list", put("num_train_epochs = []", "", GOOD.replace("epochs = 3\n", "")), 2, "[train].epochs"),
    ("batch_size twice", f"batch_size = 8\n{GOOD}", 2, "is set in [train] already, line 12"),
    ("an unread column", more("[data.columns]\nsentense1 = 'a'"), 2, "did you mean 'sentence1'?"),
    ("columns the wrong way round", more("[data.columns]\ntext = 'label'"), 2, 'label = "text"'),
    ("files of an unused split", put('files = { train = "a.csv", dev = "b.csv" }', "data",
                                    GOOD.replace('path = "some/data"\n', "")), 2, "did you mean 'validation'?"),
    ("a folder as path", folder_of("mine"), 2, "[data.files] train = 'mine/train.csv'"),
    ("a folder of two names as path", folder_of("some/rows"), 2, "is a folder on this machine"),
    ("a local path", put('path = "./mine"', "data"), 2, "[data.files]"),
    ("a path and files", put('files = { train = "a.csv" }', "data"), 2, "not both"),
]  # fmt: skip
PARENTS = [
    ("a parent that is not there", put('extends = "x.toml"'), 2, "no such file"),
    ("a parent that is itself", put('extends = "spec.toml"'), 2, "without end"),
    ("a parent that is a folder", put('extends = "."'), 2, "it is a folder"),
    ("a parent that is a number", put("extends = 3"), 2, "must be the name of a spec"),
    ("/proc/self/environ as parent", put('extends = "/proc/self/environ"'), 2, "must end in .toml"),
    ("/dev/zero as parent", put('extends = "/dev/zero"'), 2, "must end in .toml"),
    ("/etc/passwd as parent", put('extends = "/etc/passwd"'), 2, "must end in .toml"),
    ("a netrc as parent", parent(NETRC, "netrc"), 2, "must end in .toml"),
    ("a netrc called .toml as parent", parent(NETRC), 2, "a parent must be a spec"),
    ("a duplicate secret in a parent", parent(f"{SECRET} = 1\n{SECRET} = 2\n"), 2, "a parent must be a spec"),
    ("credentials as parent", parent(f"[registry]\ntoken = '{SECRET}'\n"), 2, "none of the keys of a spec"),
    ("a link to the environment as parent",
     parent(lambda: Path("base.toml").symlink_to("/proc/self/environ")), 2, "does not end in .toml"),
    ("a FIFO as parent", parent(lambda: os.mkfifo("base.toml")), 2, "not a regular file"),
    ("a loop of links as parent", parent(lambda: Path("base.toml").symlink_to("base.toml")), 2, "symbolic links"),
    ("UTF-16 as parent", parent("seed = 1\n".encode("utf-16")), 2, "a parent must be a spec"),
    ("10 MB as parent", parent("a" * 10_000_000), 2, "a parent must be a spec"),
    ("an empty parent", parent(""), 2, "a parent must be a spec"),
    ("a parent of another version", parent("spec_version = 99\n"), 2, "newer taskrecipe"),
    ("40 parents", extends_many, 2, "more than 16 files"),
    ("a parent with an escape in its name", put('extends = "a\\u001b[2J.toml"'), 2, "\\x1b[2J"),
    ("a home that does not exist", put('extends = "~nobody/x.toml"'), 2, "no such file"),
]  # fmt: skip
DATA = [
    *(
        (f"{path} as data", put(f'files = {{ train = "{path}", validation = "b.csv" }}', "data",
                                GOOD.replace('path = "some/data"\n', "")), 2, "must be a file or a folder")
        for path in ("/dev/zero", "/dev/random", "/proc/self/environ", "/proc/self/../1/environ", "/sys/kernel/notes")
    ),
]  # fmt: skip
CASES = [Case(*case) for case in (*FILES, *SIZES, *NUMBERS, *TEXTS, *STRUCTURE, *MEANT, *PARENTS, *DATA)]


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory):
    """Import what reports problems once, so that no case is slow because it is the first."""
    path = tmp_path_factory.mktemp("first") / "spec.toml"
    path.write_text(put("num_train_epochs = 3"))
    with pytest.raises(SpecError):
        validate(path)


def contents(folder: Path) -> dict[str, object]:
    """Return what a folder holds: names, kinds, sizes and times of change."""
    return {
        str(path.relative_to(folder)): (found.st_mode, found.st_size, found.st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        for found in [path.lstat()]
    }


def test_there_are_many_cases_and_each_has_its_own_name():
    assert len(CASES) >= 150
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_spec(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_VARIABLE", SECRET)
    if callable(case.content):
        case.content()
    else:
        Path("spec.toml").write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    before = contents(tmp_path)
    monkeypatch.setattr(sys, "argv", ["recipe", "validate", "spec.toml"])
    start = time.process_time()
    with pytest.raises(SystemExit) as ended:
        main()
    assert time.process_time() - start < 2
    printed = "".join(capsys.readouterr())
    assert ended.value.code == case.code, printed
    assert case.words in " ".join(printed.split()), printed
    assert "Traceback" not in printed
    assert SECRET not in printed
    assert "abcdefghijklmnop" not in printed
    assert printed.replace("\n", "").isprintable()
    assert len(printed) < 50_000
    assert contents(tmp_path) == before


NAMES = ["\x1b[2Jx.toml", "a\nforged line.toml", "a\u202eb.toml", "x\udcff.toml", "%0A::error.toml", "-x.toml"]
COMMANDS = [
    ["validate", "--format", "text", "--"], ["validate", "--format", "json", "--"],
    ["validate", "--format", "github", "--"], ["validate", "--format", "sarif", "--"],
    ["migrate", "--"], ["run", "--dry", "--"], ["resume", "--"], ["show", "--"], ["new", "--"], ["guide", "--"], ["--"],
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command).replace("--", ""))
def test_a_hostile_name_is_escaped_in_every_message(command, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["recipe", *command, name])
    installed.cache_clear()
    with pytest.raises(SystemExit) as ended:
        main()
    printed = "".join(capsys.readouterr())
    assert ended.value.code == 2, printed
    assert "Traceback" not in printed
    assert printed.replace("\n", "").isprintable()
    assert not re.search(r"(?m)^(forged line|::error\.toml)", printed)
    assert list(tmp_path.iterdir()) == []
