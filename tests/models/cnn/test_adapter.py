"""Convolutional adapters: cuts, CAM layers, shares, gradients, and nothing left on the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tests.models.families_cnn import CLASSES, FAMILIES, OWN, SIZE, Counting, Family, TinyCnn, TinyResnet, images
from tests.models.fingerprint import Boom, changes, exploding, fingerprint
from torch import Tensor, nn
from torch.testing import assert_close

from sightline.errors import InputError, SiteError, UnsupportedModel
from sightline.models import adapt
from sightline.models.cnn.adapter import Convolutional, Stepwise
from sightline.models.cnn.generic import GenericConvolutional
from sightline.models.passes import counting
from sightline.types import Logit

ALL = FAMILIES | OWN
every_family = pytest.mark.parametrize("family", ALL.values(), ids=ALL)


@cache
def built(family: Family) -> nn.Module:
    """Build once: no test but those that build their own may change a model."""
    return family.build()


def adapted(family: Family | Callable[[], nn.Module]) -> Convolutional:
    adapter = adapt(built(family) if isinstance(family, Family) else family().eval())
    assert isinstance(adapter, Convolutional)
    return adapter


def some(cuts: tuple[str, ...], always: tuple[str, ...] = ()) -> list[str]:
    """Return the first and the last, and some in between."""
    return list(dict.fromkeys([*cuts[:: max(1, len(cuts) // 5)], *always, cuts[-1]]))


def module(adapter: Convolutional, name: str) -> nn.Module:
    return dict(adapter.model.named_modules())[name]


# ---- cuts ------------------------------------------------------------------------------------------------------


@every_family
def test_trunk_and_tail_at_any_cut_are_the_model(family: Family) -> None:
    adapter, x = adapted(family), images()
    with torch.no_grad():
        want = adapter(x)
        for site in some(adapter.cuts, adapter.layers):
            activation = adapter.trunk(x, site)
            kept = activation.clone()
            got = adapter.tail(activation, site)
            assert_close(
                got, want, rtol=0, atol=1e-5 * want.abs().max().item(), msg=lambda text, at=site: f"{at}: {text}"
            )
            assert torch.equal(activation, kept), f"{site}: the tail wrote into its argument"
            assert activation.ndim == 4, site


@every_family
def test_a_tail_takes_more_activations_than_there_were_images(family: Family) -> None:
    adapter, x = adapted(family), images()
    with torch.no_grad():
        want = adapter(x)
        for site in (adapter.layer(0), adapter.cam_layer):
            many = adapter.trunk(x, site).repeat(3, 1, 1, 1)
            got = adapter.tail(many, site)
            assert_close(got, want.repeat(3, 1), rtol=0, atol=1e-5 * want.abs().max().item())


@every_family
def test_an_edited_activation_changes_the_logits(family: Family) -> None:
    adapter, x = adapted(family), images()
    with torch.no_grad():
        activation = adapter.trunk(x, adapter.cam_layer)
        changed = adapter.tail(torch.zeros_like(activation), adapter.cam_layer)
        assert not torch.allclose(changed, adapter(x), atol=1e-3)
        assert_close(changed[0], changed[1])  # nothing of the images gets past a cut


@every_family
def test_a_cut_that_is_a_module_is_that_modules_output(family: Family) -> None:
    adapter, x = adapted(family), images()
    for site in some(adapter.cuts, adapter.layers):
        if site not in adapter.sites:
            assert site.endswith(".concat")
            continue
        with torch.no_grad(), adapter.capture(site) as seen:
            adapter(x)
        with torch.no_grad():
            activation = adapter.trunk(x, site)
        assert_close(adapter.to_map(site, seen[site], x), activation)


def test_a_dense_layers_cut_is_everything_so_far_and_its_module_only_what_is_new() -> None:
    adapter, x = adapted(FAMILIES["torchvision densenet"]), images()
    layer = "features.denseblock3.denselayer2"
    with torch.no_grad(), adapter.capture(layer) as seen:
        adapter(x)
    with torch.no_grad():
        running = adapter.trunk(x, f"{layer}.concat")
    assert seen[layer].shape[1] == 8
    assert_close(running[:, -8:], seen[layer])
    assert running.shape[1] == adapter.trunk(x, "features.transition2").shape[1] + 2 * 8


def test_units_are_the_residual_blocks_and_dense_layers_that_patching_counts() -> None:
    blocks = adapted(FAMILIES["torchvision resnet"]).units
    assert blocks == ("layer1.0", "layer2.0", "layer2.1", "layer3.0", "layer3.1", "layer4.0")
    pools = adapted(FAMILIES["torchvision vgg"]).units
    assert pools == ("features.2", "features.4", "features.7", "features.9", "features.12")
    dense = adapted(FAMILIES["torchvision densenet"]).units
    assert dense[4] == "features.denseblock3.denselayer1.concat"


@every_family
def test_the_units_are_cuts_in_order(family: Family) -> None:
    adapter = adapted(family)
    assert len(adapter.units) == family.units
    assert list(adapter.units) == [name for name in adapter.cuts if name in adapter.units]


def test_an_unknown_cut_names_the_nearest() -> None:
    for adapter in (adapted(FAMILIES["timm resnet"]), adapted(OWN["tiny resnet"])):
        with pytest.raises(SiteError, match="there is no cut called 'layer44'; did you mean 'layer4'"):
            adapter.trunk(images(), "layer44")
        with pytest.raises(SiteError, match="there is no cut called 'fc'"):
            adapter.tail(torch.zeros(1, 16, 2, 2), "fc")


# ---- CAM layers ------------------------------------------------------------------------------------------------


@every_family
def test_the_default_cam_layer_is_the_last_map_before_pooling(family: Family) -> None:
    adapter, x = adapted(family), images()
    assert adapter.layer() == adapter.layer(-1) == adapter.cam_layer == family.cam
    assert adapter.layer(-min(2, len(adapter.layers))) == family.before
    grid = adapter.grid_of(x)
    assert (grid.height, grid.width, grid.image) == (family.grid, family.grid, (SIZE, SIZE))
    assert adapter.trunk(x, adapter.cam_layer).shape[2:] == (family.grid, family.grid)


def test_densenets_of_both_libraries_have_the_same_map_before_the_rectifier() -> None:
    for name in ("torchvision densenet", "timm densenet"):
        adapter = adapted(FAMILIES[name])
        with torch.no_grad():
            assert adapter.trunk(images(), adapter.cam_layer).min() < 0


def test_a_layer_is_named_or_counted_and_a_typo_answered() -> None:
    adapter = adapted(FAMILIES["torchvision resnet"])
    assert adapter.layer("layer2.0.conv1") == "layer2.0.conv1"
    assert adapter.layer(0) == "layer1"
    with pytest.raises(SiteError, match="did you mean 'layer3'"):
        adapter.layer("layr3")
    with pytest.raises(SiteError, match=r"got layer=4; ResNet has 4: layer1, layer2, layer3, layer4"):
        adapter.layer(4)


def test_a_map_with_channels_last_is_turned_at_any_module() -> None:
    adapter, x = adapted(FAMILIES["timm swin"]), images()
    site = "layers.3.blocks.0.norm1"  # no cut, and channels last inside
    assert site not in adapter.cuts
    with torch.no_grad(), adapter.capture(site) as seen:
        adapter(x)
    assert seen[site].shape == (2, 2, 2, 64)
    assert adapter.to_map(site, seen[site], x).shape == (2, 64, 2, 2)


@every_family
def test_the_channels_of_a_cut_and_of_any_module_are_known(family: Family) -> None:
    adapter, x = adapted(family), images()
    inner = next(name for name, site in adapter.sites.items() if isinstance(site.module, nn.Conv2d))
    for site in (adapter.cam_layer, inner):
        with torch.no_grad():
            if site in adapter.sites:
                with adapter.capture(site) as seen:
                    adapter(x)
                assert adapter.channels(site) == adapter.to_map(site, seen[site], x).shape[1]
                assert torch.equal(adapter.from_map(site, adapter.to_map(site, seen[site], x)), seen[site])
            else:
                assert adapter.channels(site) == adapter.trunk(x, site).shape[1]


def test_a_site_that_is_no_map_is_refused_with_one_that_is() -> None:
    adapter, x = adapted(FAMILIES["torchvision resnet"]), images()
    with pytest.raises(SiteError, match=r"'fc' of ResNet has the shape \(1, 7\), which is no feature map; .*'layer4'"):
        adapter.channels("fc")
    with pytest.raises(SiteError, match=r"'fc' of ResNet has the shape \(2, 7\), which is no feature map; .*'layer4'"):
        adapter.to_map("fc", adapter(x), x)


@pytest.mark.parametrize("size", [(64, 96), (128, 64)])
def test_images_need_not_be_square(size: tuple[int, int]) -> None:
    x = torch.randn(1, 3, *size)
    for family in (FAMILIES["torchvision resnet"], OWN["tiny cnn"], OWN["channels last"]):
        adapter = adapted(family)
        activation = adapter.trunk(adapter.accept(x), adapter.cam_layer)
        grid = adapter.grid_of(x)
        assert (grid.height, grid.width) == activation.shape[-2:]
        assert grid.height * size[1] == grid.width * size[0]
        assert_close(adapter.tail(activation, adapter.cam_layer), adapter(x))


# ---- shares and passes -----------------------------------------------------------------------------------------


@every_family
def test_shares_grow_along_the_cuts_and_trunk_and_tail_make_one_pass(family: Family) -> None:
    adapter, x = adapted(family), images()
    shares = [adapter.share(site) for site in adapter.cuts]
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1
    site = adapter.layer(0)
    with counting() as meter, torch.no_grad():
        adapter.tail(adapter.trunk(x, site), site)
    blank = 2 * adapter.share(site) if isinstance(adapter, GenericConvolutional) else 0.0  # it runs the trunk again
    assert meter.passes.forward == pytest.approx(2 + blank)


def test_the_share_is_that_of_the_multiplications() -> None:
    adapter = adapted(TinyCnn)
    first, second, third, last = 8 * 27 * 32**2, 12 * 72 * 16**2, 16 * 108 * 8**2, 16 * CLASSES
    adapter(images())
    assert adapter.share("features.2") == pytest.approx(first / (first + second + third + last))
    assert adapter.remaining("features.8") == pytest.approx(last / (first + second + third + last))
    assert adapter.remaining("image") == 1


def test_the_share_follows_the_image_size() -> None:
    adapter = adapted(FAMILIES["torchvision vgg"])
    adapter(images())
    small = adapter.share("features.12")
    adapter(torch.zeros(1, 3, 128, 128))
    assert adapter.share("features.12") > small  # the classifier's part does not grow with the image


def test_what_remains_after_any_module_is_what_remains_after_the_cut_before_it() -> None:
    adapter = adapted(FAMILIES["torchvision resnet"])
    assert adapter.remaining("layer3.0.conv2") == adapter.remaining("layer2")
    assert adapter.remaining("layer3") == adapter.remaining("layer3.1") < adapter.remaining("layer3.0")
    assert adapter.remaining("fc") == adapter.remaining("avgpool") == adapter.remaining("layer4") > 0
    assert adapter.remaining("conv1") > adapter.remaining("layer1")
    dense = adapted(FAMILIES["torchvision densenet"])
    block = "features.denseblock2"
    assert dense.remaining(f"{block}.denselayer2.norm1") == dense.remaining(f"{block}.denselayer1.concat")


def test_a_generic_tail_of_many_runs_the_trunk_on_one_blank_image() -> None:
    adapter, x = adapted(OWN["tiny resnet"]), images()
    site = "layer3"
    with torch.no_grad():
        many = adapter.trunk(x, site).repeat(10, 1, 1, 1)
        adapter.tail(many, site)  # tries once whether that is possible
        with counting() as meter:
            adapter.tail(many, site)
    assert meter.passes.forward == pytest.approx(20 * adapter.remaining(site) + adapter.share(site))


def test_a_model_that_counted_its_images_is_given_as_many_blank_ones() -> None:
    adapter, x = adapted(Counting), images()
    with torch.no_grad():
        many = adapter.trunk(x, "pool.input").repeat(5, 1, 1, 1)
        assert_close(adapter.tail(many, "pool.input"), adapter(x).repeat(5, 1))


def test_measuring_is_seen_by_nobody_who_watches() -> None:
    adapter, x = adapted(FAMILIES["timm resnet"]), images()
    with adapter.capture("layer3", gradient=True) as seen:
        logits = adapter(x)
        gradient = adapter.gradients(logits[:, 0], seen)["layer3"]  # measures the share inside the capture
        assert gradient.shape == seen["layer3"].shape


# ---- gradients -------------------------------------------------------------------------------------------------


def gradient_by_hand(model: nn.Module, at: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Keep a module's output before anything can write into it; a ReLU behind it gets a copy."""
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Any) -> Any:
        kept.append(output[0] if isinstance(output, tuple) else output)
        return (kept[0].clone(), *output[1:]) if isinstance(output, tuple) else output.clone()

    handle = at.register_forward_hook(keep)
    logits = model(x)
    handle.remove()
    logits = getattr(logits, "logits", logits)
    return kept[0].detach(), torch.autograd.grad(logits[:, 3].sum(), kept[0])[0]


