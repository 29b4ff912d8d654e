"""Raw attention, rollout and GAE where attention layers differ: CaiT, LeViT, XCiT, DETR, Conditional DETR, YOLOS."""

from typing import Any

import pytest
import torch
from tests.models.families_cnn import FAMILIES, images
from tests.models.families_vit import randomised
from tests.models.tasks.test_boxes import deformable, detr, rt_detr, yolos
from torch import Tensor, nn

import sightline
from sightline import Box, Region, adapt, errors

RECIPES = ("raw_attention", "rollout", "gae")


def softmaxes(monkeypatch: pytest.MonkeyPatch, model: nn.Module, batch: Tensor, score: Any = None) -> Any:
    """Return the results of every softmax that a model takes, and the gradients of a score there."""
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    taken: list[Tensor] = []
    own = Tensor.softmax

    def recorded(self: Tensor, *args: Any, **named: Any) -> Tensor:
        taken.append(own(self, *args, **named))
        return taken[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Tensor, "softmax", recorded)
        output = model(batch)
    means = [each.detach().mean(dim=1) for each in taken]
    if score is None:
        return means
    gradients = torch.autograd.grad(score(output).sum(), taken)
    return [(p * g).clamp(min=0).mean(dim=1).detach() for p, g in zip(taken, gradients, strict=True)]


def mixed(matrix: Tensor) -> Tensor:
    return (matrix + torch.eye(matrix.shape[-1])) / 2


