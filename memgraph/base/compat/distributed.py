"""torch.distributed: which rank this process is, what of a parameter is in it, and what DDP keeps beside it."""

from __future__ import annotations

import sys
from typing import Any

from memgraph.base.instances import instances


def rank_here() -> int | None:
    """The rank of this process among those that train together; None where it trains alone."""
    import torch.distributed as dist

    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


def local(tensor: Any) -> Any:
    """The part of a distributed tensor that is in this process; any other tensor as it is."""
    import torch

    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def gathered() -> list[tuple[Any, Any]]:
    """The parameters that FSDP2 has gathered in this process, each with the shard that an optimizer owns for it.

    A gathered parameter is one object for as long as its module is sharded; its storage comes and goes.
    """
    module = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param")
    if module is None:
        return []
    holders = [holder for holder in instances(module.FSDPParam) if hasattr(holder, "_unsharded_param")]
    return [(holder._unsharded_param, holder.sharded_param) for holder in holders]


def wrapped() -> list[Any]:
    """The trained parameters of all DistributedDataParallel modules of this process.

    DDPOptimizer has its graphs compiled for fake tensors, which do not say whose they are.
    """
    from torch.nn.parallel import DistributedDataParallel

    modules = list(instances(DistributedDataParallel))
    return [p for module in modules if hasattr(module, "reducer") for p in module._module_parameters if p.requires_grad]


def bucket_bytes(module: Any, kind: str) -> int:
    """Bytes of DistributedDataParallel's gradient buckets, on one kind of device ("cpu"), that no Python tensor shows.

    The buckets are one flat copy of all gradients, there from the start. With `gradient_as_bucket_view` the gradients
    that exist are views of it, and Python sees their bytes.
    """
    if not hasattr(module, "reducer"):  # its constructor has not ended
        return 0
    seen = module.gradient_as_bucket_view
    parameters = (p for p in module._module_parameters if p.requires_grad and p.device.type == kind)
    return sum(p.numel() * p.element_size() for p in parameters if not (seen and p.grad is not None))


def collective_groups(gm: Any, inputs: Any) -> set[tuple[int, ...]]:
    """The ranks of each process group that communicates within a Dynamo graph; groups of one rank are left out.

    Found by collectives in the graph, and by distributed tensors among its inputs, whose collectives only autograd's
    graph shows. A collective that does not name its group is taken to be one of all ranks.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group

    if not (dist.is_available() and dist.is_initialized()):
        return set()
    found = {ranks for given in inputs if hasattr(given, "device_mesh") for ranks in _of_mesh(given.device_mesh)}
    graphs = [module for module in gm.modules() if isinstance(module, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.graph.nodes if _is_collective(node)):
        known = []
        for name in (value for value in (*node.args, *node.kwargs.values()) if isinstance(value, str)):
            try:
                known.append(_ranks(_resolve_process_group(name)))
            except Exception:  # not a group but the name of a reduction: "sum"
                continue
        found.update(known or [_ranks(dist.group.WORLD)])
    return {ranks for ranks in found if len(ranks) > 1}


def default_store() -> Any:
    """The store by which the processes of the default group found each other."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def _is_collective(node: Any) -> bool:
    if node.op != "call_function":
        return False
    module = getattr(node.target, "__module__", None) or ""
    return "c10d" in str(node.target) or module.startswith("torch.distributed")


def _of_mesh(mesh: Any) -> Any:
    return (_ranks(group) for group in mesh.get_all_groups())


def _ranks(group: Any) -> tuple[int, ...]:
    import torch.distributed as dist

    return tuple(sorted(dist.get_process_group_ranks(group)))
