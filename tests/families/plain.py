"""Models written with torch alone: recurrent, on graphs, with bags of embeddings."""

from __future__ import annotations

import torch
from torch import nn

from tests.families import Family, Made, Training, tokens


class Recurrent(nn.Module):
    """Embedding, a recurrent layer, a head."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layer = layer(32, 32, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(ids))[0])


def _next(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def lstm() -> Made:
    return Training(Recurrent(nn.LSTM), _next), {"ids": tokens(32, 16, 64)}


def gru() -> Made:
    return Training(Recurrent(nn.GRU), _next), {"ids": tokens(32, 16, 64)}


class Convolution(nn.Module):
    """A node's neighbours, averaged along the edges and mixed with the node itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        sums = torch.zeros_like(x).index_add(0, target, x[source])
        counts = x.new_zeros(x.shape[0], 1).scatter_add(0, target[:, None], x.new_ones(target.shape[0], 1))
        return self.own(x) + self.others(sums / counts.clamp(min=1))


class GraphNetwork(nn.Module):
    """Three layers of messages between nodes, and a head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Convolution(width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + nn.functional.dropout(torch.relu(layer(norm(x), edges)), 0.1, self.training)
        return self.head(x)


def graph_network() -> Made:
    def loss(model: nn.Module, x: torch.Tensor, edges: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x, edges), labels)

    inputs = {
        "x": torch.randn(512, 32), "edges": torch.randint(0, 512, (2, 2048)), "labels": torch.randint(0, 8, (512,))
    }  # fmt: skip
    return Training(GraphNetwork(), loss), inputs


class Recommender(nn.Module):
    """Wide and deep: bags of item embeddings, a user embedding, an MLP over both and their product."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(256, 32, mode="sum", sparse=sparse)
        self.users = nn.Embedding(256, 32, sparse=sparse)
        self.deep = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, history: torch.Tensor, user: torch.Tensor) -> torch.Tensor:
        bag, user = self.items(history), self.users(user)
        return self.deep(torch.cat([bag, user, bag * user], 1)).squeeze(1)


def _recommender(sparse: bool) -> Made:
    def loss(model: nn.Module, history: torch.Tensor, user: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(model(history, user), clicked)

    inputs = {
        "history": tokens(512, 8, 256), "user": torch.randint(0, 256, (512,)),
        "clicked": torch.randint(0, 2, (512,)).float(),
    }  # fmt: skip
    return Training(Recommender(sparse), loss), inputs


def recommender() -> Made:
    return _recommender(sparse=False)


def recommender_sparse() -> Made:
    return _recommender(sparse=True)


FAMILIES = (
    # Left alone, Dynamo breaks the graph at a recurrent layer, which then runs outside of it, and of every budget.
    *(Family(build.__name__, "plain", "torch", build, dynamo={"allow_rnn": True}) for build in (lstm, gru)),
    *(Family(build.__name__, "plain", "torch", build) for build in (graph_network, recommender)),
    Family("recommender_sparse", "plain", "torch", recommender_sparse, optimizer="sgd"),
)
