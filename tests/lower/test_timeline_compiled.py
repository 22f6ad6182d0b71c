"""What the wrappers of compiled models are read to allocate, against the profiler's allocation events."""

import copy
import gc
from itertools import accumulate

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memgraph.facts import kernel_scratch
from memgraph.lower.timeline import inputs_of, output_names, read_wrapper, saved_by_name, saved_inputs, step_timeline

pytestmark = [pytest.mark.inductor, pytest.mark.slow]


def profiled(fn):
    from memgraph.machine.measure import _cpu_allocations

    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as session:
        result = fn()
    events = session.profiler.kineto_results.experimental_event_tree()
    return [size for _, size in _cpu_allocations(events)], result


def lower_and_measure(model, fn):
    """The lowered forward, backward and step of `fn`, and the measured forward's and step's allocations."""
    import torch._functorch.config as functorch_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    recorded = []

    def inner(gm, inputs, **kwargs):
        copied = copy.deepcopy(gm.graph)  # Inductor rewrites it in place
        compiled = compile_fx_inner(gm, inputs, **kwargs)
        recorded.append((torch.fx.GraphModule(gm, copied), compiled.source_code))
        return compiled

    def backend(gm, inputs):
        with functorch_config.patch(force_non_lazy_backward_lowering=True):
            return compile_fx(gm, inputs, inner_compile=inner, config_patches={"force_disable_caches": True})

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=backend)

    def step():
        outputs = compiled()
        (outputs[0] if isinstance(outputs, tuple) else outputs).backward()
        return outputs

    def clear():
        for parameter in model.parameters():
            parameter.grad = None

    for _ in range(2):
        step()
        clear()
    measured_forward, outputs = profiled(compiled)
    held = len(outputs) if isinstance(outputs, tuple) else 1
    del outputs
    measured_step, outputs = profiled(step)
    (forward_gm, forward_source), (backward_gm, backward_source) = recorded
    forward = read_wrapper(forward_source, inputs_of(forward_gm), "forward")
    saved = saved_by_name(output_names(forward_gm), inputs_of(backward_gm))
    inputs = saved_inputs(inputs_of(backward_gm), forward, saved, range(held))
    backward = read_wrapper(backward_source, inputs, "backward")
    return forward, step_timeline(forward, backward, saved), measured_forward, measured_step


class Tied(nn.Module):
    """Tied weights, dropout, attention, and logits beside the loss."""

    def __init__(self):
        super().__init__()
        self.embed, self.qkv = nn.Embedding(512, 64), nn.Linear(64, 192)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        hidden = F.dropout(self.embed(x), 0.1)
        q, k, v = self.qkv(self.norm(hidden)).view(*x.shape, 3, 4, 16).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        logits = (hidden + mixed) @ self.embed.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), x.flatten()), logits


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(32, 10)

    def forward(self, x, target):
        hidden = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return F.cross_entropy(self.head(F.relu(self.second(hidden)).mean((2, 3))), target)


def tied():
    model, x = Tied(), torch.randint(0, 512, (4, 128))
    return model, lambda: model(x)


def convolutional():
    model, x, target = Convolutional(), torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    return model, lambda: model(x, target)


@pytest.mark.parametrize("build", [tied, convolutional])
def test_peaks_are_those_that_the_profiler_measures(build):
    with kernel_scratch.looking_up(
        kernel_scratch.for_compilation(None, 0, cache=False)
    ):  # kernels are measured, as the backend does
        forward, step, measured_forward, measured_step = lower_and_measure(*build())

    def peak(events):
        return max(accumulate(events))

    assert forward.peak == pytest.approx(peak(measured_forward), rel=0.005)
    assert step.peak == pytest.approx(peak(measured_step), rel=0.005)
    assert sum(event.bytes for event in forward.events) == sum(measured_forward)
    assert step.sums()[-1] == sum(measured_step)  # what the step leaves: gradients and outputs, exactly
