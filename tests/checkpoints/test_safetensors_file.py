from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe.checkpoints import safetensors_file
from taskrecipe.errors import RecipeError

DTYPES = [getattr(torch, name) for name in safetensors_file.DTYPES]


def _tensor(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    random = torch.randint(0, 2 if dtype == torch.bool else 100, shape, dtype=torch.uint8)
    return random.bool() if dtype == torch.bool else random.to(dtype)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != safetensors_file.METADATA and name.isprintable()),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_the_library_reads_what_is_written(kinds: dict[str, tuple[torch.dtype, list[int]]]):
    tensors = {name: _tensor(*kind) for name, kind in kinds.items()}
    read = safetensors.torch.load(b"".join(safetensors_file.encode_tensors(tensors)))
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert _bits(read[name]) == _bits(tensor)


def _written(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / "file.safetensors"
    path.write_bytes(b"".join(safetensors_file.encode_tensors(tensors)))
    return path


def test_every_type_comes_back_and_lies_where_a_reader_can_map_it(tmp_path: Path):
    tensors = {f"{index:02d}": _tensor(dtype, [3]) for index, dtype in enumerate(reversed(DTYPES))}
    path = _written(tmp_path, tensors)
    read, entries = safetensors_file.load_tensors(path), safetensors_file.read_header(path).entries
    for name, tensor in tensors.items():
        assert (read[name].dtype, _bits(read[name])) == (tensor.dtype, _bits(tensor))
        assert entries[name].start % tensor.element_size() == 0


def test_special_numbers_keep_their_bits(tmp_path: Path):
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    read = safetensors_file.load_tensors(_written(tmp_path, {"odd": odd}))
    assert _bits(read["odd"]) == _bits(odd)


def test_memory_is_shared_where_it_can_be():
    tensor = torch.zeros(4)
    *_, buffer = safetensors_file.encode_tensors({"a": tensor})
    tensor.fill_(1.0)
    assert bytes(buffer) == _bits(torch.ones(4))


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor.t(),
        lambda tensor: tensor[:, ::2],
        lambda tensor: tensor[1:3],
        lambda tensor: tensor[:1].expand(5, 6),
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: torch.complex(tensor, tensor).conj(),
        lambda tensor: torch.complex(tensor, tensor).conj().imag,
    ],
)
def test_views_are_written_by_their_values(tmp_path: Path, view: object):
    tensor = view(torch.arange(24.0).reshape(4, 6))  # type: ignore[operator]
    assert torch.equal(safetensors_file.load_tensors(_written(tmp_path, {"view": tensor}))["view"], tensor)


def test_a_tied_tensor_is_written_once_and_read_under_both_names(tmp_path: Path):
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(50, 8)
            self.head = torch.nn.Linear(8, 50, bias=False)
            self.head.weight = self.embedding.weight

    model, other = Tied(), Tied()
    path = _written(tmp_path, model.state_dict())
    assert list(safetensors_file.read_header(path).entries) == ["embedding.weight"]
    other.load_state_dict(safetensors_file.load_tensors(path))
    assert torch.equal(other.head.weight, model.head.weight)
    assert other.head.weight is other.embedding.weight


def test_overlapping_and_empty_tensors_stay_apart(tmp_path: Path):
    whole = torch.arange(10.0)
    tensors = {"whole": whole, "part": whole[2:5], "none": torch.zeros(0), "nothing": torch.zeros(0, 3)}
    read = safetensors_file.load_tensors(_written(tmp_path, tensors))
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_what_is_loaded_does_not_need_its_file(tmp_path: Path):
    path = _written(tmp_path, {"a": torch.ones(100_000)})
    read = safetensors_file.load_tensors(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert read["a"].eq(1.0).all()


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("complex", torch.zeros(2, dtype=torch.complex128)),
        ("sparse", torch.eye(3).to_sparse()),
        (safetensors_file.METADATA, torch.zeros(1)),
    ],
)
def test_what_the_format_can_not_hold_is_named(name: str, tensor: torch.Tensor):
    with pytest.raises(RecipeError, match=f"can't keep .*{name}"):
        safetensors_file.encode_tensors({name: tensor})


@pytest.mark.parametrize(
    "content",
    [b"", b"short", b"\xff" * 16, (5).to_bytes(8, "little") + b"[1,2]", (9).to_bytes(8, "little") + b'{"a": 12}'],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "file.safetensors"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match="is not a safetensors file"):
        safetensors_file.read_header(path)


def test_the_size_is_known_before_anything_is_written():
    shared = torch.arange(12.0)
    tensors = {"a": shared, "tied": shared, "b": torch.zeros(3, dtype=torch.int8)}
    _, *memory = safetensors_file.encode_tensors(tensors)
    assert safetensors_file.tensors_size(tensors) == sum(len(buffer) for buffer in memory) == 51
