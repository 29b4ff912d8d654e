"""Copies of models that forget their layers, from the output to the input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import tiny
from tests.methods import reference_cnn
from tests.models import families_cnn, families_vit
from tests.models.fingerprint import changes, fingerprint
from torch import nn
from torch.nn.utils import parametrizations, weight_norm
from torch.testing import assert_close

from sightline import adapt
from sightline.errors import InputError, RecipeError, UnsupportedModel
from sightline.models.adapter import Adapter
from sightline.models.blackbox import Opaque
from sightline.models.randomise import Cascade, check_stages, copied, counts
from sightline.models.vit.zero_shot import ZeroShot, zero_shot

ALL = {f"vit {name}": one for name, one in families_vit.FAMILIES.items()} | {
    f"cnn {name}": one for name, one in families_cnn.FAMILIES.items()
}
PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def pixels_of(family):
    return families_vit.images(family) if isinstance(family, families_vit.Family) else families_cnn.images()


def names(cascade):
    return [layer.name for layer in cascade.layers]


# ---- every family --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_copy_of_any_family_forgets_everything_and_the_model_nothing(name):
    model = ALL[name].build()
    pixels = pixels_of(ALL[name])
    adapter = adapt(model)
    with torch.no_grad():
        want = adapter(pixels)
        before, random = fingerprint(model), torch.get_rng_state()
        cascade = Cascade(adapter, pixels)
        assert type(cascade.model) is type(adapter)
        assert_close(cascade.model(pixels), want)
        got = cascade.upto(len(cascade))(pixels)
        assert torch.isfinite(got).all()
        assert (got - want).abs().max() > 1e-3 * want.abs().max()
        again = adapter(pixels)
    assert torch.equal(torch.get_rng_state(), random)
    assert changes(before, fingerprint(model)) == {}
    assert_close(again, want, rtol=0, atol=0)
    fresh = dict(cascade.model.model.named_parameters())
    assert [k for k, old in model.named_parameters() if old.numel() > 3 and torch.equal(old, fresh[k])] == []
    ours = {parameter.data_ptr() for parameter in fresh.values() if parameter.numel()}
    assert not ours & {parameter.data_ptr() for parameter in model.parameters() if parameter.numel()}


# ---- the order -----------------------------------------------------------------------------------------------------


def test_a_transformer_forgets_its_head_first_and_its_patches_last(tiny_vit, images):
    found = names(Cascade(adapt(tiny_vit), images))
    last = [f"blocks.2.{part}" for part in ("mlp.fc2", "mlp.fc1", "norm2", "attn.proj", "attn.qkv", "norm1")]
    assert found[:8] == ["head", "norm", *last]
    assert sorted(found[-3:-1]) == ["cls_token", "pos_embed"]
    assert found[-1] == "patch_embed.proj"


class Crooked(nn.Module):
    """Declared in another order than used; one parameter at the exit, one at the entrance, one nowhere."""

    def __init__(self):
        super().__init__()
        self.exit = nn.Parameter(torch.randn(4, 3))
        self.entrance = nn.Parameter(torch.randn(3, 1, 1))
        self.idle = nn.Linear(5, 5)
        self.second = nn.Conv2d(4, 4, 3)
        self.first = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        found = self.second(self.first(images + self.entrance)).mean(dim=(2, 3)) @ self.exit
        assert self.entrance.size(0) == 3  # a look at its size is no use
        return found


def test_the_order_is_that_of_use_and_what_is_not_used_goes_last():
    model = Crooked().eval()
    cascade = Cascade(Opaque(model), PIXELS)
    assert names(cascade) == ["exit", "second", "first", "entrance"]
    cascade.upto(3)
    assert_close(cascade.model.model.idle.weight, model.idle.weight, rtol=0, atol=0)
    cascade.upto(4)
    assert not torch.equal(cascade.model.model.idle.weight, model.idle.weight)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.last.weight = self.first.weight

    def forward(self, images):
        return self.last(self.middle(self.first(images))).mean(dim=(2, 3))


def test_a_shared_parameter_goes_with_its_last_use_and_stays_shared():
    cascade = Cascade(Opaque(Tied().eval()), PIXELS)
    assert names(cascade) == ["last", "first", "middle"]  # `last` holds its bias alone
    copy = cascade.upto(3).model
    assert copy.last.weight is copy.first.weight


def test_layers_are_random_cumulatively_and_only_those(tiny_vit, images):
    model = adapt(tiny_vit)
    cascade = Cascade(model, images)
    cascade.upto(5)
    random = set(names(cascade)[:5])
    for name, old in tiny_vit.named_parameters():
        new = cascade.model.model.get_parameter(name)
        assert torch.equal(old, new) != (name.rsplit(".", 1)[0] in random), name
    with pytest.raises(InputError, match="a cascade only goes on"):
        cascade.upto(4)


# ---- the draw ------------------------------------------------------------------------------------------------------


def weights(model):
    return torch.cat([parameter.detach().double().flatten() for parameter in model.model.parameters()])


def test_in_stages_or_at_once_from_one_seed_the_weights_are_the_same(tiny_vit, images):
    at_once = Cascade(adapt(tiny_vit), images, seed=3)
    staged = Cascade(adapt(tiny_vit), images, seed=3)
    other = Cascade(adapt(tiny_vit), images, seed=4)
    torch.manual_seed(123)
    for count in (1, 2, 9, len(staged)):
        staged.upto(count)
        torch.rand(7)
    assert_close(weights(staged.model), weights(at_once.upto(len(at_once))), rtol=0, atol=0)
    assert not torch.equal(weights(other.upto(len(other))), weights(staged.model))


def test_equal_layers_get_different_weights(tiny_vit, images):
    cascade = Cascade(adapt(tiny_vit), images)
    blocks = cascade.upto(len(cascade)).model.blocks
    assert not torch.equal(blocks[0].mlp.fc1.weight, blocks[1].mlp.fc1.weight)


def test_the_draw_does_not_depend_on_the_precision(images):
    double = Cascade(adapt(tiny.vit().double()), images)
    single = Cascade(adapt(tiny.vit()), images.float())
    assert_close(weights(double.upto(len(double))), weights(single.upto(len(single))), rtol=0, atol=1e-6)


def test_a_module_is_reset_to_its_own_initialisation(tiny_vit, images):
    cascade = Cascade(adapt(tiny_vit), images, seed=11)
    cascade.upto(2)
    copy = cascade.model.model
    torch.manual_seed(11)
    assert_close(copy.head.weight, nn.Linear(16, 5).weight.double(), rtol=0, atol=0)
    assert_close(copy.norm.weight, torch.ones_like(copy.norm.weight))
    assert_close(copy.norm.bias, torch.zeros_like(copy.norm.bias))


def test_tokens_and_positions_keep_their_values_in_another_order(tiny_vit, images):
    cascade = Cascade(adapt(tiny_vit), images)
    copy = cascade.upto(len(cascade)).model
    for name in ("cls_token", "pos_embed"):
        old, new = getattr(tiny_vit, name), getattr(copy, name)
        assert not torch.equal(old, new)
        assert_close(old.flatten().sort().values, new.flatten().sort().values, rtol=0, atol=0)


@pytest.mark.parametrize("statistics", ["keep", "reset"])
def test_running_statistics_are_kept_or_reset(statistics, tiny_cnn, images):
    tiny_cnn.norm1.running_mean.fill_(0.5)
    cascade = Cascade(adapt(tiny_cnn), images, statistics=statistics)
    copy = cascade.upto(len(cascade)).model
    want = torch.full_like(copy.norm1.running_mean, 0.5 if statistics == "keep" else 0.0)
    assert_close(copy.norm1.running_mean, want)
    assert_close(tiny_cnn.norm1.running_mean, torch.full_like(want, 0.5))


class Needy(nn.Module):
    """A module whose reset must be told something, and one whose reset is broken."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def reset_parameters(self, scale):
        raise AssertionError

    def forward(self, images):
        return images.mean(dim=(2, 3)) @ self.weight


