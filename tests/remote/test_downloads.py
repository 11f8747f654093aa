"""Data at URLs: it is read as local data is, downloaded once for each version, and never half."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.commands import Zygote
from tests.support.runs import log, train, write_spec

from taskrecipe.data.load import load_data
from taskrecipe.errors import DataError, RecipeError, UsageError
from taskrecipe.plugins.registry import installed
from taskrecipe.remote import downloads
from taskrecipe.remote.downloads import fetch_copies, find_url
from taskrecipe.spec.spec import Spec

ROWS = "sentence,label\n" + "".join(f"{{}} {number},{number % 2}\n" for number in range(8))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKRECIPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def remote() -> Iterator[MemoryFileSystem]:
    """An empty filesystem at memory://."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def load(files: dict[str, Any], **data: Any) -> Any:
    values = {
        "spec_version": 1,
        "recipe": "glue",
        "task": {"name": "sst2"},
        "model": {"type": "bert"},
        "data": {"files": files, **data},
        "train": {"learning_rate": 1e-3, "epochs": 1},
    }
    spec = Spec.model_validate(values)
    return load_data(spec, installed().recipe("glue")(spec), Path("unused"), weights=False)


def write_rows(folder: Path, remote: MemoryFileSystem) -> None:
    """The same rows as local files and at memory://data."""
    folder.mkdir(exist_ok=True)
    for split, word in (("train", "sentence"), ("validation", "other")):
        (folder / f"{split}.csv").write_text(ROWS.format(*[word] * 8))
        remote.pipe_file(f"/data/{split}.csv", (folder / f"{split}.csv").read_bytes())


def test_rows_at_a_url_are_those_of_the_same_local_file(tmp_path, remote):
    write_rows(tmp_path / "local", remote)
    names = {split: f"{split}.csv" for split in ("train", "validation")}
    local = load({split: str(tmp_path / "local" / name) for split, name in names.items()})
    for given in (
        {split: f"memory://data/{name}" for split, name in names.items()},
        {split: [f"memory://data/{name}"] for split, name in names.items()},
        {split: f"memory://data/{split[:5]}*.csv" for split in names},
        {"train": "memory://data/train.csv", "validation": str(tmp_path / "local" / "validation.csv")},
    ):
        found = load(given)
        assert found.fingerprint == local.fingerprint
        assert found.splits["train"].to_list() == local.splits["train"].to_list()


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv.gz"])
def test_every_format_is_read(ending, tmp_path, remote):
    import pandas as pd

    write_rows(tmp_path / "local", remote)
    files = {}
    for split in ("train", "validation"):
        rows = pd.read_csv(tmp_path / "local" / f"{split}.csv")
        path = tmp_path / f"{split}.{ending}"
        if ending == "jsonl":
            rows.to_json(path, orient="records", lines=True)
        elif ending == "parquet":
            rows.to_parquet(path)
        else:
            rows.to_csv(path, index=False)
        remote.put_file(str(path), f"/other/{path.name}")
        files[split] = f"memory://other/{path.name}"
    assert load(files).splits["train"]["sentence"] == [f"sentence {number}" for number in range(8)]


def test_an_error_about_a_row_names_the_url_and_the_line(tmp_path, remote):
    write_rows(tmp_path / "local", remote)
    text = remote.cat_file("/data/train.csv").decode().replace("3,1", "3,", 1)
    remote.pipe_file("/data/train.csv", text.encode())
    with pytest.raises(DataError, match=r"'memory://data/train\.csv' record 4 \(line 5\)"):
        load({split: f"memory://data/{split}.csv" for split in ("train", "validation")})
    remote.pipe_file("/data/train.csv", b"sentence,label\na,b,c\n")
    with pytest.raises(DataError, match=r"'memory://data/train\.csv'"):
        load({split: f"memory://data/{split}.csv" for split in ("train", "validation")})


