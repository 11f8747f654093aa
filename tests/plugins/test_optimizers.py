import json
import sys

import pytest
import torch
from torch import nn

from taskrecipe.checkpoints.nested_state import pack_state, unpack_state
from taskrecipe.checkpoints.store import Checkpoints
from taskrecipe.errors import UsageError
from taskrecipe.plugins.optimizers import parameter_groups
from taskrecipe.plugins.registry import installed

# name, options, learning rate: one line for each optimizer, and for each way in which its state differs
CASES = [
    ("adamw", {}, 1e-2),
    ("adamw", {"amsgrad": True}, 1e-2),
    ("sgd", {"momentum": 0.9, "nesterov": True}, 0.02),
    ("adagrad", {}, 0.02),
    ("rmsprop", {"centered": True, "momentum": 0.5}, 1e-3),
    ("adafactor", {"beta1": 0.9}, 1e-2),
    ("adafactor", {"relative_step": True, "scale_parameter": True}, 1.0),
    ("adamw_8bit", {"min_8bit_size": 64}, 1e-2),
    ("galore", {"rank": 4, "update_proj_gap": 5}, 2e-2),
    ("galore", {"rank": 4, "update_proj_gap": 5, "proj_type": "reverse_std"}, 2e-2),
    ("galore", {"rank": 4, "update_proj_gap": 5, "proj_type": "full"}, 2e-2),
    ("apollo", {"rank": 4, "update_proj_gap": 5}, 1e-2),
    ("apollo", {"rank": 1, "proj": "svd", "scale_type": "tensor", "scale": 128.0}, 1e-3),
    ("schedule_free", {"warmup": 3}, 1e-2),
    ("lion", {}, 1e-3),
]
each_case = pytest.mark.parametrize(
    ("name", "options", "learning_rate"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)


def table_of(name, **options):
    return installed().optimizer(name).model_validate({"name": name, "weight_decay": 0.01, **options})


class Toy:
    """A small network, a problem that it can learn, and the optimizer under test."""

    def __init__(self, table, learning_rate):
        torch.manual_seed(0)
        layers = nn.Linear(40, 96), nn.LayerNorm(96), nn.Tanh(), nn.Linear(96, 48), nn.Tanh(), nn.Linear(48, 1)
        self.model = nn.Sequential(*layers)
        self.inputs = torch.randn(64, 40)
        self.targets = self.inputs[:, :1] * self.inputs[:, 1:2]
        self.optimizer = table.build(parameter_groups(self.model, table), learning_rate)

    def train(self, updates):
        losses = []
        for _ in range(updates):
            loss = (self.model(self.inputs) - self.targets).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


@each_case
def test_each_lowers_the_loss(name, options, learning_rate):
    losses = Toy(table_of(name, **options), learning_rate).train(30)
    assert losses[-1] < 0.7 * losses[0]


@each_case
def test_each_resumes_to_the_bit_from_a_checkpoint(name, options, learning_rate, tmp_path):
    table = table_of(name, **options)
    whole = Toy(table, learning_rate)
    whole.train(7)
    save(whole, tmp_path)
    expected = whole.train(8)

    resumed = Toy(table, learning_rate)
    load(resumed, tmp_path)
    assert resumed.train(8) == expected
    for key, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[key]), key


def save(toy, folder):
    tensors, skeleton = pack_state(toy.optimizer.state_dict())
    contents = {
        "model.safetensors": toy.model.state_dict(),
        "optimizer.safetensors": tensors,
        "state.json": json.dumps(skeleton, allow_nan=False).encode(),
    }
    Checkpoints(folder, keep=1, run_id="toy").commit(7, contents, best=None)


def load(toy, folder):
    checkpoint = Checkpoints(folder, keep=1, run_id="toy").at("last")
    toy.model.load_state_dict(checkpoint.tensors("model.safetensors"))
    toy.optimizer.load_state_dict(
        unpack_state(checkpoint.tensors("optimizer.safetensors"), checkpoint.json("state.json"))
    )


