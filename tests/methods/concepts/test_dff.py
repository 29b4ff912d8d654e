"""Components of activations: planted ones, grad-cam's and scikit-learn's, Eigen-CAM."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.testing import assert_close

import sightline
from sightline import errors
from sightline.extras import repair_torchvision
from sightline.methods.cam.activation import activations_at
from sightline.methods.concepts.factorisation import factorise


def activations(model: nn.Module, images: Tensor) -> Tensor:
    adapter = sightline.adapt(model)
    with torch.no_grad():
        return activations_at(adapter, images, [adapter.layer()])[0]


def test_planted_components_are_found() -> None:
    directions, maps = torch.zeros(9, 3).double(), torch.zeros(3, 20).double()
    for index in range(3):
        directions[3 * index : 3 * index + 3, index] = torch.rand(3).double() + 0.1
        maps[index, 6 * index : 6 * index + 8] = (3 - index) * (torch.rand(8).double() + 0.5)  # they overlap
    found, shown = factorise(directions @ maps, 3)
    lengths = directions.norm(dim=0)
    order = (maps * lengths[:, None]).norm(dim=1).argsort(descending=True)
    assert_close(found, (directions / lengths)[:, order], rtol=1e-6, atol=1e-6)
    assert_close(shown, (maps * lengths[:, None])[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_the_residual_is_no_larger_than_that_of_grad_cam(network: str, images: Tensor, request) -> None:
    repair_torchvision()
    from pytorch_grad_cam.feature_factorization.deep_feature_factorization import dff

    model = request.getfixturevalue(network)
    got = sightline.explain(model, images, "dff(components=3)", target=1)
    for row, activation in enumerate(activations(model, images)):
        flat = activation.flatten(1)
        shifted = flat - flat.amin(dim=1, keepdim=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn says that it has not converged
            concepts, maps = dff(activation[None].numpy().copy(), 3)
        offset = flat.amin(dim=1, keepdim=True).numpy()
        theirs = shifted.numpy() - (concepts - offset) @ maps[0].reshape(3, -1)
        own = shifted - got.details.vectors[row].T @ got.values[:, row].flatten(1)
        assert own.norm() <= 1.02 * np.linalg.norm(theirs)


def test_dff_says_what_it_explains(tiny_cnn: nn.Module, images: Tensor) -> None:
    got = sightline.explain(tiny_cnn, images, "dff(components=4)", target=1)
    assert got.values.shape == (4, 2, 8, 8)
    assert got.values.min() >= 0
    assert got.details.shares.diff(dim=1).max() <= 0
    assert_close(got.details.vectors.norm(dim=2), torch.ones(2, 4, dtype=torch.float64))
    assert got[1].details.shares.shape == (1, 4)


@pytest.mark.parametrize("network", ["tiny_cnn", "tiny_vit"])
def test_principal_components_match_scikit_learn(network: str, images: Tensor, request) -> None:
    model = request.getfixturevalue(network)
    got = sightline.explain(model, images, "pca", target=1)
    for row, activation in enumerate(activations(model, images)):
        peer = PCA(3).fit(activation.flatten(1).T.numpy())
        want = torch.from_numpy(peer.transform(activation.flatten(1).T.numpy())).T
        own = got.values[:, row].flatten(1)
        assert_close(own.abs(), want.abs(), rtol=1e-9, atol=1e-9)
        assert_close(got.details.shares[row], torch.from_numpy(peer.explained_variance_ratio_))
        centred = activation.flatten(1) - activation.flatten(1).mean(dim=1, keepdim=True)
        assert_close(got.details.vectors[row] @ centred, own)
    assert_close(got.map, sightline.explain(model, images, "eigen_cam", target=1).map)


@pytest.mark.parametrize("name", ["dff", "pca", "craft"])
def test_too_many_or_no_components_are_refused(name: str, tiny_cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(errors.RecipeError, match="components=0"):
        sightline.parse(f"{name}(components=0)")
    with pytest.raises(errors.RecipeError, match="12 channels and 64 cells, so 12 at most"):
        sightline.explain(tiny_cnn, images, f"{name}(components=13)", target=1)
