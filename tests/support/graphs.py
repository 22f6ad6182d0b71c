"""From a program to its joint graph, its facts, and to what a split of it computes and allocates."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from memgraph.backend.rules import protect
from memgraph.base import compat
from memgraph.facts import kernel_scratch
from memgraph.facts.joint import JointFacts, read_joint
from memgraph.facts.operators import twice_is_wrong
from memgraph.machine.hardware import Hardware
from memgraph.machine.measure import peak_above_start
from memgraph.passes.graphs import Joint, Split
from memgraph.passes.kernel_ends import kernel_ends
from memgraph.passes.offload import offload
from memgraph.passes.partition import partition
from memgraph.passes.recompute import recompute
from memgraph.planner.candidates import Candidate
from memgraph.planner.decisions import KernelEnd
from memgraph.planner.explain import make_plan
from memgraph.verify.rewrite import snapshot, verify_partition
from tests.support.programs import Program

HARDWARE = Hardware("test", "cpu", (("float32", 1e9),), 1e9, 1e8, 1e-6, 2**30)


@dataclasses.dataclass
class Captured:
    """A captured step."""

    before: fx.GraphModule
    """The joint graph as AOTAutograd made it."""
    joint: fx.GraphModule
    """The joint graph after Inductor's partitioner."""
    forward: fx.GraphModule
    backward: fx.GraphModule
    facts: JointFacts
    num_fwd_outputs: int
    primals: list[Tensor]
    tangents: list[Tensor]

    @property
    def split(self) -> Split:
        """As Inductor's partitioner makes it."""
        return Split(Joint(self.joint, self.num_fwd_outputs), self.forward, self.backward)

    def realise(
        self, chosen: Candidate, stock: Candidate, ends: tuple[KernelEnd, ...] = ()
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The two graphs of a choice, each rewrite verified.  ends: where kernels end."""
        plan = dataclasses.replace(make_plan(self.facts, chosen, stock), stock=False, kernel_ends=ends)
        count = self.num_fwd_outputs
        split = dataclasses.replace(self.split, settings={"host": "{}"})
        for realises in (partition, recompute, offload, kernel_ends):
            with _compiling() if realises is partition else nullcontext():
                rewritten = realises(split, plan)
            split = rewritten.graphs
            if rewritten.modified:
                told = {"num_fwd_outputs": count, "pass_name": realises.__name__}
                verify_partition(self.before, split.forward, split.backward, **told)
        return split.forward, split.backward

    def run(self, forward: fx.GraphModule, backward: fx.GraphModule) -> list[Tensor | None]:
        """Outputs, gradients and inputs after one step of the interpreter, on copies of the inputs."""
        primals = [p.detach().clone() for p in self.primals]
        return [*self._step(forward, backward, primals), *primals]

    def peak(self, forward: fx.GraphModule, backward: fx.GraphModule) -> int:
        """Bytes that a step allocates at its peak, by the profiler; inputs and tangents are the caller's."""
        primals = [p.detach().clone() for p in self.primals]
        return peak_above_start(lambda: self._step(forward, backward, primals), "cpu")

    def held(self, forward: fx.GraphModule, backward: fx.GraphModule) -> int:
        """Bytes that the interpreter holds at most, with the kernel scratch that the facts know of."""
        primals = [p.detach().clone() for p in self.primals]
        peaks: list[int] = []
        callers = [*primals, *self.tangents]

        def interpreter(graph: fx.GraphModule, held: Sequence[Tensor | None] = ()) -> _Counting:
            return _Counting(graph, callers, held, peaks)

        self._step(forward, backward, primals, interpreter)
        return max(peaks, default=0)

    @torch.no_grad()
    def _step(
        self,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        primals: list[Tensor],
        interpreter: Callable[..., fx.Interpreter] = lambda graph, held=(): fx.Interpreter(graph),
    ) -> list[Tensor | None]:
        torch.manual_seed(0)
        outputs = list(interpreter(forward).boxed_run(list(primals)))
        given = outputs[self.num_fwd_outputs :] + self.tangents
        del outputs[self.num_fwd_outputs :]
        return outputs + list(interpreter(backward, outputs).boxed_run(given))


class _Counting(fx.Interpreter):
    """Counts bytes after each operator: its own storages, the `held` ones and kernel scratch, without the callers'."""

    def __init__(self, graph: fx.GraphModule, callers: Sequence[Tensor], held: Sequence[Any], peaks: list[int]) -> None:
        super().__init__(graph)
        self.callers, self.held, self.peaks = _storages(callers), _storages(held), peaks

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        own = [value for node, value in self.env.items() if not _is_handle(node)]
        storages = _storages([*own, *[result] * (not _is_handle(n))]) | self.held
        coming = [node for node in (*self.env, n) if node.target is RELOAD and n not in node.users]
        self.peaks.append(
            sum(size for where, size in storages.items() if where not in self.callers)
            + sum(_bytes(next(iter(node.users))) for node in coming)
            + kernel_scratch.of_node(n, "cpu")
        )
        return result


RELOAD = torch.ops.memgraph.reload_start.default


def _is_handle(node: fx.Node) -> bool:
    """Whether a node stands for a copy, whose bytes are the runtime's."""
    copies = str(node.target).startswith("memgraph.") and node.target is not torch.ops.memgraph.reload_finish.default
    return copies or node.name.endswith("_held")


def _bytes(node: fx.Node) -> int:
    return node.meta["val"].untyped_storage().nbytes()


def _storages(values: Any) -> dict[int, int]:
    """Address and bytes of each storage of the tensors in nested lists."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def _compiling() -> AbstractContextManager[Any]:
    """As within torch.compile: elsewhere FX keeps random operators that nothing reads."""
    return tracing(TracingContext(FakeTensorMode()))


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # otherwise writes to buffers happen while it traces


class _Done(Exception):
    pass


def capture(program: Program, *, decompose: bool = True) -> Captured:
    """The joint graph of a program, with Inductor's decompositions or as autograd made it."""
    return capture_module(program.module(), program.inputs(), decompose=decompose)


def capture_module(module: nn.Module, inputs: tuple[Tensor, ...], *, decompose: bool = True) -> Captured:
    """The joint graph of a module that symbolic tracing understands."""
    table = None
    if decompose:
        from torch._inductor.decomposition import select_decomp_table

        table = select_decomp_table()
    traced = fx.GraphModule(module, _Tracer().trace(module))
    primals = [p.detach() for p in (*traced.parameters(), *traced.buffers(), *inputs)]
    captured = []

    def split(joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **rest: Any) -> Any:
        before = snapshot(joint)
        protected = protect(joint)
        forward, backward = compat.stock_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **rest)
        facts = read_joint(
            joint,
            forward,
            backward,
            num_fwd_outputs=num_fwd_outputs,
            hardware=HARDWARE,
            pins=protected,
        )
        tangents = _tangents(joint)
        captured.append(Captured(before, joint, forward, backward, facts, num_fwd_outputs, primals, tangents))
        raise _Done

    try:
        with warnings.catch_warnings(), _compiling():
            warnings.simplefilter("ignore")
            aot_module_simplified(
                traced,
                inputs,
                fw_compiler=lambda graph, inputs: graph,
                partition_fn=split,
                decompositions=table,
                keep_inference_input_mutations=True,
            )
    except _Done:
        pass
    return captured[0]


def why_fixed(node: fx.Node, repeatable: Sequence[str] = ()) -> str:
    """Why a node must not run twice, "" where it may."""
    fixed = twice_is_wrong(node, repeatable)
    return fixed.text if fixed else ""


def _tangents(joint: fx.GraphModule) -> list[Tensor]:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        draw = torch.Generator().manual_seed(0)
        found = []
        for node in joint.graph.find_nodes(op="placeholder"):
            if "tangents" in node.name:
                like = node.meta["val"]
                shape, stride = list(like.shape), list(like.stride())
                found.append(
                    torch.empty_strided(shape, stride, dtype=like.dtype).copy_(torch.randn(shape, generator=draw))
                )
        return found


def same_bits(left: Iterable[Tensor | None], right: Iterable[Tensor | None]) -> bool:
    """Whether two lists of results are equal bit for bit."""
    return all(
        (a is None and b is None)
        or (
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.equal(*(t.reshape(-1).contiguous().view(torch.uint8) for t in (a, b)))
        )
        for a, b in zip(left, right, strict=True)
    )
