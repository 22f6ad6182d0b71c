"""What a budget comes to in bytes, for a compilation and for a dry run."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from memgraph.backend.options import Options
from memgraph.machine import memory
from memgraph.machine.hardware import Hardware
from memgraph.planner.outlining import Asked

# The share of the capacity that "auto" leaves free: for fragmentation, and for what libraries allocate for themselves.
AUTO_MARGIN = 0.05
# On the CPU the tensors that only C++ holds are not counted. Seen: 5 KiB in a run of 200 lengths, 12 KiB with TRL.
UNSEEN = 32 * 1024

# A plan is near the lowest peak where its own, by the sweep, is at most by this share above it.
NEAR = 0.05


@dataclasses.dataclass(frozen=True)
class Bound:
    """What a plan may allocate above the baseline."""

    bytes: int | None = None
    """Bytes above the baseline, or None."""
    fraction: float | None = None
    """A share of what Inductor's own partition allocates, or None."""
    reserve: int = 0
    """Bytes that are held back of either."""
    margin: int = 0
    """Bytes by which the next plan stays below the bound, since an earlier plan came out larger than its sweep."""
    last: bool = False
    """Whether to take the plan with the lowest peak, whatever the bound."""
    near: bool = False
    """With `last`: of plans whose peak by the sweep is nearly the lowest, the fastest. Another one, since lowering has
    missed the sweep of the lowest by much."""
    kernel_ends: bool = False
    """Whether kernels end where one function would hold more than the bound: an earlier plan came out too large."""
    bodies: bool = True
    """Whether equal layers may become bodies by themselves; not where each plan with bodies came out too large."""
    unplanned: int | None = None
    """Bytes that Inductor's own partition allocates, where they are known."""
    others: int = 0
    """Graphs like this one that may run between its forward and its backward; above 0, the plan is the one that takes
    least beside them."""
    again: int = 0
    """How many of these are sure to come before the first backward: the plan keeps the bound with their values beside
    it. Where none does, it is the one with which they reach least."""
    gradients: int = 0
    """Bytes of gradients that all of these make: the bound has room for them, which their values use until then."""
    between: int = 0
    """Bytes above what it holds that others are expected to reach between its forward and its backward."""
    ample: int = 0
    """Inductor's own partition is taken all the same where its peak is at most so many bytes."""
    offer: tuple[int, int] | None = None
    """The plan with this peak, which leaves so many bytes until the backward, both by the sweep."""
    offers: bool = False
    """Whether other plans of the graph are listed, for a choice together with other graphs."""
    dropped: tuple[int, ...] = ()
    """Positions of outputs of Dynamo's graph that the user does not hold any more when the backward begins."""
    outputs: int = 0
    """How many outputs Dynamo's graph has."""
    sizes: tuple[tuple[str, int], ...] = ()
    """Names and values of the symbolic sizes that the plan is made for; those of the capture where there are none."""

    def beside(self, peak: int, held: int) -> int:
        """Bytes above its own peak that are reached with graphs like this one beside it, of those that are sure to
        come, and with what runs outside of them.  held: by each, until its backward.

        Each leaves its gradients from then on, for which there is room. So most stands beside the last of them, whose
        backward is the first.
        """
        return max(0, self.again * held - self.gradients) + max(0, held + self.between - peak)

    def outline(self, options: Options) -> Asked:
        """Which equal layers become bodies. By itself none does where the lowest peak is wanted: bodies take more."""
        by_itself = self.bodies and not self.last
        return options.outline if options.outline is True or by_itself else False

    def above_baseline(self, unplanned: int) -> int | None:
        """Bytes above the baseline that the step may reach; None for no bound."""
        if self.fraction is not None:
            return int(self.fraction * unplanned) - self.reserve
        return None if self.bytes is None else self.bytes - self.reserve


def held_back(options: Options, device: torch.device) -> int:
    """Bytes of a budget that no plan of one graph may use."""
    in_bytes = not isinstance(options.budget, float)
    return options.held_back + (UNSEEN if in_bytes and device.type == "cpu" else 0)


def bound_of(options: Options, budget: int | None, baseline: int, device: torch.device) -> Bound:
    """The bound that the options ask for.  budget: in bytes with the baseline, as `budget_on` or `budget_of` say."""
    reserve = held_back(options, device)
    if isinstance(options.budget, float):
        return Bound(fraction=options.budget, reserve=reserve)
    return Bound(None if budget is None else budget - baseline, reserve=reserve)


def budget_on(device: torch.device, options: Options, hardware: Hardware, baseline: int) -> int | None:
    """The budget of a step on this machine, in bytes with the baseline.

    None for a share of the unplanned peak, which is known once the graph is, and for no budget.
    """
    budget = options.budget
    if budget != "auto":
        return budget if isinstance(budget, int) else None
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        usable = free + torch.cuda.memory_reserved(device)
    else:
        total = hardware.capacity
        usable = memory.free_memory() + baseline
    # Rounded, so that the caches are not asked for another configuration whenever another process allocates a little.
    step = max(1, total // 64)
    return int(usable * (1 - AUTO_MARGIN)) // step * step


def budget_of(hardware: Hardware, options: Options) -> int | None:
    """As `budget_on`, for a device that is known by its figures alone."""
    if options.budget == "auto":
        return int(hardware.capacity * (1 - AUTO_MARGIN))
    return options.budget if isinstance(options.budget, int) else None


def trains(gm: fx.GraphModule, inputs: Any) -> bool:
    """Whether a Dynamo graph is differentiated: autograd is on, and an input or a parameter requires a gradient."""
    tensors = [item for item in inputs if isinstance(item, torch.Tensor)]
    tensors += [*gm.parameters(), *gm.buffers()]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def nested_note(graphs: int) -> tuple[str, ...]:
    """What the report says where a user's nested regions were planned besides the outer graph.  graphs: all of them."""
    if graphs < 2:
        return ()
    return (f"{graphs - 1} nested regions were planned apart; this is the outer graph",)
