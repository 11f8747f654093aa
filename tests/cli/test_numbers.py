"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from taskrecipe.cli.help.numbers import format_change, format_duration, format_number, format_p_value, format_range


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (format_number(0.86123456), "0.8612"),
        (format_number(0.0), "0.0000"),
        (format_number(12), "12"),
        (format_number(1.234e-5), "1.234e-05"),
        (format_number(12345.678), "1.235e+04"),
        (format_number(float("nan")), "nan"),
        (format_change(0.021), "+0.0210"),
        (format_change(-0.5), "-0.5000"),
        (format_range(0.004, 0.038), "+0.0040 … +0.0380"),
        (format_range(-0.0108, 0.0005114), "-0.0108 … +0.0005"),
        (format_range(-1.5e-5, 2e-6), "-1.5e-05 … +2e-06"),
        (format_p_value(0.0123), "p = 0.012"),
        (format_p_value(0.0001), "p < 0.001"),
        (format_p_value(0.347), "p = 0.35"),
        (format_duration(59), "59 s"),
        (format_duration(7300), "2 h"),
        (format_duration(200_000), "2 d"),
    ],
)
def test_numbers_have_as_many_digits_as_they_need(written: str, expected: str) -> None:
    assert written == expected
