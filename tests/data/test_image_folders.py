"""Images in folders of classes, with label maps in a second folder, and named by rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from taskrecipe.data.files import read_files
from taskrecipe.data.image_folders import find_split_folders
from taskrecipe.errors import DataError
from taskrecipe.spec.spec import Data


def save(path: Path, color: int = 0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), color).save(path)
    return str(path)


def folder_of_classes(root: Path) -> Path:
    for name in ("cat/1", "cat/2", "dog/3"):
        save(root / f"{name}.png")
    return root


def read(files: object, **keys: Any) -> Any:
    return read_files(Data(files={"train": files}, **keys), ["train"], image_columns=["image"])["train"]


def test_files_that_are_no_images_are_counted(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path)
    for name in ("cat/Thumbs.db", "notes.docx", ".DS_Store", "__MACOSX/x.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    with pytest.warns(UserWarning, match=r"split 'train': 2 files in '.*' are not images .* such as 'Thumbs.db'"):
        assert read(str(root))["label"] == [0, 0, 1]


def test_an_empty_folder_of_a_class_is_said(tmp_path: Path) -> None:
    (folder_of_classes(tmp_path) / "bird").mkdir()
    with pytest.warns(UserWarning, match="no images are in the folders 'bird'"):
        assert read(str(tmp_path)).features["label"].names == ["cat", "dog"]


def test_images_outside_of_the_folders_of_classes_are_refused(tmp_path: Path) -> None:
    save(folder_of_classes(tmp_path) / "stray.png")
    with pytest.raises(DataError, match=r"images lie at different depths, as '.*stray\.png' and '.*1\.png'"):
        read(str(tmp_path))


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split 'train': there are no images in"):
        read(str(tmp_path))


@pytest.mark.parametrize("name", ["val", "validation", "valid"])
def test_folders_of_splits_are_splits(name: str, tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "train")
    save(tmp_path / name / "dog" / "4.png")
    expected = {"train": str(tmp_path / "train"), "validation": str(tmp_path / name)}
    for given in ({"train": str(tmp_path)}, {"train": str(tmp_path), "validation": str(tmp_path)}):
        with pytest.warns(UserWarning, match=f'holds folders of splits.*validation = ".*{name}"'):
            assert find_split_folders(given) == expected


def test_a_split_that_such_a_folder_does_not_have_is_refused(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "train")
    folder_of_classes(tmp_path / "val")
    with pytest.raises(DataError, match=r"split 'test': '.*' holds folders of splits"):
        find_split_folders({"test": str(tmp_path)})


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    for name in ("train", "bus"):
        save(tmp_path / name / "1.png")
    assert find_split_folders({"train": str(tmp_path)}) == {"train": str(tmp_path)}


def maps_layout(root: Path) -> dict[str, Any]:
    """Two images, and their maps in another folder and format."""
    for number, name in enumerate(("a", "b")):
        save(root / "images" / f"{name}.jpg")
        save(root / "labels" / f"{name}.png", color=number + 1)
    return {"files": {"train": str(root / "images")}, "maps": {"train": str(root / "labels")}}


def read_maps(data: dict[str, Any]) -> Any:
    return read_files(Data(**data), ["train"])["train"]


def test_images_and_label_maps_are_paired_by_name(tmp_path: Path) -> None:
    rows = read_maps(maps_layout(tmp_path))
    assert [row["annotation"].getpixel((0, 0)) for row in rows] == [1, 2]
    assert [Path(row["image"].filename).name for row in rows] == ["a.jpg", "b.jpg"]


def test_a_list_of_names_chooses_images(tmp_path: Path) -> None:
    maps_layout(tmp_path)
    (tmp_path / "train.txt").write_text("b\n")
    files = {"files": {"train": str(tmp_path / "train.txt")}, "maps": {"train": str(tmp_path / "labels")}}
    assert [row["annotation"].getpixel((0, 0)) for row in read_maps({**files, "images": str(tmp_path / "images")})] == [
        2
    ]
    with pytest.raises(DataError, match=r"train\.txt' is a list of names; \[data\]\.images must say"):
        read_maps(files)
    (tmp_path / "train.txt").write_text("b\nc\n")
    with pytest.raises(DataError, match=r"train\.txt': line 2 names 'c', but no image"):
        read_maps({**files, "images": str(tmp_path / "images")})


MAPS_REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing map": (lambda root: (root / "labels/b.png").unlink(), r"1 of 2 images have no label map.*b\.jpg'"),
    "two maps": (lambda root: save(root / "labels/a.bmp"), r"a\.bmp' and 'a\.png' have the same name"),
    "no images": (lambda root: [path.unlink() for path in (root / "images").iterdir()], "there are no images in"),
    "no folder of maps": (lambda root: (root / "labels").rename(root / "other"), "which is not a folder"),
}


@pytest.mark.parametrize("name", MAPS_REFUSED)
def test_images_without_their_maps_are_refused(name: str, tmp_path: Path) -> None:
    data = maps_layout(tmp_path)
    damage, message = MAPS_REFUSED[name]
    damage(tmp_path)
    with pytest.raises(DataError, match=f"^split 'train': .*{message}"):
        read_maps(data)


def test_a_split_without_maps_is_refused(tmp_path: Path) -> None:
    data = Data(**{**maps_layout(tmp_path), "maps": {"validation": str(tmp_path)}})
    with pytest.raises(DataError, match=r"split 'train': \[data\.maps\] names no folder for it"):
        read_files(data, ["train"])


def write_lines(path: Path, *names: object) -> str:
    path.write_text("".join(json.dumps({"image": name, "n": 1}) + "\n" for name in names))
    return str(path)


def test_images_that_rows_name_are_relative_to_the_file_or_to_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "sub" / "a.png", 1)
    save(tmp_path / "a.png", 2)
    lines = write_lines(tmp_path / "train.jsonl", "a.png", "sub/a.png", None)
    monkeypatch.chdir(tmp_path / "sub")
    found = [row["image"] and row["image"].getpixel((0, 0)) for row in read(lines)]
    assert found == [2, 1, None]
    lines = write_lines(tmp_path / "train.jsonl", "a.png", str(tmp_path / "sub" / "a.png"))
    rows = read(lines, images=str(tmp_path / "sub"))
    assert [row["image"].getpixel((0, 0)) for row in rows] == [1, 1]


def test_files_in_several_folders_each_name_their_own_images(tmp_path: Path) -> None:
    for number, name in enumerate(("x", "y")):
        save(tmp_path / name / "a.png", number)
        write_lines(tmp_path / name / "rows.jsonl", "a.png")
    assert [row["image"].getpixel((0, 0)) for row in read(str(tmp_path / "*" / "rows.jsonl"))] == [0, 1]


@pytest.mark.parametrize("name", ["none.png", "../a.png", "/etc/hostname", "", "sub"])
def test_names_that_lead_nowhere_or_out_are_refused(name: str, tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    root = tmp_path / "rows"
    save(root / "ok.png")
    (root / "sub").mkdir()
    with pytest.raises(DataError, match=r"^split 'train', '.*train\.jsonl' record 2 \(line 2\), column 'image': "):
        read(write_lines(root / "train.jsonl", "ok.png", name))


def test_images_in_a_table_are_read_too(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 7)
    (tmp_path / "train.csv").write_text("image,label\na.png,x\n")
    assert read(str(tmp_path / "train.csv"))[0]["image"].getpixel((0, 0)) == 7