def test_cait_reads_the_class_attention_and_goes_on_through_the_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = FAMILIES["timm cait"].build(), images()
    *within, first, last = softmaxes(monkeypatch, model, batch)
    raw, rolled, weighted = (sightline.explain(model, batch, recipe, target=1).map.flatten(1) for recipe in RECIPES)
    assert torch.allclose(raw, last[:, 0, 1:], atol=1e-6)
    # the class token: half stays, half comes from what it attends to, itself and the patches
    kept = (1 + last[:, :1, :1]) / 2
    patches = last[:, :, 1:] / 2 + kept * first[:, :, 1:] / 2
    for matrix in reversed(within):
        patches = patches @ mixed(matrix)
    assert torch.allclose(rolled, patches[:, 0], atol=1e-6)
    *within, first, last = softmaxes(monkeypatch, model, batch, lambda logits: logits[:, 1])
    patches = last[:, :, 1:] + (1 + last[:, :1, :1]) * first[:, :, 1:]
    for matrix in reversed(within):
        patches = patches + patches @ matrix
    assert torch.allclose(weighted, patches[:, 0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["timm levit", "timm levit, convolutional"])
def test_levit_goes_on_through_its_coarser_maps(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model, batch = FAMILIES[name].build(), images()
    found = softmaxes(monkeypatch, model, batch)
    raw, rolled, weighted = (sightline.explain(model, batch, recipe, target=1).map for recipe in RECIPES)
    assert raw.shape[1:] == (2, 2)
    assert torch.allclose(raw.flatten(1), found[-1].mean(dim=1), atol=1e-6)
    row = torch.full((2, 1, found[-1].shape[1]), 1 / found[-1].shape[1])
    relevance = row
    for matrix in reversed(found):
        row = row @ (mixed(matrix) if matrix.shape[1] == matrix.shape[2] else matrix)
    assert rolled.shape[1:] == (8, 8)
    assert torch.allclose(rolled.flatten(1), row[:, 0], atol=1e-6)
    for matrix in reversed(softmaxes(monkeypatch, model, batch, lambda logits: logits[:, 1])):
        relevance = relevance @ matrix + (relevance if matrix.shape[1] == matrix.shape[2] else 0)
    assert torch.allclose(weighted.flatten(1), relevance[:, 0], rtol=1e-3, atol=1e-5)


def test_xcit_shows_its_class_attention_and_says_that_its_blocks_attend_over_channels() -> None:
    model, batch = FAMILIES["timm xcit"].build(), images()
    found = sightline.explain(model, batch, "raw_attention", target=1).map
    assert found.shape == (2, 4, 4)
    assert (found.sum(dim=(1, 2)) < 1).all()  # the rest is the class token's own
    with pytest.raises(errors.UnsupportedModel, match=r"attends over channels.*which raw_attention shows"):
        sightline.explain(model, batch, "rollout", target=1)


@pytest.mark.parametrize("name", ["timm swin", "torchvision swin", "transformers swin", "timm hiera", "timm maxvit"])
def test_attention_in_windows_is_refused_with_its_reason(name: str) -> None:
    model, batch = FAMILIES[name].build(), images()
    with pytest.raises(
        errors.UnsupportedModel, match=r"attends within windows.*Methods that work: grad_cam, caap, ixg"
    ):
        sightline.explain(model, batch, "gae", target=1)


# ---- detectors -------------------------------------------------------------------------------------------------------


def named(name: str) -> nn.Module:
    torch.manual_seed(0)
    return randomised(detr(name, encoder_layers=2, decoder_layers=2))


def attentions(network: Any, batch: Tensor, query: int) -> tuple[Any, Any]:
    """Return what transformers itself says of encoder, decoder and cross attention, and the score's gradients there."""
    network.set_attn_implementation("eager")
    output = network(batch, output_attentions=True)
    kinds = (output.encoder_attentions, output.decoder_attentions, output.cross_attentions)
    shown = output.logits
    probability = shown.softmax(-1)[..., :4] if shown.shape[-1] == 5 else shown.sigmoid()
    score = probability[0, query].max()
    each = [p for kind in kinds for p in kind]
    gradients = torch.autograd.grad(score, each)
    weighted = [(p * g).clamp(min=0).mean(dim=1)[0].detach() for p, g in zip(each, gradients, strict=True)]
    means = [p.mean(dim=1)[0].detach() for p in each]
    layers = [len(kind) for kind in kinds]
    return [list(torch.split(torch.arange(len(each)), layers)), means], weighted


def relevance(weighted: list[Tensor], parts: list[Tensor]) -> Tensor:
    """Write out the rules of Chefer et al. (2021) for an encoder and a decoder."""

    def bar(matrix: Tensor) -> Tensor:
        rest = matrix - torch.eye(len(matrix))
        return rest / rest.sum(dim=-1, keepdim=True).clamp(min=1e-30) + torch.eye(len(matrix))

    encoder, decoder, cross = ([weighted[i] for i in part] for part in parts)
    image, queries = torch.eye(len(encoder[0])), torch.eye(len(decoder[0]))
    for matrix in encoder:
        image = image + matrix @ image
    across = torch.zeros(len(queries), len(image))
    for within, over in zip(decoder, cross, strict=True):
        queries, across = queries + within @ queries, across + within @ across
        across = across + bar(queries).T @ over @ bar(image)
    return across


@pytest.mark.parametrize("name", ["Detr", "ConditionalDetr"])
def test_detr_is_explained_as_its_authors_rules_say(name: str) -> None:
    network = named(name)
    batch = torch.randn(1, 3, 96, 64, generator=torch.Generator().manual_seed(1))
    maps = {recipe: sightline.explain(network, batch, recipe, target=Box(0)) for recipe in RECIPES}
    target: Any = maps["gae"].target
    query = int(target.matched(adapt(network)(batch)))
    (parts, means), weighted = attentions(network, batch, query)
    encoder, decoder, cross = ([means[i] for i in part] for part in parts)
    assert maps["rollout"].map.shape == (1, 3, 2)
    assert torch.allclose(maps["raw_attention"].map.flatten(), cross[-1][query], atol=1e-6)
    image, queries = mixed(encoder[1]) @ mixed(encoder[0]), mixed(decoder[1]) @ mixed(decoder[0])
    assert torch.allclose(maps["rollout"].map.flatten(), (queries.T @ cross[-1] @ image)[query], atol=1e-6)
    want = relevance(weighted, parts)[query]
    assert torch.allclose(maps["gae"].map.flatten(), want, rtol=1e-4, atol=1e-8)


def test_yolos_is_read_at_the_detection_token_of_the_box() -> None:
    torch.manual_seed(0)
    network: Any = randomised(yolos())
    batch = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    raw = sightline.explain(network, batch, "raw_attention", target=Box(0))
    rolled = sightline.explain(network, batch, "rollout", target=Box(1))
    network.set_attn_implementation("eager")
    attention = (
        network(batch, output_attentions=True).attentions[0].mean(dim=1)
    )  # one block: class, 16 patches, 5 tokens
    for found, share in ((raw, 1.0), (rolled, 0.5)):
        query: Any = found.target.matched(adapt(network)(batch))  # type: ignore[union-attr]
        want = torch.stack([attention[row, 17 + int(query[row]), 1:17] for row in range(2)])
        assert torch.allclose(found.map.flatten(1), share * want, atol=1e-6)
    assert not torch.equal(raw.map, 2 * rolled.map)  # another box, another token
    weighted = sightline.explain(network, batch, "gae", target=Box(0))
    assert float(weighted.map.min()) >= 0 < float(weighted.map.max())


@pytest.mark.parametrize("build", [deformable, rt_detr])
def test_sampled_attention_is_refused_with_its_reason(build: Any) -> None:
    torch.manual_seed(0)
    batch = torch.randn(1, 3, 64, 64)
    with pytest.raises(errors.UnsupportedModel, match=r"a few sampled points.*Methods that work: grad_cam"):
        sightline.explain(build().eval(), batch, "rollout", target=Box(0))


@pytest.mark.parametrize("build", [lambda: named("Detr"), lambda: randomised(yolos())])
def test_balanced_gradients_of_a_detection_are_not_zero(build: Any) -> None:
    """The softmax over labels is the model's last step and no attention, whose gradient libra would stop."""
    batch = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    for recipe in ("libra(ixg)", "libra(gae)"):
        assert float(sightline.explain(build(), batch, recipe, target=Box(0)).map.abs().max()) > 0


def test_options_and_targets_that_are_not_defined_there_are_refused_in_one_sentence() -> None:
    network, batch = named("Detr"), torch.randn(1, 3, 64, 64)
    for recipe in ("rollout(variant='vit_explain')", "gae(start=1)", "raw_attention(layer=0)"):
        with pytest.raises(errors.SightlineError, match=r"no plain vision transformer|only the last attention"):
            sightline.explain(network, batch, recipe, target=Box(0))
    with pytest.raises(errors.SightlineError):
        sightline.explain(network, batch, "plus(gae)", target=Box(0))
    cait = FAMILIES["timm cait"].build()
    assert float(sightline.explain(cait, images(), "rollout").map.min()) > 0
    with pytest.raises(
        errors.UnsupportedModel, match=r"grad_cam, caap and ixg work now, and sightline.register_family"
    ):
        sightline.explain(cait, images(), "t_attr")


def test_a_detector_on_patches_is_read_at_the_patches_of_the_box() -> None:
    model = sightline.load("bundled/shapes-detector")
    batch = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    box = Box((0.0, 0.0, 16.0, 8.0), 0)  # two patches of 8×8 pixels
    found = sightline.explain(model, batch, "raw_attention", target=box)
    site = model.every("probabilities")[-1]  # type: ignore[attr-defined]
    with model.capture(site) as seen:
        model(batch)
    last = seen[site].mean(dim=1)
    assert torch.allclose(found.map.flatten(1), last[:, 1:3, 1:].mean(dim=1), atol=1e-6)
    with pytest.raises(errors.TargetError):
        sightline.explain(model, batch, "rollout", target=Region(0))
