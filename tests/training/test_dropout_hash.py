"""The hash behind dropout: as random as independent draws, within sampling error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taskrecipe.training.dropout_hash import hash_bits, hash_places, make_noise, mix_, row_keys, site_key

WIDTH, LENGTH, ROWS = 384, 53, 32
CPU = torch.device("cpu")

KEYS = [752888910, 1564045200, -486948100]
BITS = [
    -16632,
    -6761,
    24001,
    38,
    17572,
    9025,
    -6793,
    -26187,
    31495,
    11124,
    -19699,
    -16112,
    12475,
    -2167,
    -12830,
    -385,
    -2790,
    -17438,
    7596,
    29052,
]

SCALES = [
    pytest.param(10**7, id="1e7 draws"),
    pytest.param(10**8, id="1e8 draws", marks=pytest.mark.chaos),
]


def bits(seed: int = 1, update: int = 0, site: int = 0, shape: tuple[int, ...] = (ROWS, LENGTH, WIDTH)) -> torch.Tensor:
    keys = torch.from_numpy(row_keys(seed, update, range(shape[0])))
    return hash_bits(keys, site_key(0, site), shape)


def dropped(rate: float = 0.1, **place) -> np.ndarray:
    """One where an element is dropped, as float32."""
    return (make_noise(bits(**place), rate, torch.float32) == 0).float().numpy()


def blocks(draws: int):
    """Updates until there are so many draws."""
    return range(-(-draws // (ROWS * LENGTH * WIDTH)))


def test_the_mixing_function_is_lowbias32() -> None:
    """By hand in Python's integers."""

    def lowbias32(x: int) -> int:
        x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return x ^ (x >> 16)

    numbers = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF, *range(1000, 1100)]
    mixed = mix_(torch.tensor(numbers, dtype=torch.int64).to(torch.int32))
    assert [number & 0xFFFFFFFF for number in mixed.tolist()] == [lowbias32(number) for number in numbers]


def test_masks_don_t_change_with_a_release() -> None:
    """A run that is resumed after an upgrade draws the masks that it would have drawn."""
    assert row_keys(42, 3, [0, 1, 2**40]).tolist() == KEYS
    assert bits(42, 3, 1, (2, 2, 5)).flatten().tolist() == BITS


@pytest.mark.parametrize("draws", SCALES)
def test_rate_and_variance(draws: int) -> None:
    for rate in (0.1, 0.5, 0.013):
        means, squares = [], []
        for update in blocks(draws):
            found = dropped(rate, update=update, site=int(rate * 100))
            means.append(found.mean(dtype=np.float64))
            squares.append(found.mean(axis=(1, 2), dtype=np.float64))  # the share of each row
        total = len(means) * ROWS * LENGTH * WIDTH
        drawn = round(rate * 65536) / 65536
        assert abs(np.mean(means) - drawn) < 5 * (drawn * (1 - drawn) / total) ** 0.5
        # The share of a row varies from row to row as that of independent draws does.
        shares = np.concatenate(squares)
        expected = drawn * (1 - drawn) / (LENGTH * WIDTH)
        assert abs(shares.var() / expected - 1) < 5 * (2 / len(shares)) ** 0.5


PAIRS = {
    "rows": lambda update: [dropped(update=update)[:-1], dropped(update=update)[1:]],
    "positions": lambda update: [dropped(update=update)[:, :-1], dropped(update=update)[:, 1:]],
    "channels": lambda update: [dropped(update=update)[..., :-1], dropped(update=update)[..., 1:]],
    "halves of a hash": lambda update: [dropped(update=update)[..., ::2], dropped(update=update)[..., 1::2]],
    "every other channel": lambda update: [dropped(update=update)[..., :-2], dropped(update=update)[..., 2:]],
    "updates": lambda update: [dropped(update=update), dropped(update=update + 1)],
    "layers": lambda update: [dropped(update=update), dropped(update=update, site=1)],
    "seeds": lambda update: [dropped(update=update), dropped(update=update, seed=2)],
    "row and position": lambda update: [dropped(update=update)[:-1, 1:], dropped(update=update)[1:, :-1]],
}


@pytest.mark.parametrize("draws", SCALES)
@pytest.mark.parametrize("pair", PAIRS)
def test_neighbors_are_not_correlated(pair: str, draws: int) -> None:
    rate = round(0.1 * 65536) / 65536
    found = []
    for update in blocks(draws):
        first, second = PAIRS[pair](update)
        found.append((float(((first - rate) * (second - rate)).mean(dtype=np.float64)), first.size))
    sums, sizes = zip(*found, strict=True)
    correlation = np.average(sums, weights=sizes) / (rate * (1 - rate))
    assert abs(correlation) < 5 / sum(sizes) ** 0.5


def test_attention_is_dropped_evenly_over_heads_queries_and_keys() -> None:
    found = (make_noise(bits(shape=(64, 12, 53, 53)), 0.1, torch.float32) == 0).double()
    for dims in ((0, 2, 3), (0, 1, 3), (0, 1, 2)):
        shares = found.mean(dims)
        error = (0.09 / (found.numel() / len(shares))) ** 0.5
        assert float((shares - 0.1).abs().max()) < 5 * error


@pytest.mark.chaos
def test_chi_square_of_all_values() -> None:
    """Each of the 65,536 values of an element comes equally often, and so does each pair of neighbors' high bytes."""
    counts, pairs = np.zeros(65536), np.zeros(65536)
    for update in blocks(10**8):
        values = bits(update=update).numpy().view(np.uint16)
        counts += np.bincount(values.ravel(), minlength=65536)
        high = (values >> 8).astype(np.int64)
        pairs += np.bincount((high[..., :-1] * 256 + high[..., 1:]).ravel(), minlength=65536)
    for found in (counts, pairs):
        expected = found.sum() / len(found)
        statistic = ((found - expected) ** 2 / expected).sum()
        degrees = len(found) - 1
        assert abs(statistic - degrees) < 5 * (2 * degrees) ** 0.5


@pytest.mark.chaos
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_spectrum_is_flat(axis: int) -> None:
    """No period along rows, positions or channels: every frequency has the power of independent draws."""
    shape = [64, 64, 64]
    shape[axis] = 4096
    power, count = np.zeros(shape[axis] // 2), 0
    for update in range(6):
        values = bits(update=update, shape=tuple(shape)).numpy().astype(np.float32)
        spectrum = np.abs(np.fft.rfft(values - values.mean(), axis=axis)) ** 2 / values.var()
        power += np.moveaxis(spectrum, axis, 0)[1:].reshape(shape[axis] // 2, -1).sum(1)
        count += values.size // shape[axis]
    ratio = power / (count * shape[axis])
    assert np.abs(ratio[:-1] - 1).max() < 6 * count**-0.5  # the power of a frequency is exponential: its spread is 1


def test_any_shape_and_any_number_of_rows() -> None:
    keys = torch.from_numpy(row_keys(1, 0, [3, 2**63]))
    for shape in ([2], [6], [2, 1], [2, 7], [4, 3, 5], [2, 3, 1, 1], [2, 0], [0]):
        assert hash_bits(keys, 0, shape).shape == tuple(shape)
        assert hash_places(keys, 0, shape).shape == tuple(shape)


def test_a_longer_row_begins_as_a_shorter_one() -> None:
    long, short = bits(shape=(4, 9, 7)), bits(shape=(4, 5, 7))
    assert torch.equal(long[:, :5], short)
    assert torch.equal(bits(shape=(4, 2, 9, 9))[:, :, :4, :5], bits(shape=(4, 2, 4, 5)))
