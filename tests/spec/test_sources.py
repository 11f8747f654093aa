"""Reading files that may be anything."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskrecipe.errors import SpecError
from taskrecipe.spec.sources import LARGEST_FILE, read_source


def refused(path: Path):
    """The problem that a file is refused with, at once."""
    start = time.monotonic()
    with pytest.raises(SpecError) as caught:
        read_source(path)
    assert time.monotonic() - start < 1
    return caught.value.problems[0]


def refused_text(tmp_path: Path, text: str | bytes):
    path = tmp_path / "spec.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return refused(path)


def test_values_and_folder_of_a_file(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text("a = 1\n[b]\nc = 'x'\n")
    source = read_source(path)
    assert source.values == {"a": 1, "b": {"c": "x"}}
    assert source.folder == tmp_path
    assert source.kind == "file"


@pytest.mark.parametrize("text", [b"\xef\xbb\xbfa = 1\n", b"a = 1\r\n", b"a = 1"])
def test_a_byte_order_mark_and_any_line_end_are_fine(tmp_path, text):
    path = tmp_path / "spec.toml"
    path.write_bytes(text)
    assert read_source(path).values == {"a": 1}


def test_a_place_after_a_byte_order_mark_and_carriage_returns_is_right(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_bytes(b"\xef\xbb\xbf# \xc3\xa9\r\na = 1\r\nb = 2\r\n")
    span = read_source(path).positions.of_value(("b",))
    assert (span.line, span.column, span.width) == (3, 5, 1)


def test_what_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    assert "it is a folder" in refused(tmp_path).message
    assert "not a regular file" in refused(tmp_path / "fifo.toml").message
    assert "symbolic links" in refused(tmp_path / "loop.toml").message
    assert "no such file" in refused(tmp_path / "nothing").message
    assert "null" in refused(tmp_path / "a\0b").message
    assert refused(tmp_path).code == "unreadable"


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/self/environ", "netrc"])
def test_a_file_of_another_name_is_not_read_also_through_a_link(tmp_path, target, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("netrc").write_text("machine example.org login me password hunter2\n")
    Path("link.toml").symlink_to(target)
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    for path in (Path(target), Path("link.toml")):
        problem = refused(path)
        assert (problem.code, problem.source) == ("unreadable", "")
        assert ".toml" in problem.message


def test_no_permission_is_told_by_its_reason(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "spec.toml"
    path.write_text("a = 1")
    monkeypatch.setattr(os, "open", denied)
    assert refused(path).message == "can't be read: permission denied"


@pytest.mark.parametrize("text", ["", "\n\n", "# only words\n"])
def test_a_file_without_keys(tmp_path, text):
    assert refused_text(tmp_path, text).code == "empty-file"


@pytest.mark.parametrize(
    ("text", "code", "place", "said"),
    [
        ("a = 1\nb = \n", "syntax", (2, 5), "invalid value"),
        ("a = 1\nb\n", "syntax", (2, 2), "expected '='"),
        ('a = "x\n', "syntax", (1, 7), ""),
        ("a = [1,\n2", "syntax", (2, 2), "unclosed array"),
        ("a = 1\x00\n", "syntax", (1, 6), ""),
        ("a = '\x00'\n", "syntax", (1, 6), "character"),
        ("a = 1\nb = 2\na = 3\n", "duplicate-key", (3, 1), "already given in line 1"),
        ("[t]\na = 1\n[u]\n[t]\n", "duplicate-key", (4, 1), "already given in line 1"),
        ("t = { a = 1, a = 2 }\n", "duplicate-key", (1, 14), "already given in line 1"),
        ("[a]\nname = 1\n[b\nname = 2\n", "syntax", (3, 3), "expected ']'"),
        ("x = 1\na = " + "9" * 5000, "too-large", (2, 5), "digits"),
        ("x = 1\ny = 'é'\n".encode("latin-1"), "syntax", (2, 6), "0xe9 is not UTF-8"),
        ("a = 1\n".encode("utf-16"), "syntax", (1, 1), "UTF-16"),
    ],
)
def test_what_is_not_toml_is_refused_at_its_place(tmp_path, text, code, place, said):
    problem = refused_text(tmp_path, text)
    assert (problem.code, (problem.line, problem.column)) == (code, place)
    assert said in problem.message


def test_every_duplicate_is_told(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text("a = 1\nb = 1\na = 2\nb = 2\n")
    with pytest.raises(SpecError) as caught:
        read_source(path)
    assert [problem.line for problem in caught.value.problems] == [3, 4]


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000,
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "{a = " * 5000 + "1" + "}" * 5000,
        ".".join(["a"] * 20_000) + " = 1",
        "[" + ".".join(["a"] * 20_000) + "]",
        "[[" + ".".join(["a"] * 20_000) + "]]",
        "a = {" + ".".join(["a"] * 20_000) + " = 1}",
        '"' + '"."'.join(["a"] * 20_000) + '" = 1',
        "\n".join(f"[{'.'.join(['a'] * 30)}.b{n}]\n{'.'.join(['c'] * 30)} = 1" for n in range(9)),
        "".join(f"k{n} = 1\n" for n in range(60_000)),
        "a = [" + "1," * 200_000 + "]",
        "[[callbacks]]\nname = 'x'\n" * 30_000,
        "a = '" + "x" * 900_000 + "'",
        'a = """' + '\\"""' * 200_000,
        'a = "' + "\\u0041" * 100_000 + '"',
        "# " + "x" * 900_000 + "\na = 1",
        "[]\n" * 300_000,
        "a = 1\n" + "\n" * LARGEST_FILE,
        "a = '" + "x" * 10_000_000 + "'",
    ],
    ids=lambda text: f"{text[:12]!r} {len(text)}",
)
def test_more_than_a_spec_needs_is_refused_at_once(tmp_path, text):
    assert refused_text(tmp_path, text).code == "too-large"


def test_a_large_file_is_not_even_read(tmp_path):
    problem = refused_text(tmp_path, "a = 1\n" + "x" * LARGEST_FILE)
    assert problem.message == "the file is larger than 1024 KiB, the limit for a spec"


def test_brackets_in_strings_and_comments_are_no_nesting(tmp_path):
    path = tmp_path / "spec.toml"
    brackets = "[{." * 100
    path.write_text(f"# {brackets}\na = '{brackets}'\nb = \"{brackets}\"\nc = '''\n{brackets}\n'''\nd = [1.5, 2.5]\n")
    assert read_source(path).values["a"] == brackets


def test_places_cost_nothing_until_they_are_asked_for(tmp_path):
    (tmp_path / "spec.toml").write_text("a = 1\n")
    script = (
        "import sys; from pathlib import Path; from taskrecipe.spec.sources import read_source;"
        "source = read_source(Path('spec.toml')); assert 'tree_sitter' not in sys.modules;"
        "source.positions; assert 'tree_sitter' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
