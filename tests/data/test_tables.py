"""Tables of text: every record becomes a row, and what can't be read is refused with its line."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import pytest

from taskrecipe.data import tables
from taskrecipe.data.files import read_files
from taskrecipe.data.streams import store_stream
from taskrecipe.errors import DataError
from taskrecipe.spec.spec import Data


def read(path: Path, content: str | bytes, **keys: Any) -> Any:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_files(Data(files={"train": str(path)}, **keys), ["train"])["train"]


def test_quotes_in_a_tsv_are_letters(tmp_path: Path) -> None:
    content = 'id\ttext\n1\t"Open quote\n2\tplain\n3\t"both"\n4\tin "the" middle\n5\tclosed"\n'
    texts = ['"Open quote', "plain", '"both"', 'in "the" middle', 'closed"']
    assert read(tmp_path / "a.tsv", content)["text"] == texts
    assert read(tmp_path / "a.csv", content.replace("\t", ","), quotes=False)["text"] == texts


def test_a_tsv_in_which_all_cells_are_quoted_gets_a_warning(tmp_path: Path) -> None:
    content = 'id\ttext\n1\t"one"\n2\t"two\tand"\n'
    with pytest.warns(UserWarning, match=r"all cells of column 'text' are in quotes.*\[data\]\.quotes = true"):
        assert read(tmp_path / "a.tsv", content.replace("\tand", ""))["text"] == ['"one"', '"two"']
    assert read(tmp_path / "a.tsv", content, quotes=True)["text"] == ["one", "two\tand"]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_as_rfc_4180_is_read_back(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(tables, "_RECORDS_AT_ONCE", draw.choice([1, 2, 7, 10_000]))
    rows = [["".join(draw.choices('ab ,"\n', k=draw.randint(1, 12))) + "z" for _ in range(3)] for _ in range(50)]
    text, starts = io.StringIO(newline=""), list[int]()
    writer = csv.writer(text, lineterminator=draw.choice(["\n", "\r\n"]))
    for row in [["x", "y", "z"], *rows]:
        starts.append(1 + text.getvalue().count("\n"))
        writer.writerow(row)
    found = read(tmp_path / "a.csv", text.getvalue(), quotes=True)
    assert [[row["x"], row["y"], row["z"]] for row in found] == rows
    data = Data(files={"train": str(tmp_path / "a.csv")}, quotes=True)
    assert list(tables.find_lines(tmp_path / "a.csv", "csv", data)) == starts[1:]


STRAY: dict[str, tuple[str, str]] = {
    "opened in one row, closed in a later one": (
        'text,n\na,1\n"one,2\ntwo,3\nthree",4\nb,5\n',
        r"line 3: a quote opens a cell that goes on to line 5, though each of these lines could be a row",
    ),
    "opened, and text after the next quote": (
        'text,n\na,1\n"one,2\nb,3\n"c",4\n',
        "line 3: a quote opens a cell, and another, 2 lines on, has text after it",
    ),
    "never closed": ('text,n\na,1\nb,2\n"one,3\nc,4\n', "line 4: a quote opens a cell and is never closed"),
    "text after a closing quote": ('text,n\n"one" two,1\n', "line 2: a quote opens a cell, and another has text after"),
    "fewer fields": ("text,n\na,1\nb\n", "line 3 has 1 fields, but the header has 2"),
    "more fields": ("text,n\na,1\nb,2,3\n", "line 3 has 3 fields, but the header has 2; a cell with a separator"),
    "more fields than the header in all rows": ("text,n\na,1,x\nb,2,x\n", "line 2 has 3 fields"),
    "lines after a cell with line breaks": ('text,n\n"a\nb\nc",1\nd\n', "line 5 has 1 fields"),
    "a column twice": ("text,text\na,b\n", "line 1: the header names the column 'text' twice"),
}


@pytest.mark.parametrize("name", STRAY)
@pytest.mark.parametrize("streamed", [False, True])
def test_rows_are_not_lost_in_silence(name: str, streamed: bool, tmp_path: Path) -> None:
    content, message = STRAY[name]
    path = tmp_path / "a.csv"
    path.write_text(content)
    data = Data(files={"train": str(path)}, streaming=streamed)

    def read_all() -> None:
        rows = read_files(data, ["train"], "train" if streamed else None)["train"]
        store_stream(rows) if streamed else None

    with pytest.raises(DataError, match=f"^split 'train': '.*a\\.csv': {message}"):
        read_all()


def test_line_breaks_in_cells_are_read_where_no_line_could_be_a_row(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", 'text,n\n"one\ntwo",1\n')["text"] == ["one\ntwo"]


def test_line_breaks_that_look_like_rows_are_read_if_the_spec_says_so(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", 'text,n\n"one,1\ntwo",2\n', quotes=True)["text"] == ["one,1\ntwo"]


def test_line_breaks_in_a_lone_column_get_a_warning_with_their_number(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="2 cells hold line breaks"):
        assert len(read(tmp_path / "a.csv", 'text\n"one\ntwo"\nthree\n"a\nb"\n')) == 3


def test_a_carriage_return_within_a_line_is_a_letter(tmp_path: Path) -> None:
    assert read(tmp_path / "a.tsv", "text\tn\r\none\rtwo\t1\r\n")["text"] == ["one\rtwo"]
    assert read(tmp_path / "b.tsv", "text\tn\rone\t1\r")["text"] == ["one"]


TYPES: dict[str, tuple[list[str], list[Any]]] = {
    "whole numbers": (["1", "-2", " 3"], [1, -2, 3]),
    "numbers": (["1", "2.5", ""], [1.0, 2.5, None]),
    "too large": (["1", "123456789012345678901234567890"], ["1", "123456789012345678901234567890"]),
    "true and false": (["true", "False"], [True, False]),
    "dates": (["2020-01-01", "2020-01-02"], ["2020-01-01", "2020-01-02"]),
    "words for missing values": (["None", "NA", "nan", ""], ["None", "NA", "nan", None]),
    "numbers and words": (["1", "x"], ["1", "x"]),
}


@pytest.mark.parametrize("name", TYPES)
def test_columns_have_the_type_that_all_of_their_cells_have(name: str, tmp_path: Path) -> None:
    cells, values = TYPES[name]
    found = read(tmp_path / "a.csv", "a,b\n" + "".join(f"{cell},x\n" for cell in cells))["a"]
    assert list(found) == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_files_of_one_split_get_one_type(tmp_path: Path) -> None:
    for name, cell in {"a": "1", "b": "x"}.items():
        (tmp_path / f"{name}.csv").write_text(f"a,b\n{cell},2\n")
    rows = read_files(Data(files={"train": str(tmp_path / "*.csv")}), ["train"])["train"]
    assert (list(rows["a"]), list(rows["b"])) == (["1", "x"], [2, 2])


def test_columns_without_a_header_are_named_by_position(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.tsv", 'gj04\t1\t\tOur "friends\ngj05\t0\t*\tThey\n', header=False)
    assert rows[:] == {"0": ["gj04", "gj05"], "1": [1, 0], "2": [None, "*"], "3": ['Our "friends', "They"]}


@pytest.mark.parametrize(("mark", "name"), [(";", "';'"), ("\t", "tabs"), ("|", r"'\|'")])
def test_another_separator_is_found_and_said(mark: str, name: str, tmp_path: Path) -> None:
    content = f"text{mark}n\none, two{mark}1\n"
    with pytest.warns(UserWarning, match=f"is separated by {name}, not by commas"):
        assert read(tmp_path / "a.csv", content)[0] == {"text": "one, two", "n": 1}
    assert read(tmp_path / "a.csv", content, separator=mark)[0] == {"text": "one, two", "n": 1}


def test_a_lone_column_is_not_taken_apart(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", "text; more\none\n").column_names == ["text; more"]


ENCODED = {"utf-8-sig": None, "utf-16": None, "utf-16-le": "utf-16-le", "utf-32": None, "shift_jis": "shift_jis"}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_encodings_are_found_by_their_mark_or_given(encoding: str, ending: str, tmp_path: Path) -> None:
    separator = {"csv": ",", "tsv": "\t"}[ending]
    content = f"text{separator}n\nテスト{separator}1\n"
    rows = read(tmp_path / f"a.{ending}", content.encode(encoding), encoding=ENCODED[encoding])
    assert rows[:] == {"text": ["テスト"], "n": [1]}


def test_western_european_text_is_read_with_a_warning(tmp_path: Path) -> None:
    content = "text,n\nok,1\ncafé – “naïve”,2\n".encode("cp1252")
    with pytest.warns(UserWarning, match=r"is not UTF-8 \(line 3\); it is read as cp1252"):
        assert read(tmp_path / "a.csv", content)["text"] == ["ok", "café – “naïve”"]


AMBIGUOUS = {
    "Russian": "text,n\nok,1\nпривет,2\n".encode("cp1251"),
    "Polish": "text,n\nok,1\nwłaśnie,2\n".encode("cp1250"),
    "Turkish": "text,n\nok,1\nşığ,2\n".encode("cp1254"),
    "Japanese": "text,n\nok,1\nテスト,2\n".encode("shift_jis"),
    "two encodings": b"text,n\nok,1\n" + "café,2\n".encode("cp1252") + "naïve,3\n".encode(),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_other_text_that_is_not_utf8_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 3 is not UTF-8; .*\[data\]\.encoding"):
        read(tmp_path / "a.csv", AMBIGUOUS[name])


def test_text_that_is_not_in_the_given_encoding_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 3 is not ascii; "):
        read(tmp_path / "a.csv", "text,n\nok,1\né,2\n", encoding="ascii")


def test_cells_of_many_megabytes_are_read(tmp_path: Path) -> None:
    long = "x" * 10_000_000
    rows = read(tmp_path / "a.csv", f'text,n\n"{long}",1\n')
    assert rows[0]["text"] == long
    assert csv.field_size_limit() == 131072  # the process's own limit is not changed


@pytest.mark.parametrize("key", [{"quotes": True}, {"header": False}, {"separator": ";"}, {"encoding": "cp1252"}])
def test_keys_of_tables_are_refused_for_other_formats(key: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"\[data\]\.{next(iter(key))} is for csv.*a\.jsonl' is read as jsonl"):
        read(tmp_path / "a.jsonl", '{"a": 1}\n', **key)


def test_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\[data\]\.encoding = 'utf8000' is not an encoding"):
        read(tmp_path / "a.csv", "a\n1\n", encoding="utf8000")


def test_mrpc_as_raw_tsv_has_all_its_rows(shared_data: Path, tmp_path: Path) -> None:
    with (shared_data / "mrpc" / "validation.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert any(cell.count('"') % 2 for row in rows for cell in row)
    text = "".join("\t".join(row) + "\n" for row in [header, *rows])
    found = read(tmp_path / "dev.tsv", text)
    assert [list(map(str, row.values())) for row in found] == rows