AT_MODULES = {name: family for name, family in ALL.items() if not family.cam.endswith(".input")}


@pytest.mark.parametrize("family", AT_MODULES.values(), ids=AT_MODULES)
def test_the_gradient_at_the_cam_layer_is_autograds(family: Family) -> None:
    adapter, x = adapted(family), images().requires_grad_()
    activation, gradient = (
        adapter.to_map(family.cam, value, x)
        for value in gradient_by_hand(adapter.model, module(adapter, family.cam), x)
    )
    with adapter.capture(family.cam, gradient=True) as seen:
        score = adapter(x)[:, 3]
    captured = adapter.gradients(score, seen)[family.cam]
    scale = gradient.abs().max().item()
    assert scale > 0
    assert_close(adapter.to_map(family.cam, captured, x), gradient, rtol=1e-5, atol=1e-5 * scale)
    assert_close(adapter.to_map(family.cam, seen[family.cam].detach(), x), activation)
    got, (first, second) = adapter.activation_and_gradients(x.detach(), family.cam, [Logit(3), Logit(0)])
    assert_close(got, activation, rtol=0, atol=1e-4 * activation.abs().max().item())
    assert_close(first, gradient, rtol=0, atol=1e-4 * scale)
    assert not torch.equal(first, second)


def test_the_gradient_behind_a_rectifier_used_twice_is_the_classifiers_weight() -> None:
    adapter, x = adapted(Counting), images()
    activation, (gradient,) = adapter.activation_and_gradients(x, "pool.input", [Logit(3)])
    assert activation.min() == 0
    want = adapter.model.fc.weight[3, :, None, None].detach() / activation[0, 0].numel()
    assert_close(gradient, want.expand_as(gradient))


