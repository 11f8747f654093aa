"""Images in folders: a folder for each class, images and label maps in two folders, and images that rows name."""

from __future__ import annotations

import glob
import secrets
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.annotations import find_image
from taskrecipe.data.read_errors import explain_read_errors
from taskrecipe.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

Paths = Mapping[str, list[Path]]

IMAGE_ENDINGS = frozenset([".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"])

_SPLIT_FOLDERS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "dev", "eval"),
    "test": ("test", "testing"),
}
"""What folders of splits are called."""

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files that give images other columns than the name of their folder."""


def find_split_folders(files: Mapping[str, str | list[str]]) -> dict[str, str | list[str]]:
    """Return `[data.files]` with each folder that holds folders of splits replaced by the folder of its split.

    Their names would be taken for classes otherwise. Splits that only such a folder has are added.
    """
    found: dict[str, str | list[str]] = {}
    added: dict[str, str] = {}
    for split, given in files.items():
        inner = _list_split_folders(Path(given)) if isinstance(given, str) else {}
        if not inner:
            found[split] = given
            continue
        if split not in inner:
            raise DataError(_explain_root(Path(str(given)), inner), split=split)
        found[split] = str(inner[split])
        added |= {name: str(path) for name, path in inner.items()}
        warnings.warn(_explain_root(Path(str(given)), inner), stacklevel=2)
    return {**{name: path for name, path in added.items() if name not in files}, **found}


def load_image_folders(paths: Paths, _images: Path | None = None) -> dict[str, Any]:
    """Return images with the names of their folders as labels. A class has the same number in every split."""
    from datasets import load_dataset

    # Left to itself, the builder drops all labels if the folders of two splits lie at different depths.
    have_classes = [_inspect_folder(path, split) for split, given in paths.items() for path in given]
    patterns = {
        f"split{number}": [glob.escape(str(path)) + ("/**" if path.is_dir() else "") for path in files]
        for number, files in enumerate(paths.values())
    }
    with explain_read_errors(f"images in '{next(iter(paths.values()))[0]}'"):
        drop_labels = False if all(have_classes) else None
        splits: Mapping[str, Any] = load_dataset("imagefolder", data_files=patterns, drop_labels=drop_labels)
    return dict(zip(paths, splits.values(), strict=True))


def load_mapped_images(paths: Sequence[Path], images: Path | None, maps: Path, split: str) -> Dataset:
    """Return images and their label maps, which lie in another folder under the same names.

    The images are given as a folder, or as a list of names, which are then looked for in `images`.
    """
    from datasets import Dataset, Features, Image

    if not maps.is_dir():
        raise DataError(f"[data.maps] names '{maps}', which is not a folder", split=split)
    found = [image for path in paths for image in _list_images(path, images, split)]
    if not found:
        raise DataError(f"there are no images in '{paths[0]}'", split=split)
    by_name = _name_files(maps, split)
    missing = [image for image in found if image.stem not in by_name]
    if missing:
        message = f"{len(missing)} of {len(found)} images have no label map in '{maps}', such as '{missing[0]}'"
        raise DataError(message, split=split)
    _warn_of_unused_maps(by_name, found, maps, split)
    columns = {"image": list(map(str, found)), "annotation": [str(by_name[image.stem]) for image in found]}
    return Dataset.from_dict(columns, features=Features({"image": Image(), "annotation": Image()}))


def open_named_images(rows: Dataset, columns: Sequence[str], folder: Path, split: str) -> Dataset:
    """Return the rows with images for the names in `columns`, which are relative to `folder`."""
    import pyarrow as pa
    from datasets import Dataset, DatasetInfo, Image

    table, features = rows.data.table, rows.features.copy()
    for column in columns:
        paths = [_find_named(name, folder, split, row, column) for row, name in enumerate(table[column].to_pylist())]
        values = [path and {"bytes": None, "path": str(path)} for path in paths]
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = table.set_column(table.column_names.index(column), column, pa.array(values, kind))
        features[column] = Image()
    # Without a fingerprint, datasets would hash the whole table.
    plain = table.replace_schema_metadata(None)
    return Dataset(plain, info=DatasetInfo(features=features), fingerprint=secrets.token_hex(8))


def _find_named(name: str | None, folder: Path, split: str, row: int, column: str) -> Path | None:
    if name is None:
        return None
    if Path(name).is_absolute() and Path(name).is_relative_to(folder):
        name = str(Path(name).relative_to(folder))
    try:
        return find_image(folder, name)
    except DataError as error:
        raise DataError(str(error), split=split, row=row, column=column) from None


def _list_split_folders(root: Path) -> dict[str, Path]:
    """Return the folders of splits in `root`: one to train on and another, or none at all."""
    if not root.is_dir():
        return {}
    names = {path.name.lower(): path for path in root.iterdir() if path.is_dir()}
    found = {split: names[name] for split, usual in _SPLIT_FOLDERS.items() for name in reversed(usual) if name in names}
    return found if "train" in found and len(found) > 1 else {}


def _explain_root(root: Path, inner: Mapping[str, Path]) -> str:
    lines = ", ".join(f'{split} = "{path}"' for split, path in inner.items())
    return f"'{root}' holds folders of splits, which are not classes; they are read as [data.files] {lines}"


def _inspect_folder(root: Path, split: str) -> bool:
    """Return whether the images lie in folders of classes. Refuse a mixture, and warn of files that are no images."""
    if not root.is_dir():
        return False
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not _is_hidden(path, root)]
    images = [path for path in files if path.suffix.lower() in IMAGE_ENDINGS]
    if not images:
        raise DataError(f"there are no images in '{root}'", split=split)
    strays = [path for path in files if path.suffix.lower() not in IMAGE_ENDINGS and path.name not in _METADATA]
    if strays:
        message = f"{len(strays)} files in '{root}' are not images and are left out, such as '{strays[0].name}'"
        warnings.warn(f"split {split!r}: {message}", stacklevel=2)
    if any(path.name in _METADATA for path in files):
        return False
    _refuse_mixed_depths(root, images, split)
    _warn_of_empty_classes(root, images, split)
    return images[0].parent != root


def _refuse_mixed_depths(root: Path, images: Sequence[Path], split: str) -> None:
    depths = {len(path.relative_to(root).parts): path for path in reversed(images)}
    if len(depths) > 1:
        one, other = depths[min(depths)], depths[max(depths)]
        message = f"images lie at different depths, as '{one}' and '{other}'; put each into the folder of its class"
        raise DataError(message, split=split)


def _warn_of_empty_classes(root: Path, images: Sequence[Path], split: str) -> None:
    used = {path.relative_to(root).parts[0] for path in images}
    empty = sorted(path.name for path in root.iterdir() if path.is_dir() and path.name not in used)
    empty = [name for name in empty if not name.startswith((".", "__"))]
    if empty and any((root / name).is_dir() for name in used):
        warnings.warn(f"split {split!r}: no images are in the folders {', '.join(map(repr, empty[:5]))}", stacklevel=2)


def _is_hidden(path: Path, root: Path) -> bool:
    """Whether a file is none of the data: the reader of folders leaves such files out too."""
    return any(part.startswith((".", "__")) for part in path.relative_to(root).parts)


def _list_images(path: Path, images: Path | None, split: str) -> list[Path]:
    if path.is_dir():
        return [file for file in sorted(path.iterdir()) if file.suffix.lower() in IMAGE_ENDINGS]
    if path.suffix.lower() in IMAGE_ENDINGS:
        return [path]
    if images is None:
        message = f"'{path}' is a list of names; [data].images must say in which folder the images are"
        raise DataError(message, split=split)
    with explain_read_errors(f"'{path}'", split):
        names = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    by_name = _name_files(images, split)
    for number, name in enumerate(names, 1):
        if Path(name).stem not in by_name and name not in by_name:
            raise DataError(
                f"'{path}': line {number} names {name!r}, but no image in '{images}' is called so", split=split
            )
    return [by_name.get(name) or by_name[Path(name).stem] for name in names]


def _name_files(folder: Path, split: str) -> dict[str, Path]:
    """Return the images in a folder by their names without endings, which must differ."""
    if not folder.is_dir():
        raise DataError(f"'{folder}' is not a folder", split=split)
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGE_ENDINGS]
    by_name = {path.stem: path for path in files}
    for path in files:
        if by_name[path.stem] != path:
            raise DataError(f"'{path}' and '{by_name[path.stem].name}' have the same name", split=split)
    return by_name


def _warn_of_unused_maps(by_name: Mapping[str, Path], images: Sequence[Path], maps: Path, split: str) -> None:
    unused = len(by_name.keys() - {image.stem for image in images})
    # A list of names chooses some of many, as VOC's do.
    if unused and all(image.parent == images[0].parent for image in images) and len(images) > unused:
        warnings.warn(f"split {split!r}: {unused} label maps in '{maps}' belong to no image", stacklevel=2)