def test_a_folder_of_images_is_copied_with_its_classes(remote):
    for name in ("cat/1.png", "cat/2.png", "dog/3.png"):
        remote.pipe_file(f"/pets/train/{name}", name.encode())
    [folder] = fetch_copies("memory://pets/train", "[data.files].train")
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == {name: name for name in ("cat/1.png", "cat/2.png", "dog/3.png")}
    assert folder.name == "train"
    assert find_url(folder / "cat/1.png") == "memory://pets/train/cat/1.png"


class Counted(MemoryFileSystem):
    """Counts the files that are fetched, and may fail."""

    protocol = "counted"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in its parent
    pseudo_dirs = [""]  # noqa: RUF012
    fetched: list[str] = []  # noqa: RUF012
    before: Callable[[str], None] | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("counted://", "memory://"))

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        if Counted.before:
            Counted.before(rpath)
        Counted.fetched.append(rpath)
        super().get_file(rpath, lpath, **options)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    fsspec.register_implementation("counted", Counted, clobber=True)
    Counted.store.clear()
    Counted.fetched.clear()
    Counted.before = None
    yield Counted()
    Counted.before = None


def test_a_version_is_downloaded_once_and_a_new_one_only_where_it_differs(counted):
    for number in range(3):
        counted.pipe_file(f"/many/{number}.txt", b"old")
    for _ in range(2):
        [first] = fetch_copies("counted://many", "key")
    assert sorted(Counted.fetched) == [f"/many/{number}.txt" for number in range(3)]
    counted.pipe_file("/many/1.txt", b"new")
    Counted.fetched.clear()
    [second] = fetch_copies("counted://many", "key")
    assert Counted.fetched == ["/many/1.txt"]
    assert [(second / f"{number}.txt").read_text() for number in range(3)] == ["old", "new", "old"]
    assert (first / "1.txt").read_text() == "old", "a run that reads the old version goes on reading it"


def test_what_came_before_an_interruption_is_not_fetched_again(counted, monkeypatch):
    monkeypatch.setattr(downloads, "_THREADS", 1)
    for number in range(4):
        counted.pipe_file(f"/many/{number}.txt", b"text")

    def fail(path: str) -> None:
        if path.endswith("2.txt"):
            raise ConnectionResetError("gone")

    Counted.before = fail
    with pytest.raises(DataError, match=r"^key: 'counted://many' can't be reached; .*ConnectionResetError: gone"):
        fetch_copies("counted://many", "key")
    Counted.before = None
    Counted.fetched.clear()
    [folder] = fetch_copies("counted://many", "key")
    assert "/many/0.txt" not in Counted.fetched
    assert len(list(folder.iterdir())) == 4


def test_a_file_that_changes_while_it_is_fetched_is_refused(counted):
    counted.pipe_file("/data.csv", b"one")
    Counted.before = lambda path: counted.pipe_file(path, b"two")
    with pytest.raises(DataError, match=r"was changed while it was downloaded"):
        fetch_copies("counted://data.csv", "key")
    Counted.before = None
    assert fetch_copies("counted://data.csv", "key")[0].read_text() == "two"


def test_a_truncated_file_is_refused(counted, monkeypatch):
    counted.pipe_file("/data.csv", b"whole")
    monkeypatch.setattr(Counted, "get_file", lambda self, rpath, lpath, **_: Path(lpath).write_bytes(b"who"))
    with pytest.raises(DataError, match=r"'/data.csv' has 5 bytes, but 3 came"):
        fetch_copies("counted://data.csv", "key")