def test_a_graph_is_built_for_the_tail_alone() -> None:
    adapter, x = adapted(FAMILIES["torchvision resnet"]), images()
    with counting() as meter:
        adapter.activation_and_gradients(x, "layer4", [Logit(0)])
    assert meter.passes.forward == pytest.approx(2)
    assert meter.passes.backward == pytest.approx(2 * adapter.remaining("layer4"))
    assert all(parameter.grad is None for parameter in adapter.model.parameters())


def test_gradients_work_inside_inference_mode() -> None:
    adapter, x = adapted(FAMILIES["timm convnext"]), images()
    with torch.inference_mode():
        _, (gradient,) = adapter.activation_and_gradients(x, adapter.cam_layer, [Logit(1)])
    assert gradient.abs().max() > 0


# ---- which adapter ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_known_family_is_run_step_by_step(name: str) -> None:
    adapter = adapted(FAMILIES[name])
    assert isinstance(adapter, Stepwise)
    assert adapter.kind == "convolutional"
    assert adapter.offers == {"gradient", "layers", "cuts"}
    assert adapter.num_classes == CLASSES


@pytest.mark.parametrize("name", OWN)
def test_a_users_own_network_is_read_without_being_described(name: str) -> None:
    adapter = adapted(OWN[name])
    assert isinstance(adapter, GenericConvolutional)
    assert adapter.num_classes == CLASSES


