"""The house stays as drawn: who imports whom, what a file may be called, what only one room may do."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "sightline"

# What a room may import, besides the modules at the top, which are open to all. `api` is sightline/api.py
# (explain, evaluate), `__init__` the public names; both stand on the rooms to the left of `bench`.
LEFT = {"models", "perturb", "data", "methods", "operators", "metrics"}
ROOMS = {
    "models": {"data"},
    "perturb": {"models"},
    "data": set(),
    "methods": {"models", "perturb"},
    "operators": {"methods", "models", "perturb"},
    "metrics": {"models", "perturb"},
    "api": LEFT,
    "__init__": LEFT | {"api", "audit"},
    "audit": LEFT | {"api", "__init__"},
    "bench": LEFT | {"audit", "api", "__init__"},
    "report": LEFT | {"audit", "bench", "api", "__init__"},
    "app": LEFT | {"audit", "bench", "report", "api", "__init__"},
    "cli": LEFT | {"audit", "bench", "report", "app", "api", "__init__"},
    "__main__": {"cli"},
}
# Public objects draw themselves: these may fetch this module when a method of theirs is called.
DRAWING, DRAWN = "sightline.report.views", {"types", "audit"}
SHARED = {
    "catalogue",
    "targets",
}  # folders that are open to all, as the modules at the top are; they import no room either
OPEN: set[str] = set()  # a module at the top that is not in the table: open to all, so it may import no room
MODULES = 18  # a folder with more is divided into families
NAMELESS = {"common", "core", "helper", "helpers", "misc", "util", "utils"}
HOOK_FILES = {"models/capture.py", "models/edit.py"}
HOOK = re.compile(r"register_(module_)?(forward|full_backward|backward|hook|multi_grad_hook|post_accumulate_grad_hook)")
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}

Rule = Callable[[Path], list[str]]


def files(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), path


def nodes(root: Path) -> Iterator[tuple[str, ast.AST]]:
    for name, path in files(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield name, node


def room_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


def imported(tree: ast.AST, name: str) -> Iterator[str]:
    """Yield the full name of everything that the file `name` imports, also inside functions."""
    package = ["sightline", *name.split("/")[:-1]]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = package[: len(package) - level + 1] if level else []
                base = [*base, *([module] if module else [])]
                yield from (".".join([*base, alias.name]) for alias in aliases)


def without_annotations(tree: ast.Module) -> ast.Module:
    """Drop ``if TYPE_CHECKING:`` blocks."""

    class Drop(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            return node.orelse if ast.unparse(node.test).endswith("TYPE_CHECKING") else self.generic_visit(node)

    return Drop().visit(tree)


def without_drawing(tree: ast.Module) -> ast.Module:
    """Drop imports of the module that draws, inside functions."""

    class Drop(ast.NodeTransformer):
        inside = 0

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            self.inside += 1
            self.generic_visit(node)
            self.inside -= 1
            return node

        def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
            return None if self.inside and node.module == DRAWING else node

    return Drop().visit(tree)


def rooms_imported(root: Path, name: str, path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if room_of(name) in DRAWN:
        tree = without_drawing(tree)
    if room_of(name) not in ROOMS:  # the nouns may mention a room's types in their annotations
        tree = without_annotations(tree)
    rooms = set()
    for full in imported(tree, name):
        package, _, rest = full.partition(".")
        if package != "sightline":
            continue
        first = rest.partition(".")[0]
        inside = (root / first).is_dir() or (root / f"{first}.py").is_file()
        rooms.add(first if first and inside else "__init__")
    return rooms


def wrong_direction(root: Path) -> list[str]:
    crossed = []
    for name, path in files(root):
        room = room_of(name)
        rooms = rooms_imported(root, name, path) - SHARED
        closed = {other for other in rooms if other in ROOMS or (root / other).is_dir()}
        crossed += [f"{name} imports {other}" for other in sorted(closed - {room} - ROOMS.get(room, OPEN))]
    return crossed


def unknown_room(root: Path) -> list[str]:
    return sorted({room_of(name) for name, _ in files(root) if "/" in name} - set(ROOMS) - SHARED)


def too_deep(root: Path) -> list[str]:
    return [name for name, _ in files(root) if name.count("/") > 2]


def crowded(root: Path) -> list[str]:
    modules = Counter(str(Path(name).parent) for name, _ in files(root) if not name.endswith("__init__.py"))
    return [f"{folder} has {count} modules" for folder, count in modules.items() if count > MODULES]


def nameless(root: Path) -> list[str]:
    return [name for name, _ in files(root) if NAMELESS & set(name.removesuffix(".py").split("/"))]


def hooks_elsewhere(root: Path) -> list[str]:
    return [name for name, path in files(root) if name not in HOOK_FILES and HOOK.search(path.read_text("utf-8"))]


def prints(root: Path) -> list[str]:
    return [f"{name}:{call.lineno}" for name, call in calls(root, "print") if room_of(name) != "cli"]


def evaluates(root: Path) -> list[str]:
    return [f"{name}:{call.lineno}" for called in ("eval", "exec") for name, call in calls(root, called)]


def pickles(root: Path) -> list[str]:
    found = []
    for name, path in files(root):
        modules = {full.partition(".")[0] for full in imported(ast.parse(path.read_text(encoding="utf-8")), name)}
        found += [f"{name} imports {module}" for module in sorted(modules & PICKLES)]
    for name, node in nodes(root):
        match node:
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=False)):
                pass
            case ast.keyword(arg="allow_pickle"):
                found.append(f"{name}:{node.value.lineno} allows pickle")
    return found


def loads_unsafely(root: Path) -> list[str]:
    found = []
    for name, node in nodes(root):
        match node:
            case ast.ImportFrom(module="torch", names=aliases) if any(alias.name == "load" for alias in aliases):
                found.append(f"{name}:{node.lineno} hides torch.load behind another name")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=options):
                if not any(o.arg == "weights_only" and getattr(o.value, "value", None) is True for o in options):
                    found.append(f"{name}:{node.lineno} calls torch.load without weights_only=True")
    return found


def calls(root: Path, called: str) -> Iterator[tuple[str, ast.Call]]:
    for name, node in nodes(root):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == called:
            yield name, node


RULES: list[Rule] = [
    wrong_direction, unknown_room, too_deep, crowded, nameless, hooks_elsewhere, prints, evaluates, pickles,
    loads_unsafely,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_stays_as_drawn(rule: Rule):
    assert rule(SOURCE) == []


@pytest.fixture
def house(tmp_path):
    """A small tree that breaks no rule."""
    texts = {
        "__init__.py": "from sightline.api import explain\nfrom sightline.models import adapter",
        "__main__.py": "from sightline.cli import main",
        "api.py": "from sightline import methods, types\nfrom sightline.data import images\nimport torch",
        "types.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sightline.models import adapter",
        "models/__init__.py": "from . import adapter",
        "models/adapter.py": "from sightline.types import Target\nmodel.eval()",
        "models/capture.py": "module.register_forward_hook(hook)",
        "models/edit.py": "tensor.register_hook(hook)",
        "models/zoo.py": "torch.load(path, map_location='cpu', weights_only=True)",
        "catalogue/calls.py": "import ast",
        "methods/__init__.py": "from sightline.catalogue import calls",
        "methods/cam.py": "from ..models import adapter\nfrom . import gradient\nmodule.register_buffer('x', y)",
        "data/images.py": "import numpy\nnumpy.load(path, allow_pickle=False)",
        "audit/ranking.py": "from sightline import api\ndef f():\n    from sightline.report.views import page",
        "report/page.py": "from sightline.bench import table",
        "bench/table.py": "import sightline.metrics.faithfulness",
        "metrics/faithfulness.py": "from sightline.perturb.curve import response_curve",
        "perturb/curve.py": "",
        "cli/main.py": "from sightline import explain, report\nfrom sightline.app import server\nprint('done')",
        "app/server.py": "",
    }
    for name, text in texts.items():
        plant(tmp_path, name, text)
    return tmp_path


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_sound_house_breaks_no_rule(rule: Rule, house):
    assert rule(house) == []


UNSAFE = "models/bad.py:1 calls torch.load without weights_only=True"
VIEWS = "metrics/bad.py imports report"
HIDDEN = "models/bad.py:1 hides torch.load behind another name"


@pytest.mark.parametrize(
    ("rule", "name", "text", "found"),
    [
        (wrong_direction, "methods/bad.py", "from sightline.metrics import x", "methods/bad.py imports metrics"),
        (
            wrong_direction,
            "methods/bad.py",
            "import sightline.metrics.faithfulness",
            "methods/bad.py imports metrics",
        ),
        (wrong_direction, "methods/bad.py", "from ..metrics import faithfulness", "methods/bad.py imports metrics"),
        (wrong_direction, "methods/bad.py", "from .. import metrics", "methods/bad.py imports metrics"),
        (wrong_direction, "methods/bad.py", "from sightline import metrics", "methods/bad.py imports metrics"),
        (wrong_direction, "methods/bad.py", "def f():\n    import sightline.cli", "methods/bad.py imports cli"),
        (wrong_direction, "methods/bad.py", "from sightline import explain", "methods/bad.py imports __init__"),
        (wrong_direction, "methods/bad.py", "from sightline.api import explain", "methods/bad.py imports api"),
        (wrong_direction, "models/bad.py", "from sightline.perturb import curve", "models/bad.py imports perturb"),
        (wrong_direction, "data/bad.py", "from sightline.models import zoo", "data/bad.py imports models"),
        (wrong_direction, "report/bad.py", "from sightline.cli import main", "report/bad.py imports cli"),
        (wrong_direction, "app/bad.py", "from sightline.cli import main", "app/bad.py imports cli"),
        (wrong_direction, "api.py", "from sightline.bench import table", "api.py imports bench"),
        (wrong_direction, "__init__.py", "from sightline.report import page", "__init__.py imports report"),
        (wrong_direction, "audit/bad.py", "from sightline.report.views import x", "audit/bad.py imports report"),
        (wrong_direction, "audit/bad.py", "def f():\n    import sightline.report", "audit/bad.py imports report"),
        (wrong_direction, "metrics/bad.py", "def f():\n    from sightline.report.views import x", VIEWS),
        (wrong_direction, "catalogue/bad.py", "import sightline.methods", "catalogue/bad.py imports methods"),
        (wrong_direction, "recipe.py", "from sightline.methods import cam", "recipe.py imports methods"),
        (unknown_room, "attic/bad.py", "", "attic"),
        (too_deep, "methods/cam/deep/bad.py", "", "methods/cam/deep/bad.py"),
        (nameless, "methods/utils.py", "", "methods/utils.py"),
        (nameless, "core/bad.py", "", "core/bad.py"),
        (hooks_elsewhere, "methods/bad.py", "m.register_forward_pre_hook(h)", "methods/bad.py"),
        (hooks_elsewhere, "methods/bad.py", "m.register_full_backward_hook(h)", "methods/bad.py"),
        (hooks_elsewhere, "methods/capture.py", "x.register_hook(h)", "methods/capture.py"),
        (prints, "methods/bad.py", "\nprint(1)", "methods/bad.py:2"),
        (evaluates, "recipe.py", "eval(text)", "recipe.py:1"),
        (evaluates, "recipe.py", "exec(text)", "recipe.py:1"),
        (pickles, "data/bad.py", "import pickle", "data/bad.py imports pickle"),
        (pickles, "data/bad.py", "from pickle import loads", "data/bad.py imports pickle"),
        (pickles, "data/bad.py", "numpy.load(path, allow_pickle=True)", "data/bad.py:1 allows pickle"),
        (loads_unsafely, "models/bad.py", "torch.load(p)", UNSAFE),
        (loads_unsafely, "models/bad.py", "torch.load(p, weights_only=False)", UNSAFE),
        (loads_unsafely, "models/bad.py", "from torch import load", HIDDEN),
    ],
)
def test_a_planted_violation_is_found(rule: Rule, name: str, text: str, found: str, house):
    plant(house, name, text)
    assert rule(house) == [found]


def test_a_folder_of_too_many_modules_is_found(house):
    for index in range(MODULES):
        plant(house, f"audit/bad{index}.py", "")
    assert crowded(house) == [f"audit has {MODULES + 1} modules"]
