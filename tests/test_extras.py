"""Versions: of what took part, by name."""

import platform
import subprocess
import sys
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from sightline import extras, torchvision_repair
from sightline.errors import MissingExtra, SightlineError
from sightline.extras import check_installed, require
from sightline.torchvision_repair import repair_torchvision

SYMPTOM = "operator torchvision::nms does not exist"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Write packages that can be imported, and forget them afterwards."""
    real = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchvision"}
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        path = tmp_path / name.replace(".", "/") / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] in {"torchvision", "optional_thing"}]:
        del sys.modules[name]
    sys.modules.update(real)


@pytest.fixture
def declared(monkeypatch):
    """Replace the declaration of operators by a list that counts its calls."""
    calls: list[str] = []
    monkeypatch.setattr(torchvision_repair, "_declare_operators", lambda: calls.append("declared"))
    return calls


@pytest.fixture
def fake_torchvision(packages, declared):
    """Stand a torchvision of our own where the real one was."""
    torchvision_repair._forget_torchvision()
    return lambda body: packages("torchvision", body)


def run(code: str) -> str:
    """Run code in a fresh interpreter, warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_require_returns_the_module(packages):
    packages("optional_thing", "answer = 42")
    packages("optional_thing.inner", "answer = 43")
    assert require("optional_thing").answer == 42
    assert require("optional_thing.inner").answer == 43


@pytest.mark.parametrize(
    ("module", "extra"),
    [("timm", "timm"), ("huggingface_hub.constants", "timm"), ("open_clip", "clip"), ("skimage.segmentation", "photo")],
)
def test_a_missing_package_is_named_with_its_pip_line(module, extra, monkeypatch):
    package = module.partition(".")[0]

    def absent(_name):
        raise ModuleNotFoundError(package, name=package)

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(extras, "repair_torchvision", lambda: None)
    monkeypatch.setattr(extras.importlib, "import_module", absent)
    with pytest.raises(
        MissingExtra, match=rf'^{package} is not installed; pip install "sightline\[{extra}\]"$'
    ) as info:
        require(module)
    assert isinstance(info.value, SightlineError)
    assert isinstance(info.value, ImportError)


def test_a_package_that_lacks_a_package_of_its_own_says_which(packages):
    packages("optional_thing", "import its_own_dependency")
    with pytest.raises(ModuleNotFoundError, match="its_own_dependency") as info:
        require("optional_thing")
    assert not isinstance(info.value, MissingExtra)


def test_a_missing_submodule_is_not_taken_for_a_missing_package(packages):
    packages("optional_thing", "")
    with pytest.raises(ModuleNotFoundError, match=r"optional_thing\.gone") as info:
        require("optional_thing.gone")
    assert not isinstance(info.value, MissingExtra)


def test_a_package_that_no_extra_brings_is_simply_missing():
    with pytest.raises(ModuleNotFoundError, match="absent_thing") as info:
        require("absent_thing.inner")
    assert not isinstance(info.value, MissingExtra)


@pytest.mark.parametrize(
    ("module", "repaired"),
    [("timm", True), ("timm.layers", True), ("torchvision", True), ("open_clip", True), ("optional_thing", False)],
)
def test_only_packages_that_use_torchvision_repair_it_first(module, repaired, packages, monkeypatch):
    calls = []
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(extras, "repair_torchvision", lambda: calls.append("repair"))
    monkeypatch.setattr(extras.importlib, "import_module", lambda name: calls.append(name))
    require(module)
    assert calls == (["repair", module] if repaired else [module])


def test_a_module_that_is_loaded_is_not_imported_again(monkeypatch):
    monkeypatch.setattr(extras.importlib, "import_module", lambda name: pytest.fail(f"imports {name} again"))
    assert require("sys") is sys


def test_a_healthy_torchvision_is_left_alone(fake_torchvision, declared):
    fake_torchvision("loaded = True")
    assert repair_torchvision() is False
    assert sys.modules["torchvision"].loaded
    assert declared == []


