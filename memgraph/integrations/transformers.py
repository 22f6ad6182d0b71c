"""A callback for the `Trainer` of transformers: compiles its model under a budget, and logs what was planned.

trainer = Trainer(model, args, train_dataset=data, callbacks=[MemgraphCallback({"budget": "20GiB"})])
trainer.train()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.modeling_utils import unwrap_model

from memgraph.backend.options import parse_options
from memgraph.base import compat
from memgraph.base.errors import MemgraphError
from memgraph.reporting.log import reports
from memgraph.reporting.report import Report


class CannotCompileError(MemgraphError, ValueError):
    """A model that the callback cannot compile, since it is compiled already or would be a second time."""


class MemgraphCallback(TrainerCallback):
    """Compiles the model of a `Trainer` in place when training begins, and adds the newest plans to its logs.

    The model stays the same object, so that its signature and the names in its checkpoints are the plain ones. Later
    calls of `train()` find it compiled. These figures stand beside the loss, all in bytes:

        memgraph_budget_bytes           the budget; not there without a bound
        memgraph_predicted_peak_bytes   what the plan reaches, of several graphs the one that reaches most
        memgraph_saved_bytes            by how much that is below the peak of plain Inductor; less than 0: above
        memgraph_allocated_peak_bytes   CUDA alone: the allocator's own peak, since someone last reset it

    Args:
        options: as for `torch.compile(..., backend="memgraph", options=options)`.
        dynamic, fullgraph: as for `torch.compile`.

    Raises OptionsError where an option is not understood. When training begins, raises CannotCompileError where the
    model, or a module of it, is compiled already, `torch_compile` is set in the training arguments, or the Trainer
    copies the model to several GPUs of one process.
    """

    def __init__(
        self, options: dict[str, Any] | None = None, *, dynamic: bool | None = None, fullgraph: bool = False
    ) -> None:
        parse_options(options)  # torch would refuse wrong ones at the first step only
        self.options, self.dynamic, self.fullgraph = options, dynamic, fullgraph
        self._compiled: Any = None
        self._earlier: list[Report] = []

    def put_first(self, trainer: Trainer) -> MemgraphCallback:
        """Add the callback to a Trainer before all others, in place of `callbacks=[...]`; returns the callback.

        A Trainer asks its callbacks one after the other, those of `report_to` first: what is added later is in its
        history and on the screen, but not with TensorBoard, Weights & Biases and their like.
        """
        trainer.callback_handler.callbacks.insert(0, self)
        return self

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **others: Any,
    ) -> None:
        """Compile the model."""
        if model is None:
            raise CannotCompileError("the Trainer has no model when training begins")
        if args.torch_compile:
            raise CannotCompileError(
                "the training arguments have torch_compile=True, so the Trainer compiles the model itself: leave out "
                "either that (and torch_compile_backend, torch_compile_mode, which set it), or MemgraphCallback"
            )
        if args.n_gpu > 1:
            raise CannotCompileError(
                f"the Trainer copies the model to {args.n_gpu} GPUs in one process (torch.nn.DataParallel), and what "
                "is compiled in place stays with the first: start one process for each GPU (torchrun), or let this "
                "one see only one (CUDA_VISIBLE_DEVICES)"
            )
        bare = unwrap_model(model)  # DDP and its like
        form = compat.compiled_form(bare)
        if form is not None and form is self._compiled:
            return
        for name, module in bare.named_modules():
            if compat.compiled_form(module) is not None:
                raise CannotCompileError(
                    f"{f'the module {name!r} of the model' if name else 'the model'} is compiled already, and "
                    "MemgraphCallback compiles the model itself, in place: give the Trainer one that is not compiled, "
                    "or leave out the callback"
                )
        self._earlier = reports()
        bare.compile(backend="memgraph", options=self.options, dynamic=self.dynamic, fullgraph=self.fullgraph)
        self._compiled = compat.compiled_form(bare)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Add the figures to what is logged of the training, and to the history, which has its own copy of it."""
        if logs is None or not ("loss" in logs or "train_loss" in logs):  # of an evaluation
            return
        figures = self.figures()
        if figures and args.device.type == "cuda":
            figures["memgraph_allocated_peak_bytes"] = torch.cuda.max_memory_allocated(args.device)
        logs.update(figures)
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            state.log_history[-1].update(figures)

    def figures(self) -> dict[str, int]:
        """The figures of the newest plans since the model was compiled, in bytes; empty where there is none yet."""
        earlier = set(map(id, self._earlier))
        newest = {report.graph: report for report in reports() if id(report) not in earlier}
        if not newest:
            return {}
        highest = max(newest.values(), key=lambda report: report.predicted_peak)
        bound = {} if highest.budget is None else {"memgraph_budget_bytes": highest.budget}
        return {
            **bound,
            "memgraph_predicted_peak_bytes": highest.predicted_peak,
            "memgraph_saved_bytes": highest.saved,
        }
