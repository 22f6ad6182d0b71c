"""torch's own offload tags are pins, as its other tags are."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import memgraph
from memgraph import runtime
from memgraph.base import compat
from memgraph.facts.actions import Offload
from tests.end_to_end.test_inductor import compiled_step

MUST, PREFER = CheckpointPolicy.MUST_CPU_OFFLOAD, CheckpointPolicy.PREFER_CPU_OFFLOAD
ROWS, WIDTH = 512, 64


def tagged(policy: CheckpointPolicy, context, operator, *args, **kwargs) -> CheckpointPolicy:
    product = operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return policy if product else CheckpointPolicy.PREFER_RECOMPUTE


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)).exp()


def layers(policy: CheckpointPolicy):
    """Two layers under a policy that tags their products, as a model and its loss."""
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer())
    contexts = functools.partial(create_selective_checkpoint_contexts, functools.partial(tagged, policy))

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.model:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=contexts)
            return x.mean()

    return Loss()


def planned(policy, **options):
    model = layers(policy)
    given = {"budget": None, **options}
    hardware = given.pop("hardware", None)
    return memgraph.plan(model, torch.empty(ROWS, WIDTH), options=given, hardware=hardware)


def offloaded(report):
    return [d for d in report.decisions if d.action == Offload("host")]


def test_must_goes_to_the_host_wherever_there_is_one():
    found = offloaded(planned(MUST, offload={"host": True, "min_bytes": "1GiB"}))
    assert len(found) == 2 and {d.why for d in found} == {"the user's checkpoint policy"}
    assert all(d.bytes == 4 * ROWS * WIDTH for d in found)


@pytest.mark.parametrize("policy", [MUST, PREFER], ids=lambda policy: policy.name)
def test_without_a_host_tier_it_is_refused(policy):
    report = planned(policy)
    assert not offloaded(report)
    (refusal,) = (refusal for refusal in report.refusals if policy.name in refusal.what)
    assert refusal.what.endswith("and 1 more (the user's checkpoint policy)")
    assert refusal.reason == "there is no host tier: option 'offload' gives no host memory"


def test_a_preference_is_not_followed_to_the_memory_where_the_values_are():
    report = planned(PREFER, offload=True)
    assert not offloaded(report)
    (refusal,) = (refusal for refusal in report.refusals if "PREFER_CPU_OFFLOAD" in refusal.what)
    assert "is where the values are already" in refusal.reason


@pytest.mark.skipif(not compat.traces_cuda(), reason="a build of torch with CUDA cannot trace for it without a GPU")
@pytest.mark.parametrize("policy", [MUST, PREFER], ids=lambda policy: policy.name)
def test_both_are_followed_on_a_gpu(policy):
    report = planned(policy, offload=True, hardware="NVIDIA H100 80GB HBM3")
    assert len(offloaded(report)) == 2
    assert not any("OFFLOAD" in refusal.what for refusal in report.refusals)


def test_the_other_tags_stay_what_they_are():
    for policy in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE):
        report = planned(policy, offload=True)
        assert not offloaded(report) and not any("OFFLOAD" in refusal.what for refusal in report.refusals)


@pytest.mark.inductor
def test_the_bytes_leave_and_the_gradients_are_the_same():
    x = torch.randn(ROWS, WIDTH)
    reference = compiled_step(layers(CheckpointPolicy.MUST_SAVE), {"x": x})[1]
    found = compiled_step(layers(MUST), {"x": x}, budget=None, offload=True)[1]
    assert runtime.statistics().host_peak >= 2 * 4 * ROWS * WIDTH
    assert len(offloaded(memgraph.report())) == 2
    for mine, theirs in zip(found, reference, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)
    runtime.release()