def test_a_subclass_that_runs_otherwise_is_not_run_by_its_parents_plan() -> None:
    resnet = type(built(FAMILIES["torchvision resnet"]))

    class Doubled(resnet):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(2 * x)

    model = FAMILIES["torchvision resnet"].build()
    model.__class__ = Doubled
    adapter, x = adapt(model), images()
    assert isinstance(adapter, GenericConvolutional)
    assert adapter.cam_layer == "layer4.0"
    assert_close(adapter.tail(adapter.trunk(x, "layer4.0"), "layer4.0"), model(x))


def test_a_model_with_a_part_taken_out_is_read_as_it_now_is() -> None:
    model = FAMILIES["torchvision densenet"].build()
    del model.features.norm5
    model.features.norm6 = nn.BatchNorm2d(model.classifier.in_features).eval()
    adapter, x = adapt(model), images()
    assert adapter.cam_layer == "features.norm6"
    assert_close(adapter.tail(adapter.trunk(x, adapter.cam_layer), adapter.cam_layer), model(x))


def test_a_stage_replaced_by_somebodys_own_module_is_one_step() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(256, 512, 1, 2), nn.Conv2d(256, 512, 1, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x) + self.second(x)

    model = FAMILIES["torchvision resnet"].build()
    model.layer4 = Residual()
    adapter, x = adapt(model), images()
    assert "layer4.first" not in adapter.cuts
    assert_close(adapter.tail(adapter.trunk(x, "layer3"), "layer3"), model(x))


