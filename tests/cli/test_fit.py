"""`memgraph fit`: the answer, the nearest that fits, and what is refused."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from memgraph import Report
from memgraph.base import compat
from memgraph.cli.app import app

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 192,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
SCRIPT = """
import torch
from torch import nn

def step(batch, sequence=96, dtype=torch.float32):
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64, dtype=dtype), nn.GELU()) for _ in range(3)])
        x = torch.empty(batch, sequence, 64, dtype=dtype)
    return lambda x: model(x).square().mean(), (x,)
"""
ROWS = ["parameters", "optimizer state", "inputs", "the step itself", "peak", "optimizer.step()", "budget"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    return file


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "the_step.py"
    file.write_text(SCRIPT)
    yield f"{file}:step"
    sys.modules.pop("the_step", None)


def run(*arguments):
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


def on_a_cpu(target, *more):
    return run(target, "--gpu", "cpu", "--optimizer", "adamw(foreach=False)", *more)


def rows(output):
    """The rows of the screen: label and figure."""
    found = [re.split(r"  +", line.strip()) for line in output.splitlines()]
    return {row[0]: row[1] for row in found if len(row) > 1}


def changes(output):
    """How to ask for what would fit: option and value."""
    return dict(re.findall(r"--(\w+) (\S+)", output))


@pytest.mark.slow
def test_it_fits_plainly(config):
    result = on_a_cpu(config, "--sequence", 256, "--budget", "1GiB")
    assert result.exit_code == 0, result.output
    assert "fits plainly" in result.output
    assert "LlamaForCausalLM" in result.output and "sequence 256" in result.output
    assert [label for label in rows(result.output) if label in ROWS] == ROWS
    assert "would fit" not in result.output
    lines = result.output.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100


@pytest.mark.slow
def test_it_fits_with_a_plan_at_its_cost(config, tmp_path):
    asked = (config, "--sequence", 1024, "--dtype", "float32")
    plain = on_a_cpu(*asked, "--budget", "1GiB", "--json", tmp_path / "plain.json")
    assert plain.exit_code == 0, plain.output
    most = Report.from_json((tmp_path / "plain.json").read_text()).predicted_peak
    result = on_a_cpu(*asked, "--budget", f"{most * 7 // 10}B", "--json", tmp_path / "planned.json")
    assert result.exit_code == 0, result.output
    assert "fits with a plan" in result.output and "options={" in result.output
    report = Report.from_json((tmp_path / "planned.json").read_text())
    assert report.predicted_peak <= report.budget == most * 7 // 10 < report.unplanned_peak
    # AdamW's two moments of each parameter, and a count of steps for each
    parameters = report.baseline - 2 * 1024 * 8
    assert 2 * parameters <= report.to_come <= 2.01 * parameters + 1024


@pytest.mark.slow
def test_what_is_nearest_does_fit(script):
    asked = (script, "--dtype", "float32", "--step", 32)
    result = on_a_cpu(*asked, "--batch", 3, "--sequence", 512, "--budget", "1300KiB")
    assert result.exit_code == 3, result.output
    assert "It does not fit" in result.output and len(result.output.splitlines()) <= 40
    near = changes(result.output)
    assert set(near) == {"sequence", "batch", "budget"}, result.output
    longest, most = int(near["sequence"]), int(near["batch"])
    assert longest % 32 == 0 and longest < 512 and 1 <= most < 3
    for batch, sequence, budget, code in [
        (3, longest, "1300KiB", 0),
        (3, longest + 32, "1300KiB", 3),
        (most, 512, "1300KiB", 0),
        (3, 512, near["budget"], 0),
    ]:
        sizes = ("--batch", batch, "--sequence", sequence)
        assert on_a_cpu(*asked, *sizes, "--budget", budget).exit_code == code, (batch, sequence, budget)


@pytest.mark.slow
@pytest.mark.skipif(not compat.traces_cuda(), reason="a build of torch with CUDA cannot trace for it without a GPU")
def test_host_memory_that_is_nearest_does_fit(tmp_path):
    file = tmp_path / "deep.json"
    file.write_text(json.dumps(CONFIG | {"num_hidden_layers": 2}))
    asked = (file, "--gpu", "H100 80GB", "--optimizer", "none", "--sequence", 16384, "--no-tile")
    asked = (*asked, "--attention", "unmasked")  # what a layer saves is 2 MiB
    least = changes(run(*asked, "--budget", "1MiB").output)
    assert "host" not in least  # there is no room but for the weights
    budget = f"{int(least['budget'].removesuffix('MiB')) - 2}MiB"
    result = run(*asked, "--budget", budget)
    assert result.exit_code == 3, result.output
    room = changes(result.output)["host"]
    found = run(*asked, "--budget", budget, "--host", room)
    assert found.exit_code == 0, found.output
    assert "to host memory" in rows(found.output)


@pytest.mark.slow
def test_the_longest(script):
    asked = (script, "--dtype", "float32", "--batch", 2, "--step", 32, "--budget", "1MiB")
    result = on_a_cpu(*asked, "--longest")
    assert result.exit_code == 0, result.output
    longest = int(re.search(r"sequence ([\d,]+)", result.output)[1].replace(",", ""))
    assert longest % 32 == 0
    for sequence, code in [(longest, 0), (longest + 32, 3)]:
        assert on_a_cpu(*asked, "--sequence", sequence).exit_code == code


@pytest.mark.slow
def test_adapters(config, tmp_path):
    pytest.importorskip("peft")
    file = tmp_path / "r.json"
    result = on_a_cpu(config, "--sequence", 64, "--budget", "1GiB", "--lora", 4, "--json", file)
    assert result.exit_code == 0 and "LoRA 4" in result.output, result.output
    report = Report.from_json(file.read_text())
    assert 0 < report.to_come < report.baseline  # all parameters would have twice the bytes of these


@pytest.mark.slow
def test_a_function_of_a_script(script):
    for arguments, sizes in [(("--batch", 2), "batch 2, sequence 96"), (("--sequence", 64), "batch 1, sequence 64")]:
        result = on_a_cpu(script, "--budget", "1GiB", *arguments)
        assert result.exit_code == 0, result.output
        assert sizes in result.output and "bfloat16" in result.output


@pytest.mark.slow
def test_an_optimizer_whose_step_is_too_large_is_told(config):
    result = on_a_cpu(config, "--sequence", 8, "--budget", "1320KiB")
    assert result.exit_code == 3 and "the step of AdamW" in result.output
    assert set(changes(result.output)) == {"budget"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, sizes",
    [
        ({"model_type": "bert", "vocab_size": 128}, "BertForMaskedLM"),
        ({"model_type": "t5", "vocab_size": 128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1}, "T5"),
        ({"model_type": "vit", "image_size": 32, "patch_size": 8}, "ViTForImageClassification"),
    ],
)
def test_other_tasks(tmp_path, kind, sizes):
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(small | kind))
    result = on_a_cpu(tmp_path, "--sequence", 64, "--budget", "1GiB", "--batch", 2)
    assert result.exit_code == 0, result.output
    assert sizes in result.output and ("sequence" in result.output) is (kind["model_type"] != "vit")


@pytest.mark.parametrize(
    "change, options, code, says",
    [
        ({}, ["--gpu", "H1000"], 2, "did you mean 'H100'"),
        ({}, ["--dtype", "bfloat61"], 2, "did you mean 'bfloat16'"),
        ({}, ["--optimizer", "adamq"], 2, "did you mean 'adam"),
        ({}, ["--budget", "lots"], 2, "option 'budget'"),
        ({}, ["--budget", "0.5"], 2, "bounds nothing here"),
        ({}, ["--host", "much"], 2, "offload"),
        ({}, ["--attention", "sdpaa"], 2, "transformers cannot make the model"),
        ({"model_type": "lama"}, [], 2, "did you mean 'llama'"),
        ({"model_type": None}, [], 2, "names no model_type"),
        ({"hidden_size": "wide"}, [], 2, "config.json"),
        ({"num_attention_heads": 5}, [], 2, "refused by transformers"),
    ],
)
def test_what_is_refused_is_a_line_and_a_code(tmp_path, change, options, code, says):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG | change))
    result = run(file, "--sequence", 64, *(options if "--gpu" in options else ["--gpu", "cpu", *options]))
    assert result.exit_code == code, result.output
    assert says in result.output and "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) <= 3


def test_files_that_are_no_config(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2")
    for name, says in [("list.json", "is not JSON"), ("missing.json", "cannot be read")]:
        result = run(tmp_path / name, "--gpu", "cpu")
        assert result.exit_code == 2 and says in result.output and name in result.output.replace("\n", "")


def test_without_peft_lora_says_what_to_install(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)  # an import of it fails
    result = on_a_cpu(config, "--lora", 8, "--sequence", 64)
    assert result.exit_code == 1 and "pip install peft" in result.output