def test_a_place_that_tells_no_version_is_asked_every_time(counted, monkeypatch):
    monkeypatch.setattr(Counted, "info", lambda self, path: {"name": path, "size": None, "type": "file"})
    for text in ("one", "two", "two"):
        counted.pipe_file("/data.csv", text.encode())
        [path] = fetch_copies("counted://data.csv", "key")
        assert path.read_text() == text
    assert len(Counted.fetched) == 3


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word, and counts what is fetched."""

    asked: list[str] = []  # noqa: RUF012

    def log_request(self, *_: Any) -> None:
        if self.command == "GET":
            Quiet.asked.append(self.path)


def test_a_web_server_is_asked_for_a_file_once(tmp_path: Path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "train.csv").write_text("one")
    os.utime(tmp_path / "site" / "train.csv", (10**9, 10**9))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "site")))
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/train.csv"
    try:
        copies = [fetch_copies(f"{url}?part=1", "key") for _ in range(2)]
        assert (len(Quiet.asked), copies[0]) == (1, copies[1])
        assert (copies[0][0].name, copies[0][0].read_text(), find_url(copies[0][0])) == ("train.csv", "one", url)
        (tmp_path / "site" / "train.csv").write_text("two")
        assert fetch_copies(f"{url}?part=1", "key")[0].read_text() == "two"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("url", "kind", "message"),
    [
        ("memory://none.csv", DataError, r"\[data.files\].train: 'memory://none.csv' is not there; check its spelling"),
        ("memory://none*.csv", DataError, r"\[data.files\].train: there are no files at 'memory://none\*.csv'"),
        ("s3://bucket/x.csv", UsageError, r"s3:// needs the package 's3fs', which is not installed: pip install s3fs"),
        ("http://127.0.0.1:9/x.csv", DataError, r"'http://127.0.0.1:9/x.csv' can't be reached; check the network"),
    ],
)
def test_what_is_in_the_way_is_one_sentence(url, kind, message, remote):
    with pytest.raises(RecipeError, match=message) as caught:
        load({"train": url, "validation": url})
    assert type(caught.value) is kind


def test_a_command_reads_urls_and_guards_a_resume_by_their_content(zygote: Zygote, tmp_path: Path):
    local = write_spec(tmp_path)
    (tmp_path / "far").mkdir()
    for split in ("train", "validation"):
        os.link(tmp_path / f"{split}.csv", tmp_path / "far" / f"{split}.csv")
    far = tmp_path / "far.toml"
    text = local.read_text().replace('"train.csv"', f'"file://{tmp_path}/far/train.csv"')
    far.write_text(text.replace('"validation.csv"', f'"file://{tmp_path}/far/val*.csv"'))
    options = ("--set", "train.updates=3", "--quiet")
    second = train(zygote, far, "far-run", *options)
    assert f"file://{tmp_path}/far/train.csv" in (second / "spec.toml").read_text()

    rows = tmp_path / "far" / "train.csv"
    rows.write_text(rows.read_text().replace(",1\n", ",0\n", 1))
    changed = ("--set", "train.updates=4", "--allow", "train.updates")
    refused = zygote.run("resume", str(second), *changed, cwd=tmp_path)
    assert refused.code == 2
    assert "rows.train" in refused.stderr
    assert log(second, "end")[-1]["step"] == 3
    again = zygote.run("evaluate", str(second), "--data", f"file://{tmp_path}/far/validation.csv", cwd=tmp_path)
    assert again.code == 0, again.stderr


def test_urls_are_checked_where_they_stand_and_never_opened(zygote: Zygote, tmp_path: Path):
    spec = write_spec(tmp_path)
    text = spec.read_text()
    for given, message in (
        ("s4://bucket/train.csv", "has the unknown protocol 's4'"),
        ("zip://a.csv::s3://bucket/a.zip", "is a chain of several places"),
        ("s3://", "names no place after '://'"),
        ("https://user:word@host/train.csv", "[data.files].train looks like a secret"),
        ("https://host/train.csv?X-Amz-Signature=abcdef", "[data.files].train looks like a secret"),
    ):
        spec.write_text(text.replace('"train.csv"', f'"{given}"'))
        done = zygote.run("validate", str(spec), cwd=tmp_path)
        assert done.code == 2, given
        assert "spec.toml:9:9: error" in done.stdout
        assert message in done.stdout
        assert "word@" not in done.stdout
    spec.write_text(text.replace('"train.csv"', '"s3://bucket/train.csv"'))
    assert zygote.run("validate", str(spec), cwd=tmp_path).code == 0, "s3fs need not be installed to check a spec"
