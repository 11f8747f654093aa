"""Which of a model's random draws follow the rows: dropouts of every kind do, and others are named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.dropouts import switch_on
from torch import nn
from torch.nn import functional

from taskrecipe.training.dropout import RowDropout, current_mode, narrow_rows, use_documents
from taskrecipe.training.dropout_scan import find_other_draws, warn_of_other_draws

ROWS = [5, 2, 9, 11]


def drawn(run: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, parts: int, update: int = 0):
    """What `run` gives for the rows, cut into parts."""
    mode = RowDropout(7, torch.device("cpu"))
    outputs = []
    for places in torch.arange(len(inputs)).chunk(parts):
        with mode.use_rows(update, [ROWS[place] for place in places]), mode:
            outputs.append(run(inputs[places]))
    return torch.cat(outputs)


ATTENTION, DROPPING_ATTENTION = (nn.MultiheadAttention(6, 2, dropout=rate) for rate in (0.0, 0.3))
RECURRENT, DROPPING_RECURRENT = (nn.LSTM(6, 6, num_layers=2, dropout=rate) for rate in (0.0, 0.3))


def stochastic_depth(x: torch.Tensor) -> torch.Tensor:
    return x.div(0.7) * x.new_empty([len(x), 1, 1]).bernoulli_(0.7)


def attend(x: torch.Tensor, **options) -> torch.Tensor:
    heads = x.view(*x.shape[:2], 2, -1).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3, **options)


RUNS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nn.Dropout": nn.Dropout(0.3),
    "nn.Dropout in place": lambda x: nn.Dropout(0.3, inplace=True)(x.clone()),
    "functional dropout": lambda x: functional.dropout(x, 0.3),
    "torch.dropout": lambda x: torch.dropout(x, 0.3, True),
    "torch.dropout_": lambda x: torch.dropout_(x.clone(), 0.3, True),
    "of channels": lambda x: functional.dropout1d(x, 0.3),
    "nn.Dropout2d": lambda x: nn.Dropout2d(0.3)(x.unsqueeze(-1)),
    "of vectors": lambda x: functional.dropout(x[:, 0], 0.3),
    "of numbers": lambda x: functional.dropout(x[:, 0, 0], 0.3),
    "several entries a row": lambda x: functional.dropout(x.flatten(0, 1), 0.3).view(x.shape),
    "attention": attend,
    "causal attention": lambda x: attend(x, is_causal=True),
    "drop path": lambda x: x * (0.7 + torch.rand((len(x), 1, 1), dtype=x.dtype)).floor_(),
    "drop path by bernoulli": stochastic_depth,
    "rand_like": lambda x: x * torch.rand_like(x),
    "randint_like": lambda x: x * torch.randint_like(x, 0, 3),
    "layer drop": lambda x: x * torch.rand([]),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_draw_is_the_same_in_any_split(name: str) -> None:
    inputs = torch.randn(4, 5, 6, dtype=torch.float64) + 3
    whole = drawn(RUNS[name], inputs, 1)
    for parts in (2, 4):
        assert torch.allclose(whole, drawn(RUNS[name], inputs, parts), rtol=0, atol=1e-15)
    assert any(not torch.equal(whole, drawn(RUNS[name], inputs, 1, update)) for update in range(1, 9))


@pytest.mark.parametrize("name", [name for name in RUNS if name != "layer drop"])
def test_rows_of_the_same_numbers_get_masks_of_their_own(name: str) -> None:
    inputs = (torch.randn(1, 5, 6, dtype=torch.float64) + 3).expand(4, 5, 6)
    found = [drawn(RUNS[name], inputs, 1, update) for update in range(8)]
    assert any(not torch.allclose(outputs[0], outputs[1]) for outputs in found)


@pytest.mark.parametrize("name", [name for name in RUNS if "attention" not in name])
def test_a_draw_has_the_mean_of_torch(name: str) -> None:
    inputs = torch.ones(4, 50, 60, dtype=torch.float64)
    means = [drawn(RUNS[name], inputs, 1, update).mean() for update in range(40)]
    expected = [RUNS[name](inputs).mean() for _ in range(400)]
    spread = np.std(expected) * (40**-0.5 + 400**-0.5)
    assert abs(np.mean(means) - np.mean(expected)) < 5 * spread


@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal", "grouped", "nothing to see"])
def test_attention_is_what_torch_defines(mask: str) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(4, heads, 5, 6, dtype=torch.float64) for heads in (4, 2, 2))
    options: dict = {"enable_gqa": True, "scale": 0.2 if mask == "grouped" else None}
    seen = torch.rand(4, 1, 5, 5) < 0.6
    seen[..., 0] = mask != "nothing to see"
    if mask in ("bool", "float", "nothing to see"):
        floats = torch.zeros(4, 1, 5, 5, dtype=torch.float64).masked_fill(~seen, float("-inf"))
        options["attn_mask"] = floats if mask == "float" else seen
    options["is_causal"] = mask == "causal"
    expected = functional.scaled_dot_product_attention(query, key, value, **options)

    def without_dropping(x: torch.Tensor) -> torch.Tensor:
        # A rate below 1 / 65536 drops nothing, but attention is computed explicitly.
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=1e-9, **options)

    assert torch.allclose(drawn(without_dropping, torch.zeros(4), 1), expected, atol=1e-12, equal_nan=True)


def test_layers_and_calls_have_masks_of_their_own() -> None:
    inputs = torch.ones(4, 50, 60)
    first, second = drawn(lambda x: torch.stack([functional.dropout(x), functional.dropout(x)], 1), inputs, 1).unbind(1)
    assert abs(float(((first > 0) == (second > 0)).float().mean()) - 0.5) < 0.02


def test_evaluation_draws_nothing() -> None:
    inputs = torch.randn(4, 5, 6)
    assert torch.equal(drawn(nn.Dropout(0.3).eval(), inputs, 1), inputs)
    assert torch.equal(drawn(nn.Dropout(0.0), inputs, 1), inputs)
    assert torch.equal(drawn(nn.Dropout(1.0), inputs, 1), torch.zeros_like(inputs))


def test_outside_of_rows_torch_draws() -> None:
    inputs = torch.randn(4, 5, 6)
    torch.manual_seed(3)
    expected = functional.dropout(inputs, 0.3)
    torch.manual_seed(3)
    with RowDropout(7, torch.device("cpu")):
        assert torch.equal(functional.dropout(inputs, 0.3), expected)


def test_some_rows_of_a_batch_get_their_masks() -> None:
    inputs, mode = torch.randn(4, 5, 6), RowDropout(7, torch.device("cpu"))
    whole = drawn(nn.Dropout(0.3), inputs, 1)
    with mode.use_rows(0, ROWS), mode:
        for places in ([3, 1], [0]):
            with narrow_rows(places):
                assert torch.equal(functional.dropout(inputs[places], 0.3), whole[places])
        assert torch.equal(functional.dropout(inputs, 0.3), whole)
    with narrow_rows([0]):  # where nothing draws by row it does nothing
        pass


@pytest.mark.parametrize("kind", ["hidden states", "attention"])
def test_documents_of_a_pack_get_their_masks(kind: str) -> None:
    """Two documents of 3 and 4 tokens in one row, one of 5 and padding in the other."""
    numbers = torch.tensor([[5, 5, 5, 2, 2, 2, 2], [9, 9, 9, 9, 9, 0, 0]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 0, 0]])
    shape = (7, 5) if kind == "hidden states" else (2, 7, 7)
    mode = RowDropout(7, torch.device("cpu"))
    with mode.use_rows(0, [0, 1]), mode, use_documents(numbers, positions):
        packed = functional.dropout(torch.ones(2, *shape), 0.4)
    alone = drawn(lambda x: functional.dropout(x, 0.4), torch.ones(4, *shape), 1)
    for (row, start, length), document in zip([(0, 0, 3), (0, 3, 4), (1, 0, 5)], alone, strict=False):
        part = slice(start, start + length)
        if kind == "hidden states":
            assert torch.equal(packed[row, part], document[:length])
        else:
            assert torch.equal(packed[row, :, part, part], document[:, :length, :length])


# A model that draws nothing -------------------------------------------------------------------------


def passes(rates: list[float], *, may_rest: bool) -> tuple[list[torch.Tensor], list[bool], torch.Tensor]:
    """Two passes with each rate: what they give, whether the mode was entered, and torch's generator at the end."""
    mode, outputs, seen = RowDropout(7, torch.device("cpu"), may_rest), [], []
    torch.manual_seed(0)

    def forward(rate: float) -> torch.Tensor:
        seen.append(current_mode() is mode)
        return functional.dropout(torch.ones(4, 50), rate)

    for update, rate in enumerate(rates):
        with mode.use_rows(update, ROWS):
            outputs += [mode.run(lambda rate=rate: forward(rate)) for _ in range(2)]
    return outputs, seen, torch.get_rng_state()


