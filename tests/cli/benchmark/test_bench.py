"""``sightline bench``: what a user types, reads and gets as an exit code."""

import json
import re
import shlex
import subprocess
import sys
from importlib import util

import pytest

from sightline.bench import run as running
from sightline.bench.store.store import Store, read_rows
from sightline.cli import console
from sightline.cli.benchmark import screen

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


# ---- shares, arrays, compaction --------------------------------------------------------------------------------------


def test_shares_together_are_the_run(sightline, plan, tmp_path, monkeypatch):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    sightline("bench", "run", plan, "--store", alone, "--workers", 0)
    first = sightline("bench", "work", shared, "--plan", plan, "--shard", "0/2", "--workers", 0, "--json")
    assert first.exit_code == 0, first.stderr
    assert json.loads(first.stdout)["units"] == {"total": 1, "before": 0, "computed": 1, "unstored": 0}
    assert json.loads(sightline("bench", "status", shared, "--json").stdout)["units"]["done"] == 1
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    second = sightline("bench", "work", shared, "--workers", 0)
    assert second.exit_code == 0, second.stderr
    assert "1 units in" in second.stdout
    drop = ["seconds", "versions"]
    assert read_rows(shared).drop(columns=drop).equals(read_rows(alone).drop(columns=drop))


def test_a_share_that_does_not_exist_is_wrong_usage(sightline, plan, tmp_path):
    result = sightline("bench", "work", tmp_path / "s", "--plan", plan, "--shard", "2/2")
    assert result.exit_code == 2
    assert "shares are counted from 0" in result.stderr
    assert sightline("bench", "work", tmp_path / "s").exit_code == 1  # no store, and no plan to make one


def directives(script):
    """Read the options of a batch script as sbatch does: those before the first command."""
    found = {}
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH "):
            option = re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line)
            assert option, line
            assert option[1] not in found
            found[option[1]] = option[2]
        elif line.strip() and not line.startswith("#"):
            break
    return found


KNOWN = {
    "job-name",
    "array",
    "ntasks",
    "cpus-per-task",
    "mem",
    "time",
    "output",
    "requeue",
    "partition",
    "gpus-per-task",
}


def test_the_script_of_an_array_job_is_one_that_bash_and_sbatch_read(sightline, plan, tmp_path):
    out = tmp_path / "job with space.sh"
    words = ["--store", "/shared/a run", "--tasks", 64, "--cpus", 2, "--time", "1-12:00:00", "--partition", "long"]
    result = sightline("bench", "slurm", plan, *words, "--out", out)
    assert result.exit_code == 0, result.stderr
    assert f"sbatch '{out}'" in result.stderr
    assert subprocess.run(["bash", "-n", out], check=False).returncode == 0
    script = out.read_text()
    found = directives(script)
    assert found.keys() == KNOWN - {"gpus-per-task"}
    assert found["array"] == "0-63"
    assert (found["job-name"], found["time"], found["partition"]) == ("look", "1-12:00:00", "long")
    last = shlex.split(script.splitlines()[-1])
    assert last[:5] == ["exec", "sightline", "bench", "work", "/shared/a run"]
    assert last[last.index("--shard") + 1] == "$SLURM_ARRAY_TASK_ID/64"
    assert last[last.index("--workers") + 1] == "2"
    plan.write_text(PLAN.replace('name = "look"', 'name = "a look; rm -rf /"\ndevice = "cuda"'))
    told = json.loads(sightline("bench", "slurm", plan, "--json").stdout)
    found = directives(told["script"])
    assert (found["job-name"], found["gpus-per-task"], told["tasks"]) == ("a-look-rm--rf", "1", 8)


def test_a_task_of_the_script_does_its_share(sightline, plan, tmp_path):
    """The script's last line as bash runs it, with a command that writes down its words in place of sightline."""
    script = sightline("bench", "slurm", plan, "--store", tmp_path / "a b", "--tasks", 4).stdout
    (tmp_path / "sightline").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "sightline").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "3"}
    told = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[:3] == ["bench", "work", str(tmp_path / "a b")]
    assert told.stdout.splitlines()[-2:] == ["--shard", "3/4"]


@pytest.mark.parametrize("words", [("--time", "soon"), ("--memory", "a lot"), ("--partition", "a b"), ("--tasks", 0)])
def test_what_sbatch_would_not_understand_is_told(sightline, plan, words):
    assert sightline("bench", "slurm", plan, *words).exit_code == 2


