"""Optimizers for the tests of forecasts, torch's and of users' own, and parameters for them."""

import torch
from torch import nn, optim

CPU = torch.device("cpu")
LAYERS = [(96, 40), (96,), (40, 96), (40,)] * 3 + [(64, 64), (1000,)]


class Lion(torch.optim.Optimizer):
    """A user's own."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    update = (average * group["betas"][0] + p.grad * (1 - group["betas"][0])).sign()
                    p.add_(update, alpha=-group["lr"])
                    average.lerp_(p.grad, 1 - group["betas"][1])


class Replacing(torch.optim.Optimizer):
    """A new tensor for its state in each step, and the gradient kept, too."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["momentum"] = 0.9 * state.get("momentum", 0) + p.grad
            state["previous"] = p.grad
            p.data.sub_(0.1 * state["momentum"])


def parameters(shapes=LAYERS, dtype=torch.float32):
    made = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    return made


def real_state(optimizer) -> int:
    tensors = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


OPTIMIZERS = {
    "adamw": lambda p: optim.AdamW(p),
    "adamw foreach": lambda p: optim.AdamW(p, foreach=True),
    "adamw fused": lambda p: optim.AdamW(p, fused=True),
    "adamw amsgrad": lambda p: optim.AdamW(p, amsgrad=True),
    "adamw amsgrad foreach": lambda p: optim.AdamW(p, amsgrad=True, foreach=True),
    "adamw maximize foreach": lambda p: optim.AdamW(p, maximize=True, foreach=True),
    "adam": lambda p: optim.Adam(p, weight_decay=0.1, maximize=True),
    "adam tensor rate": lambda p: optim.Adam(p, lr=torch.tensor(1e-3)),
    "sgd": lambda p: optim.SGD(p),
    "sgd momentum": lambda p: optim.SGD(p, momentum=0.9),
    "sgd nesterov": lambda p: optim.SGD(p, momentum=0.9, nesterov=True, weight_decay=0.1),
    "sgd nesterov foreach": lambda p: optim.SGD(p, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: optim.SGD(p, momentum=0.9, fused=True),
    "rmsprop": lambda p: optim.RMSprop(p, centered=True, momentum=0.9),
    "rmsprop foreach": lambda p: optim.RMSprop(p, foreach=True),
    "adagrad": lambda p: optim.Adagrad(p),
    "adagrad fused": lambda p: optim.Adagrad(p, fused=True),
    "adafactor": lambda p: optim.Adafactor(p),
    "adafactor foreach": lambda p: optim.Adafactor(p, foreach=True),
    "nadam": lambda p: optim.NAdam(p),
    "nadam foreach": lambda p: optim.NAdam(p, foreach=True),
    "radam foreach": lambda p: optim.RAdam(p, foreach=True),
    "lion": Lion,
}