def test_a_model_that_draws_nothing_runs_without_the_mode() -> None:
    assert passes([0.0, 0.0], may_rest=True)[1] == [True, False, False, False]
    assert passes([0.0, 0.0], may_rest=False)[1] == [True] * 4
    assert passes([0.3, 0.0], may_rest=True)[1] == [True] * 4


def test_a_model_that_begins_to_draw_gets_the_masks_it_always_gets() -> None:
    expected, _, generator = passes([0.0, 0.0, 0.3, 0.3], may_rest=False)
    found, seen, own_generator = passes([0.0, 0.0, 0.3, 0.3], may_rest=True)
    assert seen == [True, False, False, False, False, True, True, True, True]  # the fifth pass was made again
    assert all(map(torch.equal, expected, found))
    assert not torch.equal(found[4], found[5])
    assert torch.equal(generator, own_generator)


# What is named --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda x: functional.dropout(torch.ones(7, 3), 0.3), "dropout on a tensor of shape \\(7, 3\\)"),
        (lambda x: torch.rand(3), "rand for a tensor of shape \\(3,\\)"),
        (lambda x: torch.randn(len(x)), "randn"),
        (lambda x: functional.alpha_dropout(x, 0.3, True), "alpha_dropout"),
        (lambda x: DROPPING_ATTENTION(x, x, x)[0], "multi_head_attention_forward"),
        (lambda x: DROPPING_RECURRENT(x)[0], "lstm"),
    ],
)
def test_what_cannot_follow_the_rows_is_named(run: Callable[[torch.Tensor], torch.Tensor], name: str) -> None:
    with pytest.warns(UserWarning, match=f"the model calls {name}"):
        drawn(run, torch.randn(4, 5, 6), 1)