def test_compaction_says_what_it_did_and_changes_no_row(ran, sightline):
    store, _ = ran
    before = read_rows(store)
    assert "2 units folded; 2 in 1 packs" in sightline("bench", "compact", store).stdout
    assert json.loads(sightline("bench", "compact", store, "--json").stdout)["packed"] == 2
    assert not list(store.glob("units/*/*.parquet"))
    assert read_rows(store).equals(before)
    found = json.loads(sightline("bench", "resume", store, "--workers", 0, "--json").stdout)
    assert (found["units"]["before"], found["units"]["computed"]) == (2, 0)
    assert sightline("report", store, "--json", "--resamples", 20).exit_code == 0
    (rows,) = store.glob("packs/*.rows.parquet")
    rows.write_bytes(b"x" * rows.stat().st_size)
    damaged = sightline("bench", "compact", store)
    assert damaged.exit_code == 1
    assert "was damaged and put aside" in damaged.stderr
    assert sightline("bench", "compact", store.parent).exit_code == 1


@pytest.mark.parametrize("command", ["run", "resume", "status", "work", "slurm", "compact"])
def test_help_comes_with_an_example_and_without_torch(command):
    code = (
        f"import sys; sys.argv = ['sightline', 'bench', {command!r}, '--help']\n"
        "from sightline.cli.main import main\n"
        "try:\n    main()\nfinally:\n    assert not {'torch', 'pandas', 'pyarrow'} & set(sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "Example" in told.stdout
    assert f"sightline bench {command}" in told.stdout


PANELS = """
name = "table"
title = "A table"
source = "A paper, table 1"
models = ["bundled/shapes-cnn"]
methods = ["ixg"]
metrics = ["average_precision"]
controls = false

[layout]
columns = ["heading", "metric"]

[[panels]]
name = "first"
heading = "Some"
dataset = "shapes(count=2)"

[[panels]]
name = "second"
heading = "Others"
dataset = "shapes(count=2, seed=1)"

[panels.printed."bundled/shapes-cnn"]
ixg = [0.125]
"""


def test_one_command_runs_all_panels_and_one_reports_them(sightline, tmp_path):
    path, store = tmp_path / "table.toml", tmp_path / "store"
    path.write_text(PANELS)
    result = sightline("bench", "run", path, "--store", store, "--workers", 0)
    assert result.exit_code == 0, result.stderr
    assert all(f"panel {name}" in result.stderr for name in ("first", "second"))
    assert Store(str(store / "second")).manifest().command.endswith("--panel second")
    for words in (("resume", store, "--workers", 0), ("status", store)):
        found = json.loads(sightline("bench", *words, "--json").stdout)["panels"]
        assert [panel["complete"] for panel in found] == [True, True]
    result = sightline("report", store, "--resamples", 20, "--gallery", 0)
    assert result.exit_code == 0, result.stderr
    assert "Others · average_precision ↑" in (store / "report" / "paper.md").read_text()
    assert (store / "first" / "report" / "index.html").exists()
    found = json.loads(sightline("report", store, "--resamples", 20, "--json").stdout)
    assert list(found["panels"]) == ["first", "second"]
    ((method, some, others),) = found["paper"]["rows"]
    assert method == "ixg"
    assert not some.endswith("]")
    assert others.endswith("[0.125]")
    only = sightline(
        "bench", "run", path, "--panel", "first", "--limit", 1, "--store", tmp_path / "one", "--workers", 0
    )
    assert only.exit_code == 0, only.stderr
    assert not (tmp_path / "one" / "second").exists()


def test_a_plan_that_sightline_brings_is_run_by_its_name(sightline, tmp_path):
    words = [
        "--model",
        "bundled/shapes-cnn",
        "--dataset",
        "shapes(count=1)",
        "--method",
        "ixg",
        "--metric",
        "sparseness",
    ]
    result = sightline("bench", "run", "caap-table-14", *words, "--store", tmp_path / "store", "--workers", 0)
    assert result.exit_code == 0, result.stderr
    assert set(read_rows(tmp_path / "store")["run"]) == {"caap-table-14"}
    mistyped = sightline("bench", "run", "caap-tabel-14")
    assert mistyped.exit_code == console.FAILED
    assert "did you mean 'caap-table-14'?" in " ".join(mistyped.stderr.split())
