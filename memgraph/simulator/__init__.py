"""A CUDA device that is not there: torch's CUDA build runs whole training steps without a GPU.

torch loads libcudart, libcublas, libcublasLt, libcuda and libnvidia-ml by their names. A process that is started here
finds the libraries of `native/` first, which answer for a card of `cards`. Real are: torch's caching allocator and its
statistics, the host code of ATen with all that it allocates, the choice of attention kernels, autograd's device thread,
Inductor, and Triton down to the machine code of the kernels. Simulated are: memory (address space, which costs host
memory once it is touched; beyond the card's capacity the allocation fails as on the card), and kernels, which do
nothing.

So `torch.cuda.memory_stats()` has what the card would show for the same calls, to the byte, and the log has the order
of work on streams. It knows nothing of

- values: kernels compute nothing, so no result means anything (a loss is 0 or garbage, a branch upon data arbitrary);
- times: events are 100 ms apart, so autotuning chooses arbitrarily, and a card may prefer another kernel or padding;
- cuDNN, which does not work here: convolutions need `torch.backends.cudnn.enabled = False`, and attention goes to flash
  attention (`TORCH_CUDNN_SDPA_DEPRIORITIZED=1`), where a Hopper card would give it to cuDNN outside of memgraph;
- what others do not take from torch's allocator, but for a driver's context of about 0.5 GiB: NCCL's buffers, say.
"""

from __future__ import annotations

from memgraph.simulator.cards import Card, card
from memgraph.simulator.libraries import SimulatorError
from memgraph.simulator.process import call, environment, here, run

__all__ = ["Card", "SimulatorError", "call", "card", "environment", "here", "run"]
