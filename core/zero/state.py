"""The state of training where DeepSpeed holds it, in the same checkpoints as with every other engine."""

from __future__ import annotations

from typing_extensions import override

from taskrecipe.checkpoints.checkpoint import Checkpoint
from taskrecipe.checkpoints.safetensors_file import Shard, Tensors
from taskrecipe.training.ema import Ema
from taskrecipe.training.sharding import reshard
from taskrecipe.training.state import OPTIMIZER, STATE, TrainState
from taskrecipe.zero.optimizer import DividedOptimizer, EngineOptimizer
from taskrecipe.zero.places import held_shard, is_divided


class DividedState(TrainState):
    """A state of which every process holds a part: of the optimizer's, and at stage 3 of the weights."""

    optimizer: EngineOptimizer

    @override
    def __post_init__(self) -> None:
        self._groups = DividedOptimizer(self.optimizer)

    @property
    @override
    def is_sharded(self) -> bool:
        return True

    @override
    def estimated_bytes(self) -> int:
        sizes = [getattr(p, "ds_numel", p.numel()) * p.element_size() for p in self.module.parameters()]
        return sum(sizes) * (4 if self.ema else 3)

    @override
    def _weights(self) -> Tensors:
        weights = super()._weights()
        if not is_divided(self.module):
            return weights
        shards: dict[int, Shard] = {}  # a weight with two names is one shard, so that it is written once
        for parameter in self.module.parameters():
            shards[id(parameter)] = held_shard(parameter)
        named = dict(self.module.named_parameters(remove_duplicate=False))
        return {name: shards[id(named[name])] if name in named else value for name, value in weights.items()}

    @override
    def _average(self, ema: Ema) -> Tensors:
        if not is_divided(self.module):
            return ema.average
        return {name: held_shard(ema.parameters[name], held) for name, held in ema.average.items()}

    @override
    def _restore_parts(self, checkpoint: Checkpoint, weights: Tensors) -> None:
        reshard(self.module)  # what is gathered would still be the old weights
        super()._restore_parts(checkpoint, weights)
        self._groups.copy_weights()

    @override
    def _restore_optimizer(self, checkpoint: Checkpoint) -> None:
        self._groups.restore_parts(checkpoint.stored_tensors(OPTIMIZER), checkpoint.json(STATE)["optimizer"])
