"""What each kernel of attention allocates and takes, forward and backward."""
import itertools, json, sys, time
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
import torch.nn.functional as F

def events(fn):
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python", context=None)
    out = fn()
    torch.cuda.synchronize()
    snap = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    trace = snap["device_traces"][torch.cuda.current_device()]
    return out, [(("+" if e["action"] == "alloc" else "-"), e["size"]) for e in trace if e["action"] in ("alloc", "free_completed")]

def timed(fn, n=10):
    for _ in range(3): fn()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    for _ in range(n): fn()
    b.record(); torch.cuda.synchronize()
    return a.elapsed_time(b) / n

def counters():
    s = torch.cuda.memory_stats()
    return s["requested_bytes.all.allocated"], s["requested_bytes.all.current"], s["requested_bytes.all.peak"]

print(torch.__version__, torch.backends.cudnn.version(), torch.cuda.get_device_name())
shapes = [(2, 16, 4096, 128), (2, 16, 1000, 64), (1, 32, 16384, 128), (1, 8, 3333, 96)]
for shape, kind, dropout in itertools.product(shapes, ("causal", "mask", "none"), (0.0, 0.1)):
    b, h, s, d = shape
    if kind == "mask" and s > 5000: continue
    if dropout and kind != "causal": continue
    torch.manual_seed(0)
    # As transformers lays them out: batch x tokens x heads x width, transposed.
    q, k, v = (torch.randn(b, s, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3))
    mask = torch.ones(s, s, dtype=torch.bool, device="cuda").tril()[None, None] if kind == "mask" else None
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        if mask is not None and backend == SDPBackend.FLASH_ATTENTION: continue
        try:
            with sdpa_kernel([backend]):
                def forward(): return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, is_causal=kind == "causal")
                rounds = []
                for _ in range(2):
                    before = counters()
                    out, up = events(forward)
                    tangent = torch.randn_like(out)
                    _, down = events(lambda: torch.autograd.grad(out, (q, k, v), tangent))
                    rounds.append((up, down))
                first, second = rounds
                print(shape, kind, dropout, backend.name, "fwd", first[0], "bwd", first[1], "same" if first == second else f"SECOND {second}", flush=True)
                ms = timed(forward)
                out = forward()
                back = timed(lambda: torch.autograd.grad(out, (q, k, v), tangent, retain_graph=True))
                print(f"    forward {ms:.3f} ms, backward {back:.3f} ms", flush=True)
                if backend == SDPBackend.CUDNN_ATTENTION and kind == "causal":
                    # Bits: twice the same?
                    a = torch.autograd.grad(out, (q, k, v), tangent, retain_graph=True)
                    c = torch.autograd.grad(out, (q, k, v), tangent, retain_graph=True)
                    print("    backward twice the same bits:", all(torch.equal(x, y) for x, y in zip(a, c)), "out strides", out.stride())
                    # Scratch: does it depend on the contiguity?
        except Exception as e:
            print(shape, kind, dropout, backend.name, "failed", str(e)[:200], flush=True)
# as aten operators, contiguous: what a trial would call
q, k, v = (torch.randn(2, 16, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
out, up = events(lambda: torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True))
print("aten", up, [None if not isinstance(t, torch.Tensor) else (t.shape, t.dtype, str(t.device)) for t in out])
