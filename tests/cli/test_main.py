"""The command line as a whole: help, version, wrong usage, unexpected errors."""

import subprocess
import sys
from pathlib import Path

import pytest

import sightline as package
from sightline.cli import console, main

SOURCE = Path(package.__file__).parents[1]
COMMANDS = list(main.COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(sightline, command):
    result = sightline(command, "--help")
    assert result.exit_code == 0
    assert f"sightline {command}" in result.stdout.partition("Example")[2]


def test_the_commands_of_the_design_are_all_there(sightline):
    assert {"explain", "compare", "list", "card", "cite", "demo", "doctor"} <= set(COMMANDS)
    listed = sightline("--help").stdout
    assert all(f" {command} " in listed for command in COMMANDS)


def test_without_a_command_the_help_is_shown(sightline):
    result = sightline()
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_the_version_is_printed(sightline):
    assert sightline("--version").stdout == f"sightline {package.__version__}\n"


def imported_by_help(prepare: str) -> str:
    """Return what a fresh interpreter has imported after ``sightline --help``."""
    code = (
        f"import sys\n{prepare}\nfrom sightline.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name in ('torch', 'timm', 'numpy', 'PIL')), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    return run.stderr.strip()


def test_the_command_line_itself_needs_no_torch_to_show_its_help():
    bare = f"import types\nbare = types.ModuleType('sightline')\nbare.__path__ = [{str(SOURCE / 'sightline')!r}]\n"
    bare += "bare.__version__ = '0'\nsys.modules['sightline'] = bare"
    assert imported_by_help(bare) == "[]"


def test_help_answers_without_importing_torch():
    assert imported_by_help("") == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explan",), "Did you mean 'explain'?"),
        (("explain",), "name images to explain, or a data set with --data"),
        (("explain", "a.png", "--modle", "x"), "No such option: --modle"),
        (("explain", "a.png", "--metric-step", "0", "--model", "bundled/shapes-vit"), "--metric-step"),
        (("list", "colours"), "colours"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_two(sightline, words, said):
    result = sightline(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("nobody expected this\nand its second line")


def test_an_unexpected_error_is_short_and_names_the_way_to_its_traceback(sightline, monkeypatch):
    monkeypatch.setattr("sightline.catalogue.cards.card", broken)
    result = sightline("card", "ixg")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: ZeroDivisionError: nobody expected this; this is unexpected, run with --debug for the traceback\n"
    )


@pytest.mark.parametrize("words", [("--debug", "card", "ixg"), ("card", "ixg", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(sightline, monkeypatch, words):
    monkeypatch.setattr("sightline.catalogue.cards.card", broken)
    result = sightline(*words)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "in broken" in result.stderr


def test_the_terminal_obeys_no_file_name():
    assert console.plain("a\x1b[31mb\udcff") == "a?[31mb?"


def test_json_holds_no_nan(capsys):
    console.print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": "ü"})
    assert "".join(capsys.readouterr().out.split()) == '{"a":null,"b":[null,1.5],"c":"\\u00fc"}'


def test_a_warning_becomes_one_sentence_said_once(capsys):
    import warnings

    with console.told():
        warnings.simplefilter("always")
        for _ in range(2):
            warnings.warn("careful", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: careful\n"
