"""Batches that are halved, checked once, and made of repeated rows."""

from __future__ import annotations

import pytest
import torch

from sightline.errors import NumericalError
from sightline.models.passes import in_batches, require_true, take_rows


@pytest.mark.parametrize("rows", [[0], [2, 2, 2], [0, 0, 1, 2, 2], [2, 0, 2], []])
def test_rows_are_those_an_index_takes(rows: list[int]) -> None:
    values = torch.randn(3, 4, 5)
    assert torch.equal(take_rows(values, rows), values[rows])


def test_taken_rows_are_copies() -> None:
    values = torch.zeros(2, 3)
    take_rows(values, [1, 1]).add_(1)
    assert torch.equal(values, torch.zeros(2, 3))


def test_gradients_of_repeated_rows_add_up() -> None:
    values = torch.zeros(2, 3, requires_grad=True)
    take_rows(values, [0, 0, 1]).sum().backward()
    assert torch.equal(values.grad, torch.tensor([[2.0] * 3, [1.0] * 3]))


def test_a_condition_is_looked_at_after_the_last_batch() -> None:
    seen = []

    def work(part: slice) -> None:
        seen.append(part.start)
        require_true(torch.tensor(part.start != 2), NumericalError(f"wrong at {part.start}"))

    with pytest.raises(NumericalError, match="wrong at 2"):
        in_batches(work, 6, 2)
    assert seen == [0, 2, 4]


def test_batches_within_batches_are_looked_at_once() -> None:
    def inner(part: slice) -> None:
        require_true(torch.tensor(False), NumericalError("inner"))

    def outer(part: slice) -> int:
        in_batches(inner, 1, 1)
        return part.start

    with pytest.raises(NumericalError, match="inner"):
        in_batches(outer, 3, 1)


def test_outside_batches_a_condition_is_looked_at_at_once() -> None:
    require_true(torch.tensor(True), NumericalError("fine"))
    with pytest.raises(NumericalError, match="now"):
        require_true(torch.tensor(False), NumericalError("now"))


def test_nothing_is_left_to_look_at_after_an_error() -> None:
    def work(part: slice) -> None:
        require_true(torch.tensor(False), NumericalError("forgotten"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_batches(work, 2, 1)
    assert in_batches(lambda part: part.start, 2, 1) == [0, 1]


def test_a_batch_that_does_not_fit_is_halved_and_the_result_is_the_same() -> None:
    values, sizes = torch.randn(10, 3), []

    def work(part: slice) -> torch.Tensor:
        sizes.append(part.stop - part.start)
        if part.stop - part.start > 2:
            raise torch.OutOfMemoryError("too much")
        return values[part] * 2

    assert torch.equal(torch.cat(in_batches(work, 10, 8)), values * 2)
    assert sizes == [8, 4, 2, 2, 2, 2, 2]