@pytest.mark.parametrize("starts_at", [0, 2])
def test_a_draw_by_an_unknown_function_is_noticed(starts_at: int) -> None:
    mode = RowDropout(7, torch.device("cpu"), may_rest=True)
    with mode.use_rows(0, ROWS):
        for _ in range(starts_at):
            mode.run(lambda: torch.ones(3))
        with pytest.warns(UserWarning, match="the model calls a random function that is not known here"):
            mode.run(lambda: torch.poisson(torch.ones(3)))


def test_what_drops_nothing_is_not_named() -> None:
    drawn(lambda x: ATTENTION(x, x, x)[0], torch.randn(4, 5, 6), 1)
    drawn(lambda x: RECURRENT(x)[0], torch.randn(4, 5, 6), 1)
    drawn(lambda x: torch.randn(3, generator=torch.Generator()), torch.randn(4, 5, 6), 1)


def _noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _noise(x)


class Numpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if np.random.rand() < 0.1 else -x


class Quiet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.3) * torch.rand(len(x), 1, 1)


def of_type(kind: str, rate: float) -> nn.Module:
    model = nn.Dropout(rate)
    model.config = SimpleNamespace(model_type=kind)
    return model


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Noisy(), ["Noisy (randn_like)"]),
        (Numpy(), ["Numpy (np.random)"]),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.1), ["LSTM (dropout 0.1)"]),
        (nn.AlphaDropout(0.2), ["AlphaDropout (p 0.2)"]),
        (of_type("xlnet", 0.1), ["xlnet (its rows are the second dimension)"]),
        (of_type("xlnet", 0.0), []),
        (Quiet(), []),
        (nn.MultiheadAttention(6, 2), []),
    ],
)
def test_other_draws_are_found_when_the_model_is_made(model: nn.Module, found: list[str]) -> None:
    assert sorted(set(find_other_draws(nn.Sequential(model)))) == found
    if found:
        with pytest.warns(UserWarning, match="can't follow the rows"):
            warn_of_other_draws(model)
    else:
        warn_of_other_draws(model)


def test_layer_drop_and_drop_path_of_transformers_follow_the_rows() -> None:
    from transformers import BartConfig, BartModel, SwinConfig, SwinModel

    torch.manual_seed(0)
    bart = BartModel(
        BartConfig(
            vocab_size=40, d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, encoder_layerdrop=0.5,
            decoder_layerdrop=0.5, dropout=0.2, attention_dropout=0.2, activation_dropout=0.2, pad_token_id=1,
        )
    )  # fmt: skip
    swin = SwinModel(
        SwinConfig(
            image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4,
            drop_path_rate=0.5, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2,
        )
    )  # fmt: skip
    switch_on(swin)
    ids, pixels = torch.randint(2, 40, (4, 7)), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    runs = [
        (lambda x: bart.double().train()(input_ids=x).last_hidden_state, ids),
        (lambda x: swin.double().train()(pixel_values=x).last_hidden_state, pixels),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for (run, inputs), update in [(run, update) for run in runs for update in range(4)]:
            whole = drawn(run, inputs, 1, update)
            for parts in (2, 4):
                assert torch.allclose(whole, drawn(run, inputs, parts, update), atol=1e-12)


def test_a_mask2former_with_dropout_is_named() -> None:
    from tests.support.segmenters import segmenter

    model = segmenter("mask2former")
    assert list(find_other_draws(model)) == []
    switch_on(model, 0.1)
    found = set(find_other_draws(model))
    assert {"mask2former (rows are the second dimension of its decoder)", "MultiheadAttention (dropout 0.1)"} <= found
