import json
import pickle

import pytest
import torch
from pydantic import ValidationError

from memgraph.backend.options import parse_options
from memgraph.base.errors import OptionsError
from memgraph.facts.actions import Offload, Rule, Tile


@pytest.mark.parametrize(
    "options, device, refused",
    [
        ({"budget": "1GiB", "mode": "reduce-overhead"}, "cuda", True),
        ({"budget": None, "offload": True, "inductor": {"triton.cudagraphs": True}}, "cuda", True),
        ({"budget": None, "mode": "reduce-overhead"}, "cuda", False),
        ({"budget": "1GiB", "mode": "reduce-overhead"}, "cpu", False),
        ({"budget": "1GiB", "mode": "max-autotune-no-cudagraphs"}, "cuda", False),
        ({"budget": "1GiB", "mode": "max-autotune", "inductor": {"triton.cudagraphs": False}}, "cuda", False),
    ],
)
def test_a_budget_or_copies_and_cuda_graphs_do_not_go_together(options, device, refused):
    from memgraph.backend.inductor import refuses_cuda_graphs

    assert refuses_cuda_graphs(parse_options(options), torch.device(device)) == refused


def refusal(options) -> str:
    with pytest.raises(OptionsError) as error:
        parse_options(options)
    return str(error.value)


def test_torchs_own_setting_asks_for_saved_values_that_stay():
    import torch._functorch.config as functorch_config

    with functorch_config.patch(donated_buffer=False):
        assert parse_options(None).retain_graph and parse_options({"budget": None}).retain_graph
        assert "option 'retain_graph' cannot be False" in refusal({"retain_graph": False})
    assert not parse_options(None).retain_graph


def test_defaults():
    options = parse_options(None)
    assert options == parse_options({})
    assert options.budget == "auto" and options.reserve == 0 and options.mode is None
    assert options.recompute.copies and options.verify and options.cache
    assert options.offload is None and options.tile is None
    assert options.rules == () and options.inductor == {}


@pytest.mark.parametrize(
    ("budget", "parsed"),
    [("20GiB", 20 * 1024**3), (1000, 1000), (0.4, 0.4), (1.0, 1.0), ("auto", "auto"), (None, None)],
)
def test_budgets(budget, parsed):
    value = parse_options({"budget": budget}).budget
    assert value == parsed and type(value) is type(parsed)


@pytest.mark.parametrize("budget", [1.5, 0.0, -0.1, float("nan"), True, 0, -5, "20 GiBs", "0.4", [1], "Auto"])
def test_refused_budgets(budget):
    message = refusal({"budget": budget})
    assert "'budget'" in message and repr(budget) in message
    assert "allowed" in message or "1 byte or more" in message


def test_zero_reserve_is_allowed():
    assert parse_options({"reserve": 0}).reserve == 0
    assert parse_options({"reserve": "2GiB"}).reserve == 2 * 1024**3


def test_the_largest_size():
    assert parse_options({}).largest_size is None
    assert parse_options({"largest_size": 4096}).largest_size == 4096
    for given in (0, 1, -3, 2.0, True, "4096"):
        assert "'largest_size'" in refusal({"largest_size": given}) and "from 2 on" in refusal({"largest_size": given})
    # A plan's name holds the sizes that it is made for, however they were told.
    assert parse_options({"largest_size": 4096}).key() == parse_options({}).key()


def test_recompute_forms():
    assert parse_options({"recompute": False}).recompute is None
    assert parse_options({"recompute": True}) == parse_options({"recompute": {}}) == parse_options({})
    assert parse_options({"recompute": {"copies": False}}).recompute.copies is False


def test_tile():
    assert parse_options({"tile": None}).tile is None and parse_options({"tile": False}).tile is None
    tile = parse_options({"tile": True}).tile
    assert (tile.mlp, tile.loss, tile.accumulate, tile.logits) == ("auto", "auto", "float32", "keep")
    assert parse_options({"tile": {"mlp": 8, "loss": False}}).tile.mlp == 8
    for given in (
        {"mlp": 1},
        {"loss": "many"},
        {"mlp": True},
        {"loss": 2.0},
        {"accumulate": "bfloat16"},
        {"logits": 1},
    ):
        assert f"tile.{next(iter(given))}" in refusal({"tile": given})
    assert "did you mean 'logits'" in refusal({"tile": {"logit": "drop"}})
    assert "allowed: True, False, or a dict" in refusal({"tile": 8})
    assert parse_options({"rules": {"lm_head": "tile:16", "*.mlp": "tile"}}).rules[0] == Rule("lm_head", Tile(16))
    for action in ("tile:1", "tile:", "tile:x", "tiles:4"):
        assert "allowed" in refusal({"rules": {"lm_head": action}})


