"""``sightline bench``: what a user types, reads and gets as an exit code."""

import json
import sys
from importlib import util

import pytest

from sightline.bench import run as running
from sightline.bench.store.store import Store, read_rows
from sightline.cli import console, screen

PLAN = """
name = "look"
models = ["bundled/shapes-cnn"]
methods = ["ixg"]
metrics = ["insertion(step=512)", "average_precision"]
dataset = "shapes(count=20)"
limit = 3
batch = 2
controls = false
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture
def ran(sightline, plan, tmp_path):
    result = sightline("bench", "run", plan, "--store", tmp_path / "store", "--workers", 0)
    assert result.exit_code == 0, result.stderr
    return tmp_path / "store", result


def test_a_run_ends_with_a_table_and_what_comes_next(ran):
    store, result = ran
    assert "bundled/shapes-cnn" in result.stdout
    assert "insertion(step=512)" in result.stdout
    assert f"2 units in {store}: 2 done now" in result.stdout
    assert f"Next: sightline report {store}" in result.stdout
    assert "look: 2 units" in result.stderr
    assert len(read_rows(store)) == 3 * 2


def test_json_is_all_there_is_on_stdout(ran, sightline, plan):
    store, _ = ran
    found = json.loads(sightline("bench", "run", plan, "--store", store, "--workers", 0, "--json").stdout)
    assert found["units"] == {"total": 2, "before": 2, "computed": 0, "unstored": 0}
    assert found["complete"] is True
    assert {line["metric"] for line in found["standings"]} == {"insertion(step=512)", "average_precision"}
    found = json.loads(sightline("bench", "status", store, "--json").stdout)
    assert found["units"] == {"total": 2, "done": 2, "with_failures": 0, "damaged": 0}
    assert found["complete"] is True
    assert json.loads(sightline("bench", "resume", store, "--workers", 0, "--json").stdout)["complete"] is True


def test_options_take_the_place_of_settings_and_are_in_the_command(sightline, plan, tmp_path):
    words = ["--limit", 1, "--model", "bundled/shapes-vit", "--method", "rollout", "--metric", "deletion(step=512)"]
    words += ["--dataset", "shapes(count=5, seed=3)", "--seed", 4]
    result = sightline("bench", "run", plan, "--store", tmp_path / "s", "--workers", 0, *words)
    assert result.exit_code == 0, result.stderr
    rows = read_rows(tmp_path / "s")
    assert rows[["model", "recipe", "metric", "seed"]].values.tolist() == [
        ["bundled/shapes-vit", "rollout", "deletion(step=512)", 4]
    ]
    command = Store(str(tmp_path / "s")).manifest().command
    assert command.startswith(f"sightline bench run {plan} --store {tmp_path / 's'} --limit 1 --model bundled/")
    assert "--dataset 'shapes(count=5, seed=3)'" in command


def test_the_store_has_a_place_by_itself(sightline, plan):
    result = sightline("bench", "run", plan, "--limit", 1, "--workers", 0)
    assert "Next: sightline report bench-out/look" in result.stdout


def test_mistakes_are_told_before_any_work(sightline, plan, tmp_path):
    plan.write_text(PLAN.replace("ixg", "ixgg").replace("insertion(", "insertoin("))
    result = sightline("bench", "run", plan, "--store", tmp_path / "s")
    assert result.exit_code == console.USAGE
    assert "has 2 mistakes:" in result.stderr
    assert "did you mean 'ixg'" in result.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("words", "sentence", "code"),
    [
        (("run", "none.toml"), "there is no plan none.toml", console.FAILED),
        (("resume", "nowhere"), "nowhere is no store: it has no plan.json", console.FAILED),
        (("status", "nowhere"), "nowhere is no store", console.FAILED),
        (("run",), "Missing argument", console.USAGE),
    ],
)
def test_what_is_not_there_is_told(sightline, words, sentence, code):
    result = sightline("bench", *words)
    assert result.exit_code == code
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_engine_is_told(sightline, plan, tmp_path):
    result = sightline("bench", "run", plan, "--store", tmp_path / "s", "--engine", "slurm")
    assert result.exit_code == console.FAILED
    assert "there is no engine called 'slurm'; choose from local, ray" in result.stderr


def test_failures_are_told_and_the_exit_code_says_so(sightline, plan, tmp_path, photos):
    plan.write_text(
        PLAN.replace("shapes(count=20)", str(photos)).replace('name = "look"', 'name="look"\ntarget="label"')
    )
    result = sightline("bench", "run", plan, "--store", tmp_path / "s", "--workers", 0)
    assert result.exit_code == console.FAILED
    assert "a failed with ixg: a has no label" in result.stderr
    assert f"go on with `sightline bench resume {tmp_path / 's'}`" in result.stderr
    status = sightline("bench", "status", tmp_path / "s")
    assert status.exit_code == 0
    assert "a has no label" in status.stderr
    assert "1/1" in status.stdout


def test_a_damaged_file_is_told_by_status_and_mended_by_resume(ran, sightline):
    store, _ = ran
    path = next(store.glob("units/*/*.parquet"))
    path.write_bytes(b"PAR1")
    told = sightline("bench", "status", store)
    assert "1 of 2 units are done" in told.stdout
    assert "is damaged" in told.stderr
    mended = sightline("bench", "resume", store, "--workers", 0)
    assert mended.exit_code == 0
    assert "was put aside as corrupt/" in mended.stderr
    assert len(read_rows(store)) == 6


def test_ctrl_c_says_how_to_go_on(sightline, plan, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(screen.RunDisplay, "advanced", interrupted)
    result = sightline("bench", "run", plan, "--store", tmp_path / "s", "--workers", 0)
    assert result.exit_code == console.STOPPED
    assert f"stopped; what is done is in {tmp_path / 's'}, go on with `sightline bench resume" in result.stderr
    monkeypatch.undo()
    found = json.loads(sightline("bench", "resume", tmp_path / "s", "--workers", 0, "--json").stdout)
    assert (found["units"]["before"], found["units"]["computed"]) == (1, 1)


def test_a_terminal_gets_a_bar_and_a_leaderboard(sightline, plan, tmp_path, monkeypatch):
    """The same run with stderr a terminal: a live display, gone when done."""
    from io import StringIO

    from rich.console import Console

    drawn = StringIO()
    monkeypatch.setattr(console, "err", Console(file=drawn, force_terminal=True, width=100, highlight=False))
    monkeypatch.setattr(screen.time, "monotonic", iter(range(10_000)).__next__)
    result = sightline("bench", "run", plan, "--store", tmp_path / "s", "--workers", 0)
    assert result.exit_code == 0
    assert "units, about 0:0" in drawn.getvalue()
    assert "insertion(step=512)" in drawn.getvalue()


def test_lines_tell_the_time_left_where_there_is_no_terminal(sightline, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(screen, "EVERY", -1.0)
    result = sightline("bench", "run", plan, "--store", tmp_path / "s", "--workers", 0)
    assert "1 of 2 units, about 0:" in result.stderr
    assert "left; best by insertion(step=512) so far: ixg 0." in result.stderr


@pytest.mark.parametrize("package", ["fsspec", "pyarrow"])
def test_a_missing_extra_is_named_with_its_pip_line(sightline, plan, tmp_path, monkeypatch, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    real = util.find_spec
    monkeypatch.setattr("builtins.__import__", _without(package, __import__))
    monkeypatch.setattr("importlib.import_module", _without(package, __import__("importlib").import_module))
    assert real is util.find_spec
    result = sightline("bench", "run", plan, "--store", tmp_path / "s", "--workers", 0)
    assert result.exit_code == console.FAILED
    assert f'{package} is not installed; pip install "sightline[bench]"' in result.stderr


def _without(package, real):
    def find(name, *rest, **named):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest, **named)

    return find


def test_a_duration_is_read_at_a_glance():
    assert [screen._duration(seconds) for seconds in (0.4, 75, 3599, 7290)] == ["0:00", "1:15", "59:59", "2:01 h"]


def test_the_run_module_speaks_no_word_itself(ran, capsys):
    running.resume(str(ran[0]), workers=0)
    assert capsys.readouterr().out == ""
