"""Boxes: a `Box` in methods and metrics, in closed form and on the libraries' detectors; non-maximum suppression."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sightline
from sightline import Box, adapt, errors
from sightline.extras import require
from sightline.models.targets import read_target, resolve_target
from sightline.targets.boxes import non_maximum_suppression, overlap

SIZE = 32
CORNERS = ((2.0, 4.0, 14.0, 12.0), (16.0, 18.0, 30.0, 28.0))  # of the two objects that `Linear` looks for
LABELS = ("cat", "dog")


class Linear(nn.Module):
    """A detector of two fixed boxes, the scores of both labels being linear in the mean colour inside each."""

    def __init__(self, kind: str = "logits") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.2, -0.1, 0.1], [-0.05, 0.15, 0.3]]))
        self.kind = kind

    def forward(self, images: Tensor) -> Any:
        boxes = torch.tensor(CORNERS, dtype=images.dtype).expand(len(images), -1, -1)
        inside = [images[..., int(y1) : int(y2), int(x1) : int(x2)].mean(dim=(2, 3)) for x1, y1, x2, y2 in CORNERS]
        probability = 0.5 + torch.stack(inside, dim=1) @ self.weight.T.to(images)
        if self.kind == "logits":
            return {"boxes": boxes, "logits": probability.logit()}
        scores, labels = probability.max(dim=-1)
        if self.kind == "tuple":
            return boxes, labels, scores
        rows = zip(boxes, labels, scores, strict=True)
        return [{"boxes": box, "labels": label, "scores": score} for box, label, score in rows]


def detector(kind: str = "logits") -> sightline.Adapter:
    return adapt(Linear(kind).double().eval(), output="boxes", labels=LABELS)


def images(count: int = 2, size: int = SIZE) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("kind", ["logits", "tuple", "list"])
def test_the_gradient_of_a_linear_box_score_is_its_weights_inside_the_box(kind: str) -> None:
    model, batch = detector(kind), images()
    for corners in CORNERS:
        found = sightline.explain(model, batch, "ixg", target=Box(corners))
        target: Any = found.target
        for row in range(2):
            weights = model.model.weight[target.label_of(row)].detach().double()
            mask = target.mask(row)
            expected = torch.einsum("c,chw->hw", weights, batch[row]) * mask / mask.sum()
            assert int(mask.sum()) == round((corners[2] - corners[0]) * (corners[3] - corners[1]))
            assert torch.allclose(found.map[row], expected, atol=1e-7)


def test_integrated_gradients_is_complete_for_a_box() -> None:
    model, batch = detector(), images()
    found = sightline.explain(model, batch, "ig(steps=4)", target=Box(0))
    target: Any = found.target
    difference = target(model.predict(batch)) - target(model.predict(torch.zeros_like(batch)))
    assert torch.allclose(found.map.sum(dim=(1, 2)), difference, atol=1e-7)


@pytest.mark.parametrize("kind", ["logits", "tuple", "list"])
def test_the_response_of_metrics_is_overlap_times_objectness_times_likeness(kind: str) -> None:
    model, batch = detector(kind), images()
    found = sightline.explain(model, batch, "ixg", target=Box(CORNERS[1]))
    scores = sightline.evaluate(model, batch, found, ["deletion(step=200)", "energy_pointing_game"],
                                masks=torch.stack([found.target.mask(row) for row in range(2)]))  # fmt: skip
    raw = model(batch).unflatten(1, model.output_shape)
    place = (raw[..., :4] * SIZE - torch.tensor(CORNERS[1])).abs().sum(dim=-1).argmin(dim=1)
    assert torch.allclose(scores.curves["deletion(step=200)"][:, 0], raw[range(2), place, 4])
    assert torch.allclose(scores["energy_pointing_game"], torch.ones(2).double())


def test_the_surest_boxes_come_first_and_one_may_be_asked_for_by_label() -> None:
    model, batch = detector(), images(1)
    raw = model(batch).unflatten(1, model.output_shape)[0]
    order = raw[:, 5:].amax(dim=1).argsort(descending=True)
    for rank, place in enumerate(order.tolist()):
        target: Any = resolve_target(Box(rank), model, batch)
        assert target.corners() == pytest.approx(CORNERS[place])
    named: Any = resolve_target("cat", model, batch)
    assert named.corners() == pytest.approx(CORNERS[int(raw[:, 5].argmax())])
    assert named.label_of() == 0


def test_a_detection_that_moves_to_another_row_is_followed() -> None:
    model, batch = detector("list"), images(1)
    target: Any = resolve_target(Box(CORNERS[0]), model, batch)
    rows = model(batch).unflatten(1, model.output_shape)
    swapped = rows.flip(1).flatten(1)
    for score in ("logit", "probability"):
        read = Box(CORNERS[0], score=score, reference=target.reference, size=target.size)
        assert torch.equal(read(rows.flatten(1)), read(swapped))
        assert float(read(torch.zeros_like(swapped))) == 0.0  # nothing found


def test_boxes_are_kept_in_files_and_named_in_words(tmp_path: Path) -> None:
    model, batch = detector(), images(1)
    found = sightline.explain(model, batch, "ixg", target=Box(CORNERS[0], "dog"))
    assert found.labels == ("dog in the box 2, 4, 14, 12",)
    loaded = sightline.Attribution.load(found.save(tmp_path / "map.safetensors"))
    assert loaded.target.corners() == pytest.approx(CORNERS[0])
    ranking = sightline.rank(model, batch, ["ixg", "random"], target=Box(0))
    assert list(ranking.best) == ["ixg"]


def test_the_command_line_names_boxes() -> None:
    model = detector()
    assert read_target(model, "box:1") == Box(1)
    assert read_target(model, "box:dog") == Box(label="dog")
    assert read_target(model, "box:1,2,3.5,4") == Box((1.0, 2.0, 3.5, 4.0))


@pytest.mark.parametrize(("target", "sentence"), [
    (Box((-1.0, 0.0, 5.0, 5.0)), "inside it are needed"),
    (Box((1.0, 0.0, 33.0, 5.0)), r"got the box \(1.0, 0.0, 33.0, 5.0\) for an image of 32×32 pixels"),
    (Box((31.0, 0.0, 32.0, 1.0)), "finds nothing in the box"),
    (Box(7), "got box 7 of image 0; Linear finds 2, counted from 0"),
    (Box(0, "horse"), "Linear has no class called 'horse'"),
    (Box(0, 5), "got label 5 of a box; Linear has labels 0 to 1"),
    (sightline.Logit(0), "Linear returns boxes"),
    (sightline.Region(0), "got Region as a target, and Linear returns boxes"),
])  # fmt: skip
def test_bad_targets_of_a_detector_are_refused_in_one_sentence(target: Any, sentence: str) -> None:
    with pytest.raises(errors.TargetError, match=sentence):
        sightline.explain(detector(), images(), "ixg", target=target)


def test_a_detector_that_finds_nothing_and_one_that_returns_no_boxes_are_said_to() -> None:
    def nothing(batch: Tensor) -> Any:
        empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "scores": torch.zeros(0)}
        return [empty] * len(batch)

    with pytest.raises(errors.TargetError, match="nothing finds no object in image 0"):
        sightline.explain(adapt(nothing, output="boxes"), images(), "rise(samples=2)")
    with pytest.raises(errors.UnsupportedModel, match=r"boxes, labels and scores of each image are needed"):
        sightline.explain(adapt(lambda batch: batch, output="boxes"), images(), "rise(samples=2)")
    with pytest.raises(errors.TargetError, match="four numbers are needed"):
        Box((1.0, 2.0, 3.0))  # type: ignore[arg-type]


def test_suppression_keeps_what_brute_force_keeps() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        corner, side = torch.rand(30, 2, generator=generator), torch.rand(30, 2, generator=generator)
        boxes, scores = torch.cat([corner, corner + side], dim=1), torch.rand(30, generator=generator)
        kept: list[int] = []
        for index in sorted(range(30), key=lambda row: -float(scores[row])):
            if all(_iou(boxes[index].tolist(), boxes[other].tolist()) <= 0.4 for other in kept):
                kept.append(index)
        assert non_maximum_suppression(boxes, scores, 0.4).tolist() == kept
        assert require("torchvision.ops").nms(boxes, scores, 0.4).tolist() == kept
    assert len(non_maximum_suppression(torch.zeros(0, 4), torch.zeros(0), 0.5)) == 0


def _iou(one: list[float], other: list[float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    shared = max(width, 0.0) * max(height, 0.0)
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (one, other)]
    assert float(overlap(torch.tensor(one), torch.tensor(other))) == pytest.approx(shared / (sum(areas) - shared))
    return shared / (sum(areas) - shared)


# ---- detectors of the libraries -------------------------------------------------------------------------------------


def _resnet(stages: list[str]) -> Any:
    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4}
    return require("transformers").ResNetConfig(**sizes, layer_type="basic", out_features=stages)


def detr(name: str, stages: tuple[str, ...] = ("stage4",), **more: Any) -> nn.Module:
    library = require("transformers")
    parts = {f"{side}_{what}": value for side in ("encoder", "decoder")
             for what, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    plain: dict[str, Any] = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    config = getattr(library, f"{name}Config")(
        **plain, **parts | more, backbone_config=_resnet(list(stages)), d_model=32, num_queries=5, num_labels=4
    )
    return getattr(library, f"{name}ForObjectDetection")(config)  # type: ignore[no-any-return]


def deformable() -> nn.Module:
    points = {"num_feature_levels": 3, "encoder_n_points": 2, "decoder_n_points": 2}
    return detr("DeformableDetr", ("stage2", "stage3", "stage4"), decoder_layers=2, **points)


def rt_detr() -> nn.Module:
    library = require("transformers")
    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4}
    backbone = library.RTDetrResNetConfig(**sizes, layer_type="basic", out_features=["stage2", "stage3", "stage4"])
    config = library.RTDetrConfig(
        backbone_config=backbone, encoder_hidden_dim=16, encoder_in_channels=[8, 16, 16], encoder_layers=1,
        encoder_ffn_dim=16, encoder_attention_heads=2, d_model=16, num_queries=5, decoder_in_channels=[16] * 3,
        decoder_ffn_dim=16, decoder_layers=1, decoder_attention_heads=2, num_labels=4, anchor_image_size=None,
    )  # fmt: skip
    return library.RTDetrForObjectDetection(config)  # type: ignore[no-any-return]


def yolos() -> nn.Module:
    library = require("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = library.YolosConfig(**sizes, image_size=(64, 64), patch_size=16, num_detection_tokens=5, num_labels=4)
    return library.YolosForObjectDetection(config)  # type: ignore[no-any-return]


@pytest.mark.parametrize("build", [
    lambda: detr("Detr"), lambda: detr("ConditionalDetr"), deformable, rt_detr, yolos
])  # fmt: skip
def test_detectors_of_transformers_are_explained_and_left_as_they_were(build: Any) -> None:
    torch.manual_seed(0)
    network, batch = build().eval(), images(2, 64).float()
    model = adapt(network)
    assert model.output == "boxes"
    with torch.no_grad():
        raw = network(batch)
    target: Any = resolve_target(Box(0), model, batch)
    has_nothing = raw.logits.shape[-1] == 5
    probability = raw.logits.softmax(-1)[..., :4] if has_nothing else raw.logits.sigmoid()
    assert torch.allclose(target(model(batch)), probability.flatten(1).amax(dim=1), atol=1e-6)
    centre, side = raw.pred_boxes.split(2, dim=-1)
    row = int(probability[0].amax(dim=-1).argmax())
    assert target.corners()[:2] == pytest.approx(((centre - side / 2)[0, row] * 64).tolist(), abs=1e-3)
    names = ["ixg", "d_rise(samples=3)"] + ["grad_cam"] * ("layers" in model.offers)
    found = sightline.explain(model, batch, names, target=target)
    assert all(torch.isfinite(each.map).all() for each in found)
    assert float(found[0].map.abs().max()) > 0
    with torch.no_grad():
        assert torch.equal(network(batch).logits, raw.logits)


def tiny_torchvision(name: str, **more: Any) -> nn.Module:
    small: dict[str, Any] = {
        "num_classes": 5,
        "min_size": 64,
        "max_size": 64,
        "weights": None,
        "weights_backbone": None,
    }
    return getattr(require("torchvision.models.detection"), name)(**small, **more)  # type: ignore[no-any-return]


def dense_detector(name: str) -> nn.Module:
    limits = {"detections_per_img": 5, "score_thresh": 0.0, "topk_candidates": 20}
    network = tiny_torchvision(name, **limits)
    if name.startswith("fcos"):
        nn.init.ones_(network.head.regression_head.bbox_reg.bias)  # with random weights all its boxes are empty
    return network


def faster_rcnn() -> nn.Module:
    limits = {"box_detections_per_img": 5, "rpn_post_nms_top_n_test": 10, "rpn_pre_nms_top_n_test": 20,
              "rpn_score_thresh": 0.0, "box_score_thresh": 0.0}  # fmt: skip
    return tiny_torchvision("fasterrcnn_mobilenet_v3_large_320_fpn", **limits)


@pytest.mark.parametrize("build", [
    lambda: dense_detector("retinanet_resnet50_fpn"), lambda: dense_detector("fcos_resnet50_fpn"), faster_rcnn
])  # fmt: skip
def test_detectors_of_torchvision_are_explained(build: Any) -> None:
    torch.manual_seed(0)
    network, batch = build().eval(), images(1, 64).float()
    model = adapt(network)
    assert (model.output, model.mean) == ("boxes", (0.0, 0.0, 0.0))
    with torch.no_grad():
        raw = network(batch)[0]
    found = sightline.explain(
        model, batch, "ixg",
        target=Box(tuple(raw["boxes"][0].tolist()), int(raw["labels"][0])),
    )  # fmt: skip
    target: Any = found.target
    assert torch.allclose(target(model(batch)), raw["scores"][:1])
    assert float(found.map.abs().max()) > 0
