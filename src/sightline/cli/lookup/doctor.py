"""``sightline doctor``: is everything here that sightline needs, and does it work?"""

from __future__ import annotations

import importlib.util
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sightline.cli import console
from sightline.extras import EXTRAS

if TYPE_CHECKING:
    from sightline.models.adapter import Adapter

__all__ = ["Check", "checks", "doctor", "environment"]

State = Literal["well", "absent", "broken"]


@dataclass(frozen=True)
class Check:
    """One finding; `absent` is something optional that is not installed."""

    name: str
    state: State
    finding: str

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "finding": self.finding}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False) -> None:
    """Check the installation: versions, device, optional packages, bundled weights, a self-test, a place to write."""
    facts = environment()
    results = list(checks())
    healthy = not any(check.state == "broken" for check in results)
    if as_json:
        console.print_json({"healthy": healthy, "environment": facts, "checks": [check.json() for check in results]})
    else:
        from sightline.cli.tables import fields_table

        console.show(fields_table(list(facts.items()), ("", "")), "")
        marks = {"well": "ok", "absent": "absent", "broken": "BROKEN"}
        console.show(fields_table([(marks[check.state], check.name, check.finding) for check in results], ("", "", "")))
        console.show("", "everything that is installed works" if healthy else "something is broken; see above")
    if not healthy:
        raise typer.Exit(console.FAILED)


def environment() -> dict[str, str]:
    """Return versions, device and threads."""
    import torch

    import sightline

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "sightline": sightline.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device,
        "threads": f"{torch.get_num_threads()} of {os.cpu_count()} processors",
        "system": platform.platform(),
    }


def checks() -> Iterator[Check]:
    """Look at everything, one thing at a time."""
    for name in EXTRAS:
        yield _extra(name)
    yield _checked("torchvision", _torchvision)
    for model in ("shapes-vit", "shapes-cnn"):
        yield _checked(f"bundled/{model}", lambda model=model: _bundled(model))  # type: ignore[misc]
    yield _checked("bibliography", _bibliography)
    yield _checked("self-test", _self_test)
    yield _checked("current folder", _writable)


def _checked(name: str, look: Callable[[], str]) -> Check:
    """Run a check; whatever it raises is the finding."""
    try:
        finding = look()
    except Exception as error:  # a broken installation may raise anything, and saying so is this command's purpose
        reason = str(error).strip().partition("\n")[0]
        return Check(name, "broken", f"{type(error).__name__}: {reason}")
    return Check(name, "absent" if finding.startswith("not installed") else "well", finding)


def _extra(name: str) -> Check:
    missing = [package for package in EXTRAS[name] if importlib.util.find_spec(package) is None]
    if missing:
        return Check(f"extra {name}", "absent", f'{", ".join(missing)} missing; pip install "sightline[{name}]"')
    return Check(f"extra {name}", "well", ", ".join(f"{package} {_version(package)}" for package in EXTRAS[name]))


def _version(package: str) -> str:
    distributions = _distributions().get(package, [package])
    try:
        return metadata.version(distributions[0])
    except metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _torchvision() -> str:
    if importlib.util.find_spec("torchvision") is None:
        return 'not installed; pip install "sightline[timm]"'
    from sightline.torchvision_repair import repair_torchvision

    repaired = repair_torchvision()
    return "built for another torch, repaired for this process" if repaired else "imports as it should"


def _bundled(name: str) -> str:
    if importlib.util.find_spec("timm") is None:
        return 'not installed: the bundled models need timm; pip install "sightline[timm]"'
    from sightline.models.zoo import load

    model = load(f"bundled/{name}")
    parameters = sum(parameter.numel() for module in [model.model] for parameter in module.parameters())
    return f"loads, {parameters:,} parameters, classes {', '.join(model.labels)}"


def _bibliography() -> str:
    from sightline.citations import references

    return f"{len(references())} references"


def _self_test() -> str:
    """Explain and score with a small random network, and see that it was left as it was."""
    import torch

    from sightline import api

    model = _small()
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = model.model(images)
    attribution = api.explain(model, images, "ixg")
    scores = api.evaluate(model, images, attribution, ["insertion(step=64)", "deletion(step=64)"])
    if not torch.equal(before, model.model(images)):
        raise RuntimeError("explaining changed the model's logits")
    if attribution.pixels().shape != (2, 16, 16) or any(not values.isfinite().all() for values in scores.values()):
        raise RuntimeError("the map or its scores are not what they should be")
    return "a random network was explained and scored, and its logits are the same as before"


def _small() -> Adapter:
    """Build a small network whose weights do not depend on anyone's random state."""
    import torch
    from torch import nn

    from sightline.models.inputs import adapt

    layers = (nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    network = nn.Sequential(*layers).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return adapt(network, name="a small random network")


def _writable() -> str:
    with tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".sightline-"):
        return f"{Path.cwd()} can be written"