@pytest.mark.parametrize("options", [{}, {"proj_type": "full"}], ids=["one side", "both sides"])
def test_loaded_projectors_are_where_their_parameters_are(options):
    table = table_of("galore", rank=4, **options)
    toy, elsewhere = Toy(table, 1e-2), nn.Sequential(nn.Linear(40, 96, device="meta"))
    toy.model = nn.Sequential(nn.Linear(40, 96))
    toy.optimizer = table.build(parameter_groups(toy.model, table), 1e-2)
    toy.train(1)
    optimizer = table.build(parameter_groups(elsewhere, table), 1e-2)
    optimizer.load_state_dict(unpack_state(*pack_state(toy.optimizer.state_dict())))
    (projector,) = (state["projector"] for state in optimizer.state.values() if "projector" in state)
    matrices = projector.ortho_matrix if isinstance(projector.ortho_matrix, list) else [projector.ortho_matrix]
    assert {matrix.device.type for matrix in matrices} == {"meta"}


# Options arrive: the same steps as the library's own class with the same settings ---------------------


def adafactor(parameters, **options):
    from transformers.optimization import Adafactor

    return Adafactor(parameters, **options)


REFERENCES = [
    ("adamw", {"beta1": 0.8, "beta2": 0.9, "eps": 1e-3}, torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-3}),
    ("adamw", {"amsgrad": True}, torch.optim.AdamW, {"amsgrad": True}),
    ("sgd", {"momentum": 0.7}, torch.optim.SGD, {"momentum": 0.7}),
    ("sgd", {"momentum": 0.7, "nesterov": True}, torch.optim.SGD, {"momentum": 0.7, "nesterov": True}),
    (
        "adagrad",
        {"initial_accumulator": 0.5, "eps": 1e-3},
        torch.optim.Adagrad,
        {"initial_accumulator_value": 0.5, "eps": 1e-3},
    ),
    (
        "rmsprop",
        {"alpha": 0.7, "eps": 1e-3, "momentum": 0.5, "centered": True},
        torch.optim.RMSprop,
        {"alpha": 0.7, "eps": 1e-3, "momentum": 0.5, "centered": True},
    ),
    (
        "adafactor",
        {"eps": 1e-20, "eps_scale": 1e-2, "clip_threshold": 0.5, "decay_rate": -0.5, "beta1": 0.9},
        adafactor,
        {
            "eps": (1e-20, 1e-2),
            "clip_threshold": 0.5,
            "decay_rate": -0.5,
            "beta1": 0.9,
            "scale_parameter": False,
            "relative_step": False,
        },
    ),
    (
        "adafactor",
        {"scale_parameter": True, "eps_scale": 0.5},
        adafactor,
        {"scale_parameter": True, "relative_step": False, "eps": (1e-30, 0.5)},
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "reference", "settings"), REFERENCES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_steps_equal_those_of_the_library(name, options, reference, settings):
    toy, other = (Toy(table_of(name, **options), 1e-2) for _ in range(2))
    vectors = [p for p in other.model.parameters() if p.ndim == 1]
    matrices = [p for p in other.model.parameters() if p.ndim == 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    other.optimizer = reference(groups, lr=1e-2, **settings)
    assert toy.train(10) == pytest.approx(other.train(10), rel=1e-5)
    for mine, theirs in zip(toy.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_adamw_is_fused_where_types_allow():
    table = table_of("adamw")
    fused = table.build(parameter_groups(nn.Linear(2, 2), table), 1e-3)
    assert fused.param_groups[0]["fused"] is True
    plain = table.build(parameter_groups(nn.Linear(2, 2, dtype=torch.complex64), table), 1e-3)
    assert not plain.param_groups[0]["fused"]


# Groups -----------------------------------------------------------------------------------------------


class MyRMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))


class Rescaling(nn.LayerNorm):
    """A norm by type, not by name."""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.convolution = nn.Conv2d(1, 2, 3)
        self.batch = nn.BatchNorm2d(2)
        self.group = nn.GroupNorm(1, 2)
        self.layer = nn.LayerNorm((2, 4))
        self.rms = nn.RMSNorm((2, 4))
        self.own = MyRMSNorm()
        self.odd = Rescaling((2, 4))
        self.linear = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.position_bias_table = nn.Parameter(torch.zeros(3, 3))
        self.token = nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(4, 8)
        self.head.weight = self.embedding.weight