def test_an_identity_on_a_shortcut_is_no_cut() -> None:
    class Shortcut(TinyResnet):
        def __init__(self) -> None:
            super().__init__()
            self.skip = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            x = self.layer2(self.relu(self.bn1(self.conv1(x))))
            x = self.skip(x) + 0.1 * self.layer2.conv2(x)
            return self.fc(self.avgpool(self.layer4(self.layer3(x))).flatten(1))

    adapter = adapted(Shortcut)
    assert "skip" not in adapter.cuts
    assert "layer4" in adapter.cuts


def test_a_model_without_maps_is_told_what_works() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(3, 8, 3, 2)
            self.fc = nn.Linear(16, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.cat([self.left(x).mean(dim=(2, 3)), self.right(x).amax(dim=(2, 3))], dim=1))

    with pytest.raises(UnsupportedModel, match="Branches has no feature map that everything passes through"):
        adapted(Branches).layer()


def test_an_image_of_the_wrong_size_is_one_sentence() -> None:
    fixed = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, CLASSES)).eval()
    adapter = adapt(fixed)
    assert isinstance(adapter, GenericConvolutional)
    assert adapter.cam_layer == "1"  # found by trying sizes: 32 pixels
    with pytest.raises(InputError, match="Sequential cannot run on images of 64×64 pixels: "):
        adapter.accept(images())
    with pytest.raises(InputError, match="VGG cannot run on images of 4×4 pixels: "):
        adapted(FAMILIES["torchvision vgg"]).accept(torch.zeros(1, 3, 4, 4))
    with pytest.raises(InputError, match="needs 64×64"):
        adapted(FAMILIES["timm swin"]).accept(torch.zeros(1, 3, 96, 96))


def test_a_model_that_cannot_be_copied_is_measured_itself() -> None:
    class Stubborn(TinyCnn):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("cannot be copied")

    adapter, x = adapted(Stubborn), images()
    assert adapter.cam_layer == "features.8"
    assert_close(adapter.tail(adapter.trunk(x, "features.5"), "features.5"), adapter(x))
    adapter.model.train()
    before = fingerprint(adapter.model)
    adapt(adapter.model).share("features.2")
    assert changes(before, fingerprint(adapter.model)) == {}


# ---- nothing is left behind ------------------------------------------------------------------------------------


@every_family
def test_the_model_is_left_as_it_was_also_when_a_module_raises(family: Family) -> None:
    model, x = built(family), images()
    before = fingerprint(model)
    adapter = adapt(model)
    assert isinstance(adapter, Convolutional)
    site = adapter.cam_layer
    adapter.tail(adapter.trunk(x, site), site)
    adapter.activation_and_gradients(x, site, [Logit(0)])
    assert changes(before, fingerprint(model)) == {}
    last = next(part for part in reversed(list(model.modules())) if isinstance(part, nn.Linear))
    first = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
    with exploding(last), pytest.raises(Boom):
        adapter.activation_and_gradients(x, site, [Logit(0)])
    with exploding(first), pytest.raises(Boom):
        adapter.trunk(x, site)
    assert changes(before, fingerprint(model)) == {}


def test_a_weightless_copy_has_no_hooks_and_no_contents() -> None:
    from sightline.models.survey import meta_copy

    model, calls = TinyCnn(), []
    model.fc.register_forward_hook(lambda *_: calls.append(1))
    copied = meta_copy(model)
    copied(torch.zeros(1, 3, SIZE, SIZE, device="meta"))
    assert calls == []
    assert {parameter.device.type for parameter in copied.parameters()} == {"meta"}
    assert model.training
    assert not copied.training


def test_measurements_do_not_keep_a_model_alive() -> None:
    import gc
    from weakref import ref

    model = TinyCnn().eval()
    adapt(model).layer()
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None