def test_offload():
    assert parse_options({"offload": None}).offload is parse_options({"offload": False}).offload is None
    assert parse_options({"offload": True}).offload.host is True
    given = parse_options({"offload": {"host": "64GiB", "nvme": "/scratch", "min_bytes": 0}}).offload
    assert (given.host, given.nvme.path, given.nvme.limit, given.min_bytes) == (64 << 30, "/scratch", None, 0)
    given = parse_options({"offload": {"nvme": {"path": "/scratch", "limit": "1GiB"}}}).offload
    assert (given.host, given.nvme.limit) == (False, 1 << 30)
    assert given.nvme.gpudirect == "auto"
    for value in (True, False, "auto"):
        given = {"offload": {"nvme": {"path": "/scratch", "gpudirect": value}}}
        assert parse_options(given).offload.nvme.gpudirect is value
    keys = {parse_options({"offload": {"nvme": {"path": "/x", "gpudirect": v}}}).key() for v in (True, False, "auto")}
    assert len(keys) == 3
    rules = {"*.mlp": "offload:nvme"}
    assert parse_options({"offload": {"nvme": "/scratch"}, "rules": rules}).rules == (Rule("*.mlp", Offload("nvme")),)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"budjet": 3}, ["'budjet'", "3", "did you mean 'budget'"]),
        ({"recompute": {"copis": 1}}, ["'recompute.copis'", "1", "did you mean 'copies'"]),
        ({"recompute": {"copies": 1}}, ["'recompute.copies'", "1", "True, False"]),
        ({"outline": 1.5}, ["'outline'", "1.5", '"auto", True, False']),
        ({"recompute": None}, ["'recompute'", "None", "True, False"]),
        ({"inductor": {"max_autotun": 1}}, ["'inductor'", "'max_autotun'", "did you mean 'max_autotune'"]),
        ({"inductor": {"custom_partitioner_fn": None}}, ["set by memgraph itself"]),
        ({"offload": 3}, ["'offload'", "3", "True, False"]),
        ({"offload": {"hots": 1}}, ["'offload.hots'", "1", "did you mean 'host'"]),
        ({"offload": {"host": "4Gig"}}, ["'offload.host'", "'4Gig' is not a size"]),
        ({"offload": {"nvme": {"pat": "/x"}}}, ["'offload.nvme.pat'", "'/x'", "did you mean 'path'"]),
        ({"offload": {"nvme": {"path": 3}}}, ["'offload.nvme.path'", "3", "a folder"]),
        ({"offload": {"nvme": {"path": "/x", "limit": -1}}}, ["'offload.nvme.limit'", "-1"]),
        ({"offload": {"nvme": {"path": "/x", "gpudirect": 1}}}, ["'offload.nvme.gpudirect'", "1", '"auto", True']),
        ({"offload": {"nvme": {"path": "/x", "gpudirect": "on"}}}, ["'offload.nvme.gpudirect'", "'on'", '"auto"']),
        ({"offload": {"nvme": {"path": "/x", "gpudirekt": True}}}, ["did you mean 'gpudirect'"]),
        (
            {"offload": {"nvme": {"path": "/x", "gpudirect": True}, "verify": True}},
            ["'offload.nvme.gpudirect'", "checksums", 'allowed: "auto", False'],
        ),
        ({"offload": {"verify": 1}}, ["'offload.verify'", "True, False"]),
        ({"offload": True, "rules": {"a": "offload:nvme"}}, ["'rules'", "nowhere to go", '{"nvme": "/scratch"}']),
        ({"rules": {"a": "offload:host"}}, ["'rules'", "nowhere to go", '{"host": True}']),
        ({"inductor": {"allow_buffer_reuse": True}}, ["set by memgraph itself"]),
        ({"inductor": {"realize_opcount_threshold": 30}}, ["set by memgraph itself"]),
        ({"inductor": {"realize_acc_reads_threshold": 8}}, ["set by memgraph itself"]),
        ({"inductor": {"max_autotune": print}}, ["'max_autotune'", "print"]),
        ({"inductor": {"cpp.cxx": [float("inf")]}}, ["'cpp.cxx'", "inf"]),
        ({"inductor": {3: 4}}, ["3 is not in Inductor's configuration"]),
        ({"inductor_json": "{}"}, ["'inductor_json'", "did you mean 'inductor'"]),
        ({"rules": {"a.b": "recompte"}}, ["'a.b'", "'recompte'", "did you mean 'recompute'"]),
        ({"rules": {"": "save"}}, ["''"]),
        ({"rules": [("a", "save")]}, ["'rules'", "dict"]),
        ({"mode": "fast"}, ["'mode'", "'fast'", '"max-autotune"']),
        ({"progress": "yes"}, ["'progress'", "'yes'", '"auto"']),
        ({"verify": 1}, ["'verify'", "1", "True, False"]),
        ({4: 5}, ["'4'", "allowed"]),
        ([("budget", 1)], ["a dict"]),
        ("budget", ["a dict"]),
    ],
)
def test_refusals_name_the_key_the_value_and_what_is_allowed(options, parts):
    message = refusal(options)
    assert all(part in message for part in parts), message


