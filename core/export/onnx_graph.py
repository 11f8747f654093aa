"""One ONNX graph of a recipe's model: which tensors it takes, which of its outputs are needed, and which sizes vary.

Nothing is known about the recipe. The call of the model is recorded while the recipe runs a batch: its tensors become
the graph's inputs, everything else is fixed. Of the outputs, those become the graph's that `predict` reads.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from taskrecipe.checkpoints.nested_state import pack_state, unpack_state
from taskrecipe.errors import ExportError, PluginError
from taskrecipe.export.round_trip import run_model
from taskrecipe.export.tensors import name_tensors
from taskrecipe.recipe import Batch, Recipe

BATCH, LENGTH = "batch", "length"
"""Names of the sizes that vary: rows of a batch, and tokens of a row."""

LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class Call:
    """How a recipe calls its model on a batch, and what of the outcome it uses."""

    inputs: dict[str, torch.Tensor]
    skeleton: Any
    """The arguments with each tensor replaced by its name."""
    outputs: dict[str, torch.Tensor]

    def sizes(self) -> dict[str, dict[int, str]]:
        """Return for each input its dimensions that vary, by name: the batch always, and for tokens the length."""
        shapes = {value.shape for name, value in self.inputs.items() if name.rpartition(".")[2] == "input_ids"}
        return {name: _varying(name, value, shapes) for name, value in self.inputs.items()}


def _varying(name: str, value: torch.Tensor, of_tokens: set[torch.Size]) -> dict[int, str]:
    side = name.rpartition(".")[0]
    length = f"{side}.{LENGTH}" if side else LENGTH  # two texts of a row have lengths of their own
    return {0: BATCH, value.ndim - 1: length} if value.shape in of_tokens else {0: BATCH}


def record_call(recipe: Recipe, module: torch.nn.Module, batch: Batch) -> Call:
    """Run a batch and record what the model is called with. Raise where one graph can't stand for it."""
    calls: list[dict[str, Any]] = []

    def record(called: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(dict(inspect.signature(called.forward).bind(*args, **kwargs).arguments))

    handle = module.register_forward_pre_hook(record, with_kwargs=True)
    try:
        outputs = run_model(recipe, module, batch)
    finally:
        handle.remove()
    if len(calls) != 1:
        raise _refuse(recipe, f"the model is called {len(calls)} times for one batch, and a graph is called once")
    inputs, skeleton = _split_arguments(recipe, module, calls[0])
    found = name_tensors(outputs)
    read = _read_by_predict(recipe, outputs, batch)
    return Call(inputs, skeleton, {name: value for name, value in found.items() if name in (read or found)})


def _split_arguments(recipe: Recipe, module: torch.nn.Module, call: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    rest = call.pop("kwargs", {})  # what the signature has no name for
    arguments = _add_mask(module, {**call, **rest})
    try:
        tensors, skeleton = pack_state(arguments)
    except PluginError as error:
        raise _refuse(recipe, "the model takes more than tensors and plain values") from error
    names = {name: name.replace("/", ".") for name in tensors}
    return {names[name]: value for name, value in tensors.items()}, _rename(skeleton, names)


def _rename(skeleton: Any, names: Mapping[str, str]) -> Any:
    if isinstance(skeleton, list):
        return [_rename(item, names) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    return {key: names[value] if key == "tensor" else _rename(value, names) for key, value in skeleton.items()}


def _add_mask(module: torch.nn.Module, call: dict[str, Any]) -> dict[str, Any]:
    """Add a mask of ones where rows happened to need no padding: later batches will."""
    takes_mask = "attention_mask" in inspect.signature(module.forward).parameters
    if not takes_mask or "input_ids" not in call or call.get("attention_mask") is not None or "position_ids" in call:
        return call
    return {**call, "attention_mask": torch.ones_like(call["input_ids"])}


class _Reading(Mapping[str, Any]):
    """Outputs of a model that note which of them are read."""

    def __init__(self, outputs: Any) -> None:
        self._outputs, self.names = outputs, set[str]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._outputs, name)
        self.names.add(name)
        return value

    def __getitem__(self, name: str) -> Any:
        value = self._outputs[name]
        self.names.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


def _read_by_predict(recipe: Recipe, outputs: Any, batch: Batch) -> set[str]:
    """Return the names of the outputs that `predict` reads; none if that is not known."""
    if not isinstance(outputs, Mapping):
        return set()
    reading = _Reading(outputs)
    with contextlib.suppress(Exception):  # it may need the very type of the outputs; then all of them are kept
        recipe.predict(reading, batch)
        return reading.names
    return set()


class _Graph(torch.nn.Module):
    """The model with tensors as its only arguments, and named tensors as its only outcome."""

    def __init__(self, module: torch.nn.Module, call: Call) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the model on the tensors, in the order of the call's inputs."""
        arguments = unpack_state(dict(zip(self.call.inputs, tensors, strict=True)), self.call.skeleton)
        outputs = name_tensors(self.module(**arguments))
        return tuple(outputs[name] for name in self.call.outputs)


def write_graph(recipe: Recipe, module: torch.nn.Module, call: Call, path: Path) -> None:
    """Write the model as an ONNX file. Its batch and its length, if it reads tokens, may have any size."""
    sizes = call.sizes()
    try:
        with _quiet():
            program = torch.onnx.export(
                _Graph(module, call).eval(),
                tuple(call.inputs.values()),
                dynamo=True,
                dynamic_shapes=(tuple(sizes[name] for name in call.inputs),),
                input_names=list(call.inputs),
                output_names=list(call.outputs),
                # onnxruntime optimizes the graph itself; the optimizer here breaks some, such as Deformable DETR's.
                optimize=False,
                verbose=False,
            )
            if program is None:
                raise ExportError("torch.onnx.export returned no graph")
            _remove_metadata(program)
            program.save(path)
    except Exception as error:  # the exporter has errors of its own, and passes on any of torch's
        raise _refuse(recipe, f"torch can't export a {type(module).__name__}: {_reason(error)}") from error


def _remove_metadata(program: Any) -> None:
    """Remove what the exporter notes about each node: lines of source files, with paths of this machine."""
    for graph in (program.model.graph, *program.model.functions.values()):
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
        graph.metadata_props.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the exporter prints and logs: its errors are reported."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: Exception) -> str:
    """Return the line that says why: the exporter's message has others before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.partition(">: ")[2] for line in lines if line.startswith("<class ")]
    return (causes or lines or [type(error).__name__])[0][:300]


def _refuse(recipe: Recipe, why: str) -> ExportError:
    return ExportError(
        f"recipe {recipe.spec.recipe!r} can't be exported to ONNX: {why.rstrip('.!')}. Export it with --to hf"
    )