def test_weight_decay_spares_biases_norms_and_vectors():
    groups = parameter_groups(Model(), table_of("adamw"))
    decayed = [name for group in groups if group["weight_decay"] for name in group["param_names"]]
    assert decayed == ["embedding.weight", "convolution.weight", "linear.weight"]
    spared = {name for group in groups if not group["weight_decay"] for name in group["param_names"]}
    trained = {name for name, parameter in Model().named_parameters() if parameter.requires_grad}
    assert spared == trained - set(decayed)


def test_tied_parameters_come_once_and_frozen_ones_not_at_all():
    model = Model()
    found = [p for group in parameter_groups(model, table_of("adamw")) for p in group["params"]]
    assert len(found) == len({id(p) for p in found}) == sum(p.requires_grad for p in model.parameters())


def test_names_and_order_are_those_of_the_model():
    model = Model()
    by_name = dict(model.named_parameters())
    for group in parameter_groups(model, table_of("adamw")):
        assert [id(by_name[name]) for name in group["param_names"]] == [id(p) for p in group["params"]]
        assert group["param_names"] == [name for name in by_name if name in set(group["param_names"])]


def test_the_grouping_is_the_same_whatever_the_weight_decay():
    names = [
        [group["param_names"] for group in parameter_groups(Model(), table_of("adamw", weight_decay=decay))]
        for decay in (0.0, 0.1)
    ]
    assert names[0] == names[1]


def test_a_wholly_frozen_model_is_an_error():
    with pytest.raises(UsageError, match="nothing to train"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), table_of("sgd"))


@pytest.mark.parametrize("name", ["galore", "apollo"])
def test_only_matrices_of_linear_layers_larger_than_the_rank_are_projected(name):
    from transformers.pytorch_utils import Conv1D

    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(16, 16),
            "large": nn.Linear(16, 16),
            "gpt2": Conv1D(16, 16),
            "narrow": nn.Linear(16, 4),
            "convolution": nn.Conv1d(16, 16, 1),
        }
    )
    table = table_of(name, rank=4)
    optimizer = table.build(parameter_groups(model, table), 1e-3)
    projected = [name for group in optimizer.param_groups if "rank" in group for name in group["param_names"]]
    assert projected == ["large.weight", "gpt2.weight"]
    assert {name for group in optimizer.param_groups for name in group["param_names"]} == {
        name for name, _ in model.named_parameters()
    }
    sum(p.square().sum() for p in model.parameters()).backward()
    optimizer.step()
    with_projector = {id(p) for p, state in optimizer.state.items() if "projector" in state}
    assert with_projector == {id(model["large"].weight), id(model["gpt2"].weight)}


# Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("adamw_8bit", "bitsandbytes", "adamw-8bit"),
        ("galore", "galore_torch", "galore"),
        ("apollo", "apollo_torch", "apollo"),
        ("schedule_free", "schedulefree", "schedule-free"),
        ("lion", "lion_pytorch", "lion"),
    ],
)
def test_a_missing_package_is_told_with_the_extra_that_brings_it(name, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    table = table_of(name)
    with pytest.raises(UsageError, match=rf"{name}.*{package}.*pip install 'taskrecipe\[{extra}\]'"):
        table.require()
    with pytest.raises(UsageError, match="pip install"):
        table.build(parameter_groups(nn.Linear(2, 2), table), 1e-3)


@pytest.mark.parametrize(("name", "_options", "_rate"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_what_is_installed_is_not_missed(name, _options, _rate):
    table_of(name).require()


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("sgd", {"nesterov": True}, "nesterov"),
        ("adafactor", {"warmup_init": True}, "warmup_init"),
        ("adamw", {"beta1": 1.0}, "beta1"),
        ("adamw", {"eps": 0.0}, "eps"),
        ("adamw", {"weight_decay": -0.1}, "weight_decay"),
        ("adamw", {"amsgrad": 1}, "amsgrad"),
        ("galore", {"rank": 0}, "rank"),
        ("galore", {"proj_type": "up"}, "proj_type"),
        ("lion", {"beta2": float("nan")}, "beta2"),
    ],
)
def test_values_that_cannot_be_are_refused_by_key(name, options, key):
    with pytest.raises(ValueError, match=key):
        table_of(name, **options)


def test_which_optimizers_schedule_themselves():
    own = {name for name, _, _ in CASES if table_of(name).has_own_schedule}
    assert own == {"schedule_free"}
    assert table_of("adafactor", relative_step=True).has_own_schedule
