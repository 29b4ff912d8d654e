"""Disconnected mosaics: a stock model made to see one cell of a mosaic, so that the other cells cannot matter.

The score of a class in a cell is that of the model on that cell: with ``full`` each cell goes through the whole model
alone (DiFull), with ``part`` the mosaic goes through the convolutional layers as one picture and the head sees the
features of one cell (DiPart) :cite:p:`rao2022`. Attribution outside the cell is then wrong by construction, whatever
the model has learned.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from sightline.errors import InputError, RecipeError, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.blackbox import Opaque
from sightline.models.cnn.adapter import Convolutional

Connection = Literal["full", "part"]


class Disconnected(nn.Module):
    """A model of mosaics with one output for every cell and class, cell by cell: cell · classes + class."""

    def __init__(self, inner: Adapter, grid: tuple[int, int], connection: Connection) -> None:
        super().__init__()
        self.module = inner.model if isinstance(inner.model, nn.Module) else nn.Identity()  # so that it moves along
        self._inner = (inner,)  # in a tuple: an adapter is no module
        self.grid, self.connection = grid, connection

    def forward(self, images: Tensor) -> Tensor:
        inner = self._inner[0]
        if self.connection == "full":
            parts = cut(images, self.grid)
            logits = inner.logits(inner.forward(parts.flatten(0, 1)))
        else:
            assert isinstance(inner, Convolutional)
            features = cut(inner.trunk(images, inner.cam_layer), self.grid)
            parts = features
            logits = inner.tail(features.flatten(0, 1), inner.cam_layer)
        each: Tensor = logits.unflatten(0, parts.shape[:2])
        return each.flatten(1)


def disconnect(model: Adapter, grid: tuple[int, int] = (2, 2), connection: Connection = "full") -> Adapter:
    """Return a model of mosaics of this grid, whose output for a cell and a class depends on that cell alone.

    It offers gradients at the pixels; methods that need layers or attention cannot explain it. Its weights are those of
    the model that is given, which stays as it is.

    Args:
        model: the stock model.
        grid: rows and columns of the mosaic.
        connection: "full", each cell through the whole model alone; "part", the head alone sees one cell, for
            convolutional networks that take images of any size.
    """
    if connection not in get_args(Connection):
        raise RecipeError(f"got connection={connection!r}; choose from {', '.join(get_args(Connection))}")
    if min(grid) < 1:
        raise RecipeError(f"got grid={grid}; a mosaic has a row and a column at least")
    if "gradient" not in model.offers:
        raise UnsupportedModel(f"{model.name} is a function without gradients; give the module itself")
    if connection == "part" and (not isinstance(model, Convolutional) or model.input_size is not None):
        raise UnsupportedModel(
            f"{model.name} cannot see a mosaic as one picture; give a convolutional network without a fixed input "
            "size, or choose connection='full'"
        )
    rows, columns = grid
    facts = {name: fact for name, fact in model.facts.items() if name not in ("name", "labels", "preprocess")}
    size = None if model.input_size is None else (rows * model.input_size[0], columns * model.input_size[1])
    labels = [f"{label} in cell {cell}" for cell in range(rows * columns) for label in model.labels]
    name = f"{model.name}, {rows}×{columns} cells disconnected"
    wrapped = Disconnected(model, grid, connection).eval()
    return Opaque(wrapped, **facts | {"name": name, "labels": labels, "input_size": size})


def mosaic(pictures: Tensor, grid: tuple[int, int] = (2, 2)) -> Tensor:
    """Lay pictures, (mosaic · cells, channel, height, width), side by side: (mosaic, channel, rows · height, …).

    >>> mosaic(torch.arange(4.0).reshape(4, 1, 1, 1), (2, 2))[0, 0]
    tensor([[0., 1.],
            [2., 3.]])
    """
    rows, columns = grid
    if pictures.ndim != 4 or len(pictures) % (rows * columns):
        raise InputError(
            f"got pictures of shape {tuple(pictures.shape)} for mosaics of {rows}×{columns}; "
            "give (pictures, channel, height, width) with as many as fill every cell"
        )
    height, width = pictures.shape[-2:]
    cells: Tensor = pictures.unflatten(0, (-1, rows, columns)).permute(0, 3, 1, 4, 2, 5)
    return cells.reshape(len(cells), pictures.shape[1], rows * height, columns * width)


def cut(images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cut mosaics back into their cells, (mosaic, channel, height, width) -> (mosaic, cell, channel, …)."""
    rows, columns = grid
    height, width = images.shape[-2:]
    if height % rows or width % columns:
        raise InputError(
            f"got a mosaic of {height}×{width} for {rows}×{columns} cells; its sides must be multiples of them"
        )
    cells: Tensor = images.unflatten(3, (columns, -1)).unflatten(2, (rows, -1)).permute(0, 2, 4, 1, 3, 5)
    return cells.flatten(1, 2)


def cell_mask(size: tuple[int, int], grid: tuple[int, int], cell: int) -> Tensor:
    """Return which pixels of a mosaic of this size belong to a cell, (height, width) of 1 and 0.

    >>> cell_mask((2, 4), (1, 2), 1)
    tensor([[0, 0, 1, 1],
            [0, 0, 1, 1]])
    """
    top, left = divmod(cell, grid[1])
    height, width = size[0] // grid[0], size[1] // grid[1]
    mask = torch.zeros(size, dtype=torch.long)
    mask[top * height : (top + 1) * height, left * width : (left + 1) * width] = 1
    return mask
