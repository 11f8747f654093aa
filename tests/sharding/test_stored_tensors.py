"""Tensors in the files of several processes are the tensors of one file: read whole, in part, and hashed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe.checkpoints.fingerprint import fingerprint
from taskrecipe.checkpoints.safetensors_file import Shard, encode_tensors
from taskrecipe.checkpoints.stored_tensors import StoredTensors, find_parts, part_name
from taskrecipe.errors import DamagedCheckpointError
from taskrecipe.system import atomic_files

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)


def _write(folder: Path, file: str, parts: list[dict[str, torch.Tensor | Shard]]) -> list[str]:
    folder.mkdir(exist_ok=True)
    names = [file] if len(parts) == 1 else [part_name(file, part, len(parts)) for part in range(len(parts))]
    for name, tensors in zip(names, parts, strict=True):
        (folder / name).unlink(missing_ok=True)
        atomic_files.write_new(folder / name, encode_tensors(tensors))
    return names


def _split(tensors: dict[str, torch.Tensor], cuts: list[int]) -> list[dict[str, torch.Tensor | Shard]]:
    """Divide each tensor at some places, as processes do: between rows, or within one."""
    parts: list[dict[str, torch.Tensor | Shard]] = []
    for start, stop in zip([0, *cuts], [*cuts, 10**6], strict=True):
        shards = {
            id(t): Shard(t.reshape(-1)[start:stop], min(start, t.numel()), tuple(t.shape))
            for t in tensors.values()
            if t.ndim
        }
        first = {name: t for name, t in tensors.items() if not t.ndim and not parts}
        parts.append({**{name: shards[id(t)] for name, t in tensors.items() if t.ndim}, **first})
    return parts


@settings(max_examples=60, deadline=None)
@given(DTYPES, SHAPES, st.lists(st.integers(0, 30), min_size=1, max_size=4), st.data())
def test_any_division_reads_and_hashes_the_same(
    dtype: torch.dtype, shape: tuple[int, ...], cuts: list[int], data: st.DataObject
) -> None:
    import tempfile

    whole = torch.randint(0, 2, shape).to(dtype)
    tensors = {"b": whole, "a": torch.arange(7.0), "tied": whole, "step": torch.tensor(3.0)}
    with tempfile.TemporaryDirectory() as place:
        one, many = Path(place, "one"), Path(place, "many")
        for file in ("model.safetensors", "optimizer.safetensors"):
            _write(one, file, [tensors])
            names = _write(many, file, _split(tensors, sorted(cuts)))
        stored = StoredTensors(find_parts([path.name for path in many.iterdir()], file), many.joinpath, many)
        assert names == find_parts([path.name for path in many.iterdir()], file)
        assert stored.names == tensors.keys()
        for name, tensor in tensors.items():
            read = stored.read(name)
            assert read.dtype == tensor.dtype
            assert torch.equal(read.view(torch.uint8) if read.ndim else read, _bytes(tensor))
        start = data.draw(st.integers(0, shape[0]))
        stop = data.draw(st.integers(start, shape[0]))
        assert torch.equal(_bytes(stored.read_rows("b", start, stop)), _bytes(whole[start:stop]))
        first = data.draw(st.integers(0, whole.numel()))
        last = data.draw(st.integers(first, whole.numel()))
        assert torch.equal(_bytes(stored.read_stretch("b", first, last)), _bytes(whole.reshape(-1)[first:last]))
        assert fingerprint(many) == fingerprint(one)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor


def test_a_missing_part_is_damage(tmp_path: Path) -> None:
    names = _write(tmp_path, "model.safetensors", _split({"a": torch.ones(6, 2)}, [4, 9]))
    with pytest.raises(DamagedCheckpointError, match="some are missing"):
        find_parts(names[:-1], "model.safetensors")
    with pytest.raises(DamagedCheckpointError, match="doesn't hold all of 'a'"):
        StoredTensors(names[:-1], tmp_path.joinpath, tmp_path)


def test_only_files_with_the_wanted_rows_are_opened(tmp_path: Path) -> None:
    names = _write(tmp_path, "model.safetensors", _split({"a": torch.arange(12.0).reshape(6, 2)}, [4, 8]))
    opened: list[str] = []

    def open_file(name: str) -> Path:
        opened.append(name)
        return tmp_path / name

    stored = StoredTensors(names, open_file, tmp_path)
    assert stored.read_rows("a", 2, 4).tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert opened == [names[1]]
