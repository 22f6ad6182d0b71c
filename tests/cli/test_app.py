import json
import sys

import pytest
import typer
from typer.testing import CliRunner

import memgraph.cli
from memgraph import OptionsError, Report
from memgraph.base import compat
from memgraph.cli import app as cli
from memgraph.cli import terminal
from memgraph.cli.app import app
from memgraph.cli.target import load_step
from memgraph.reporting.frontier import Frontier
from tests.reporting.test_page import read

SCRIPT = """
import torch
from torch import nn

def step():
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)])
        x = torch.empty(1024, 64)
    return lambda x: model(x).square().mean(), (x,)

def wrong():
    return 3

def hungry(n, m=3, *more):
    return n

def fails():
    return torch.zeros(2) @ torch.zeros(3), ()

def traced():
    with torch.device("meta"):
        model, x = nn.Linear(3, 4), torch.empty(2, 5)
    return lambda x: model(x).sum(), (x,)

def says():
    def fn(x):
        raise ValueError("words of the script")
    return fn, (torch.zeros(2, requires_grad=True),)

number = 3
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "the_step.py"
    file.write_text(SCRIPT)
    yield file
    sys.modules.pop("the_step", None)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_help_names_every_command():
    result = run("--help")
    assert result.exit_code == 0
    for command in ("fit", "demo", "plan", "reports", "report", "calibrate", "doctor", "bench", "Exit codes"):
        assert command in result.output


def test_plan_writes_what_it_is_asked_for(script, tmp_path):
    result = run(
        "plan", f"{script}:step", "--budget", "0.8", "--hardware", "H100" if compat.traces_cuda() else "cpu",
        "--json", tmp_path / "r.json", "--plot", tmp_path / "r.png", "--html", tmp_path / "r.html",
        "--trace", tmp_path / "trace.json", "--details",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "predicted peak" in result.output and "Values kept" in result.output
    report = Report.from_json((tmp_path / "r.json").read_text())
    assert report.predicted_peak <= report.budget
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_plan_of_a_module(script, monkeypatch):
    monkeypatch.syspath_prepend(str(script.parent))
    result = run("plan", "the_step:step", "--budget", "none", "--device", "cpu")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "target, options, code, says",
    [
        ("{}:step", ["--budget", "64KiB"], 3, "the smallest that can is"),
        ("{}:step", ["--budget", "lots"], 2, "budget"),
        ("{}:step", ["--budget", "2.0"], 2, "fraction"),
        ("{}:step", ["--hardware", "abacus"], 2, "abacus"),
        ("{}:step", ["--device", "xla"], 2, "xla"),
        ("{}:step", ["--device", "tpu"], 2, "device 'tpu' cannot be planned for"),
        ("{}:step", ["--hardware", "H1000"], 2, "did you mean 'H100'"),
        ("{}:step", ["--budget", "64KiB"], 3, "the smallest that can is about"),
        ("{}:step", ["--option", "bugdet=1"], 2, "did you mean 'budget'"),
        ("{}:step", ["--option", "tile"], 2, "allowed: KEY=VALUE"),
        ("{}:step", ["--rules", "=save"], 2, "allowed: KEY=VALUE"),
        ("{}:step", ["--rules", "1=sav"], 2, "did you mean 'save'"),
        ("{}:step", ["--offload", "3"], 2, "option 'offload'"),
        ("{}:step", ["--tile", "--option", "tile=true"], 2, "allowed: one of the two"),
        ("{}:hungry", [], 2, "needs n."),
        ("{}:fails", [], 1, "in fails: return torch.zeros(2) @ torch.zeros(3), ()"),
        ("{}:traced", [], 1, "in <lambda>: return lambda x: model(x).sum(), (x,)"),
        ("{}:traced", [], 1, "failed: RuntimeError: a and b must have same reduction dim"),
        ("{}:says", ["--device", "cpu"], 1, "failed: ValueError: words of the script"),
        ("{}:wrong", [], 2, "(callable, args)"),
        ("{}:number", [], 2, "no function 'number'"),
        ("{}", [], 2, "names no function"),
        ("nowhere.py:step", [], 2, "no script"),
        ("no.such.module:step", [], 2, "no module"),
    ],
)
def test_what_is_refused_is_a_message_and_a_code(script, target, options, code, says):
    result = run("plan", target.replace("{}", str(script)), *options)
    assert result.exit_code == code, result.output
    assert says in result.output
    assert "Traceback" not in result.output and len(result.output.splitlines()) < 16


@pytest.mark.parametrize(
    "options",
    [
        ["--json", "{}/no/r.json"],
        ["--json", "{}"],
        ["--plot", "{}/no/r.png"],
        ["--plot", "{}/r.docx"],
        ["--html", "{}/no/r.html"],
        ["--trace", "{}"],
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_planned(script, tmp_path, options):
    result = run("plan", f"{script}:no_such_function", *[text.replace("{}", str(tmp_path)) for text in options])
    assert result.exit_code == 1 and "the report could not be written" in result.output
    assert "no_such_function" not in result.output


@pytest.mark.slow
def test_what_a_budget_error_recommends_can_be_done_at_the_terminal(script, tmp_path):
    """Levers, rules and any other option reach the planner, by their own names or as KEY=VALUE with JSON."""
    target, file = f"{script}:step", tmp_path / "r.json"

    def planned(*options):
        result = run("plan", target, "--device", "cpu", "--json", file, *options)
        assert result.exit_code == 0, result.output
        return Report.from_json(file.read_text())

    told = {
        decision.why for decision in planned("--budget", "none", "--rules", "1=save", "--rules", "0=save").decisions
    }
    assert {"rule '0'", "rule '1'"} <= told
    refused = run("plan", target, "--device", "cpu", "--budget", "64KiB", "--no-recompute", "--offload", tmp_path)
    assert refused.exit_code == 3 and "switched off" not in refused.output  # nobody asked for it
    assert "may lower it: recompute, tile" in refused.output
    by_name = planned("--budget", "none", "--offload", tmp_path, "--rules", "*.1=offload:nvme", "--rules", "1=save")
    as_json = planned("--option", "budget=null", "--option", f'offload={{"nvme": "{tmp_path}"}}',
                      "--option", 'rules={"*.1": "offload:nvme", "1": "save"}')  # fmt: skip
    assert by_name.decisions == as_json.decisions and by_name.bytes_on("nvme") > 0


@pytest.mark.slow
def test_the_longest_at_a_terminal(script, tmp_path):
    asked = ["plan", f"{script}:step", "--device", "cpu", "--budget", "1MiB", "--longest", "--dim", "0"]
    result = run(*asked, "--step", "64", "--optimizer", "adamw", "--json", tmp_path / "r.json")
    assert result.exit_code == 0, result.output
    size = int(result.output.partition("longest: ")[2].partition(" ")[0].replace(",", ""))
    report = Report.from_json((tmp_path / "r.json").read_text())
    assert size % 64 == 0 and report.to_come > 0 and report.predicted_peak <= report.budget
    assert run(*asked, "--step", "0").exit_code == 2


def test_the_frontier_at_a_terminal(script, tmp_path):
    asked = ["plan", f"{script}:step", "--device", "cpu", "--frontier"]
    result = run(*asked, "--json", tmp_path / "f.json", "--plot", tmp_path / "f.svg")
    assert result.exit_code == 0, result.output
    found = Frontier.from_json((tmp_path / "f.json").read_text())
    assert found.smallest < found.unplanned_peak and "at most from best" in result.output
    assert "<svg" in (tmp_path / "f.svg").read_text()
    assert run(*asked, "--longest").exit_code == 2
    result = run(*asked, "--trace", tmp_path / "trace.json")
    assert result.exit_code == 2 and "--frontier asks about many budgets" in result.output


@pytest.mark.slow
def test_the_frontier_and_the_plan_in_one_page(script, tmp_path):
    asked = ["plan", f"{script}:step", "--device", "cpu", "--budget", "0.7", "--frontier"]
    result = run(*asked, "--html", tmp_path / "f.html", "--json", tmp_path / "f.json")
    assert result.exit_code == 0, result.output
    assert "at most from best" in result.output
    (part,) = read((tmp_path / "f.html").read_text())["parts"]
    found = Frontier.from_json((tmp_path / "f.json").read_text())
    assert [point["budget"] for point in part["frontier"]["points"]] == [point.budget for point in found.points]
    here = found.points[part["frontier"]["here"]]  # the plan that was asked for is one of the points
    assert (here.peak, here.seconds) == (part["predicted_peak"], pytest.approx(part["predicted_time"], rel=1e-9))
    assert run(*asked[:-2], "0.0001", "--frontier", "--html", tmp_path / "no.html").exit_code == 3
    assert not (tmp_path / "no.html").exists()


def test_tables_are_whole_in_a_pipe(script, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    result = run("plan", f"{script}:step", "--budget", "none", "--device", "cpu")
    assert "no budget was asked for; the peak is about" in result.output
    assert "`memgraph calibrate` measures this machine: the times are built in" in " ".join(result.output.split())
    assert "memgraph calibrate` measures)" in run("doctor").output or "; measured figures" in run("doctor").output


def test_an_import_that_fails_within_a_module_is_not_blamed_on_its_name(tmp_path, monkeypatch):
    (tmp_path / "hungry.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_step("hungry:step")
    with pytest.raises(OptionsError):
        load_step("hungrier:step")


@pytest.mark.parametrize(
    "text, budget", [("20GiB", "20GiB"), ("0.4", 0.4), ("none", None), ("auto", "auto"), ("1e-1", 0.1)]
)
def test_budgets(text, budget):
    assert terminal.parse_budget(text) == budget


def test_doctor_finds_this_machine_usable(monkeypatch):
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for word in ("torch", "memgraph.backend:memgraph", "C++ compiler", "built-in figures", "transformers"):
        assert word in result.output
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    result = run("doctor")
    assert result.exit_code == 1
    assert "cannot work here: C++ compiler" in result.output


def test_calibrate_keeps_what_it_measured(tmp_path, monkeypatch):
    import dataclasses

    from memgraph.machine import calibration, hardware

    figures = dataclasses.replace(hardware.built_in("cpu"), name=hardware.device_name("cpu"), memory_bandwidth=7e9)
    figures = dataclasses.replace(figures, measured=True)
    monkeypatch.setattr(
        calibration, "calibrate_device", lambda device: figures
    )  # it takes seconds, and is tested apart
    result = run("calibrate", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "7.0 GB/s" in result.output
    (file,) = (tmp_path / "cache").glob("hardware-*.json")
    assert json.loads(file.read_text())["memory_bandwidth"] == 7e9
    assert "measured figures" in run("doctor").output


@pytest.mark.parametrize("faster", [True, False])
def test_calibrate_and_doctor_say_which_way_a_scratch_folder_goes(tmp_path, monkeypatch, faster):
    from memgraph.machine import calibration, disk, disk_calibration, hardware

    rate = 4e9 if faster else 1e9
    both = disk.Disk(write=2e9, read=3e9, gpudirect_write=rate, gpudirect_read=rate)
    monkeypatch.setattr(calibration, "calibrate_device", lambda device: hardware.built_in("H100"))
    monkeypatch.setattr(disk_calibration, "calibrate_disk", lambda folder, device: both)
    result = run("calibrate", "--device", "cuda", "--scratch", tmp_path)
    assert result.exit_code == 0, result.output
    assert f"{rate / 1e9:.2f} GB/s" in result.output and "(GPUDirect)" in result.output
    assert ("not faster" in result.output) is (not faster)
    assert disk.load(tmp_path) == both
    assert "2.00 GB/s out, 3.00 back" in run("doctor", "--scratch", tmp_path).output
    assert "cannot be written" in run("doctor", "--scratch", tmp_path / "missing").output


def test_calibrate_refuses_what_has_no_figures():
    assert run("calibrate", "--device", "meta").exit_code == 2


@pytest.mark.parametrize("command, file", [("demo", "examples/train_llama.py"), ("bench", "benchmarks/run.py")])
def test_scripts_of_the_repository(command, file, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    result = run(command)
    assert result.exit_code == 1
    assert file in result.output and "repository" in result.output

    place = tmp_path / file
    place.parent.mkdir()
    place.write_text("import sys; sys.exit(7 if '--steps=2' in sys.argv or 'x' in sys.argv else 8)")
    assert run(command, *(["--steps", "2"] if command == "demo" else ["x"])).exit_code == 7


def test_fail_is_an_exit():
    assert isinstance(terminal.fail("why", 3), typer.Exit)


def test_without_typer_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)  # an import of it fails
    monkeypatch.delitem(sys.modules, "memgraph.cli.app")
    with pytest.raises(SystemExit, match=r"torch-memgraph\[cli\]"):
        memgraph.cli.main()