def test_every_refusal_is_reported_once():
    message = refusal({"verify": None, "progress": 3, "x": 1})
    assert len(message.splitlines()) == 3


def test_holds_nothing_of_the_caller():
    given = {"rules": {"a": "save"}, "inductor": {"post_grad_fusion_options": {"x": [1]}}}
    options = parse_options(given)
    key = options.key()
    given["rules"]["b"] = "save"
    given["inductor"]["post_grad_fusion_options"]["x"].append(2)
    options.inductor["max_autotune"] = True  # a copy, too
    assert options.key() == key
    assert options.inductor == {"post_grad_fusion_options": {"x": [1]}}
    with pytest.raises(ValidationError):
        options.budget = None


def test_repeatable():
    assert parse_options({}).repeatable == ()
    given = ["mylib::norm", "mylib::*", "triton::my_kernel", "mylib::norm"]
    options = parse_options({"repeatable": given})
    assert options.repeatable == ("mylib::norm", "mylib::*", "triton::my_kernel")
    given.append("other::op")
    assert len(options.repeatable) == 3 and options.key() != parse_options({}).key()


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("mylib::norm", "a list of operators"),
        (["mylib.norm"], "`namespace::name`"),
        (["*::norm"], "`namespace::name`"),
        ([3], "3 is no operator's name"),
        (["aten::mm"], "are known to memgraph"),
        (["_c10d_functional::all_reduce"], "communicate"),
        (["symm_mem::*"], "communicate"),
    ],
)
def test_refused_declarations(given, part):
    message = refusal({"repeatable": given})
    assert "'repeatable'" in message and part in message and "allowed" in message


def test_is_a_value():
    given = {"budget": "1GiB", "rules": {"a": "save"}, "inductor": {"max_autotune": True}, "recompute": {}}
    options = parse_options(given)
    assert hash(options) == hash(parse_options(dict(given)))
    assert pickle.loads(pickle.dumps(options)) == options


def test_key_is_canonical():
    one = parse_options({"inductor": {"max_autotune": True, "debug": False}, "budget": "1GiB"})
    two = parse_options({"budget": 1024**3, "inductor": {"debug": False, "max_autotune": True}})
    assert one.key() == two.key()
    assert json.loads(one.key())["budget"] == 1024**3
    rules = {"lm_head": "tile:16", "*": "save"}  # the first that matches wins: their order is part of the key
    assert json.loads(parse_options({"rules": rules}).key())["rules"] == [["lm_head", "tile:16"], ["*", "save"]]
    assert parse_options({"progress": True}).key() == parse_options({"progress": False}).key()


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 1},
        {"budget": 1.0},
        {"reserve": 1},
        {"recompute": False},
        {"recompute": {"copies": False}},
        {"rules": {"a": "save"}},
        {"rules": {"a": "recompute"}},
        {"verify": False},
        {"outline": True},
        {"outline": False},
        {"inductor": {"debug": True}},
        {"mode": "default"},
        {"cache": False},
    ],
)
def test_key_tells_options_apart(options):
    assert parse_options(options).key() != parse_options(None).key()
    assert parse_options({"budget": 1}).key() != parse_options({"budget": 1.0}).key()