def test_an_absent_torchvision_is_no_error(packages, declared, monkeypatch):
    torchvision_repair._forget_torchvision()
    monkeypatch.setattr(torchvision_repair.importlib.util, "find_spec", lambda _name: None)
    assert repair_torchvision() is False
    assert "torchvision" not in sys.modules
    assert declared == []


def test_a_broken_torchvision_is_forgotten_declared_and_imported_again(
    fake_torchvision, packages, declared, monkeypatch
):
    # Like the real one: a submodule survives the failed import and decides what the second attempt sees.
    packages("torchvision.extension", "")
    fake_torchvision(
        f"""
        import sys
        stale = "torchvision.extension" in sys.modules
        from torchvision import extension
        if not sys.operators_declared:
            raise RuntimeError({SYMPTOM!r})
        """
    )
    monkeypatch.setattr(sys, "operators_declared", declared, raising=False)
    assert repair_torchvision() is True
    assert declared == ["declared"]
    assert sys.modules["torchvision"].stale is False
    assert repair_torchvision() is False
    assert declared == ["declared"]


def test_a_repair_that_does_not_help_shows_the_error(fake_torchvision, declared):
    fake_torchvision(f"raise RuntimeError({SYMPTOM!r})")
    with pytest.raises(RuntimeError, match=f"^{SYMPTOM}$"):
        repair_torchvision()
    assert declared == ["declared"]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("raise RuntimeError('operator torchvision::roi_align does not exist')", RuntimeError),
        (f"raise RuntimeError({'while loading: ' + SYMPTOM!r})", RuntimeError),
        (f"raise ValueError({SYMPTOM!r})", ValueError),
        ("import its_own_dependency", ModuleNotFoundError),
    ],
)
def test_every_other_error_passes_through(fake_torchvision, declared, statement, error):
    fake_torchvision(statement)
    with pytest.raises(error):
        repair_torchvision()
    assert declared == []


def test_the_operators_are_declared_once_and_stay():
    assert run(
        """
        import gc, torch
        from sightline import torchvision_repair
        torchvision_repair._declare_operators()
        torchvision_repair._declare_operators()
        gc.collect()
        print(torch.ops.torchvision.nms.default._schema)
        print(torch.ops.torchvision.qnms.default._schema)
        """
    ).splitlines() == [
        "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "torchvision::qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ]


def test_the_installed_timm_and_torchvision_work_after_it():
    assert run(
        """
        import torch
        from PIL import Image
        from sightline.extras import check_installed, require

        timm = require("timm")
        torchvision = require("torchvision")
        transform = torchvision.transforms.Compose(
            [torchvision.transforms.Resize(32), torchvision.transforms.ToTensor()]
        )
        image = transform(Image.new("RGB", (48, 40)))[None]
        with torch.inference_mode():
            print(*torchvision.models.resnet18().eval()(image).shape)
            print(*timm.create_model("resnet10t").eval()(image).shape)
        """
    ).splitlines() == ["1 1000", "1 1000"]


def test_importing_extras_imports_no_optional_package():
    assert (
        run(
            """
        import sys
        import sightline.extras
        print([name for name in ("timm", "torchvision", "transformers", "open_clip") if name in sys.modules])
        """
        )
        == "[]"
    )


def test_all_that_is_missing_is_named_at_once(monkeypatch):
    check_installed("torch", "numpy")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    wanted = r'^duckdb, pandas, skimage are not installed; pip install "sightline\[bench,photo\]"$'
    with pytest.raises(MissingExtra, match=wanted):
        check_installed("torch", "duckdb", "pandas", "skimage")


def test_the_core_brings_what_the_demo_needs():
    """The packages that the bundled models and the pages need come without naming an extra."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    core = {line.split(">")[0] for line in project["dependencies"]}
    assert {"timm", "torchvision", "jinja2"} <= core


def test_versions_are_those_of_the_libraries_that_are_loaded(monkeypatch):
    import torch

    from sightline.models.zoo.ids import versions

    found = versions()
    assert found["sightline"] == version("sightline")
    assert (found["python"], found["torch"]) == (platform.python_version(), torch.__version__)
    monkeypatch.delitem(sys.modules, "PIL", raising=False)
    assert "PIL" not in versions()