class Broken(Needy):
    def reset_parameters(self):
        raise NotImplementedError


@pytest.mark.parametrize("kind", [Needy, Broken])
def test_a_module_that_cannot_reset_itself_is_shuffled(kind):
    model = kind().eval()
    copy = Cascade(Opaque(model), PIXELS).upto(1).model
    assert not torch.equal(copy.weight, model.weight)
    assert_close(copy.weight.flatten().sort().values, model.weight.flatten().sort().values)


@pytest.mark.parametrize("normed", [weight_norm, parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weight_norm_can_be_copied_and_forgotten(normed):
    model = nn.Sequential(normed(nn.Conv2d(3, 4, 3)), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    model(PIXELS)
    cascade = Cascade(Opaque(model), PIXELS)
    got = cascade.upto(len(cascade))(PIXELS)
    assert (got - model(PIXELS)).abs().max() > 1e-4


# ---- Quantus -------------------------------------------------------------------------------------------------------


def test_quantus_order_and_weights_exactly():
    model, image = reference_cnn.network("tiny_cnn")
    numbers = np.load(reference_cnn.FOLDER / "metric_quantus_tiny_cnn.npz")
    cascade = Cascade(adapt(model), image, seed=42, order="quantus")
    assert names(cascade) == [f"features.{n}" if n != "fc" else n for n in ("fc", 7, 6, 4, 3, 1, 0)]
    state = cascade.upto(len(cascade)).model.state_dict()
    checked = 0
    for key in numbers:
        if key.startswith("mprt_w"):
            assert_close(state[key.split(".", 1)[1]].float(), torch.from_numpy(numbers[key]), rtol=0, atol=0)
            checked += 1
    assert checked == 20


# ---- what cannot be done -------------------------------------------------------------------------------------------


def test_a_function_has_no_layers():
    with pytest.raises(UnsupportedModel, match="is a function"):
        Cascade(adapt(lambda images: images.mean(dim=(2, 3))), PIXELS)


def test_a_model_without_parameters_cannot_be_randomised():
    with pytest.raises(UnsupportedModel, match="no parameters to randomise"):
        Cascade(adapt(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())), PIXELS)


class Own(Adapter):
    """An adapter that somebody wrote and gives as it is."""

    def grid_of(self, images):
        raise NotImplementedError


class Stubborn(Own):
    def __init__(self, model, secret):
        super().__init__(model)


def test_an_adapter_of_ones_own_is_made_again_where_it_can(tiny_cnn):
    own = Own(tiny_cnn, name="mine", batch=3)
    copy = copied(own)
    assert (type(copy), copy.name, copy.batch) == (Own, "mine", 3)
    assert copy.model is not tiny_cnn
    with pytest.raises(UnsupportedModel, match="register_family"):
        copied(Stubborn(tiny_cnn, "x"))


def test_a_clip_model_with_classes_in_words_keeps_them():
    family = families_vit.OPEN_CLIP["open_clip/clip"]
    texts = torch.randn(3, families_vit.EMBEDDING, generator=torch.Generator().manual_seed(5))
    model = zero_shot(family.build(), ["a", "b", "c"], embeddings=texts)
    pixels = families_vit.images(family)
    cascade = Cascade(model, pixels)
    assert isinstance(cascade.model, ZeroShot)
    assert cascade.model.labels == ("a", "b", "c")
    with torch.no_grad():
        want = model(pixels)
        assert_close(cascade.model(pixels), want)
        assert (cascade.upto(len(cascade))(pixels) - want).abs().max() > 1e-2
        assert_close(model(pixels), want, rtol=0, atol=0)


def test_stages_are_even_and_end_with_every_layer():
    for layers in (1, 2, 7, 40):
        for stages in (1, 3, 5, 100):
            found = counts(stages, layers)
            assert found == sorted(set(found))
            assert found[-1] == layers
            assert found[0] >= 1
    assert counts((0.5,), 8) == [4]
    assert counts(None, 3) == [1, 2, 3]


@pytest.mark.parametrize("stages", [0, -1, (), (0.5, 0.2), (0.0, 1.0), (0.5, 1.5)])
def test_stages_that_are_none_are_refused(stages):
    with pytest.raises(RecipeError, match="got stages="):
        check_stages(stages)
