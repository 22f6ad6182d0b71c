"""What Inductor's wrapper allocates and frees: sources written here."""

import pickle
import textwrap
from dataclasses import replace

import pytest
import torch

from memgraph.lower.timeline import Input, NotReadable, read_wrapper, saved_inputs, step_timeline

KIB = 256 * 4  # bytes of 256 float32


def tensor(name, *size, owned=False, storage=None, dtype=torch.float32, device="cpu"):
    nbytes = torch.Size(size).numel() * dtype.itemsize
    stride = torch.empty(size, device="meta").stride()
    return Input(name, nbytes, storage or name, dtype, tuple(size), stride, device, owned)


def read(body, inputs=(), before="", **kwargs):
    names = ", ".join(given.name for given in inputs)
    start = f"{names}, = args\nargs.clear()\n" if inputs else ""
    body = textwrap.indent(start + textwrap.dedent(body), "        ")
    source = f"{textwrap.dedent(before)}\nclass Runner:\n    def call(self, args):\n{body}\n"
    return read_wrapper(
        source + "\nrunner = Runner(partitions=[part_0,])\ncall = runner.call\n", inputs, "forward", **kwargs
    )


def changes(lowered):
    return [(event.value.removeprefix("forward."), event.bytes) for event in lowered.events]


NEW = "empty_strided_cpu((256, ), (1, ), torch.float32)"


def test_allocation_and_del():
    lowered = read(f"buf0 = {NEW}\nbuf1 = {NEW}\ndel buf0\nbuf2 = {NEW}\nreturn (buf2, )")
    # buf1 has no del: it goes when the call returns
    assert changes(lowered) == [("buf0", KIB), ("buf1", KIB), ("buf0", -KIB), ("buf2", KIB), ("buf1", -KIB)]
    assert lowered.peak == 2 * KIB
    assert [output.bytes for output in lowered.outputs] == [KIB]


def test_a_storage_that_gets_another_name_is_told_of():
    lowered = read(f"buf0 = {NEW}\nbuf1 = {NEW}\nbuf2 = buf0; del buf0  # reuse\ndel buf1\nreturn (buf2, )")
    assert [(reuse.after, reuse.storage, reuse.value) for reuse in lowered.reuses] == [
        (2, "forward.buf0", "forward.buf2")
    ]
    held = tensor("held", 4)  # the caller's, which the call does not free
    assert read("buf0 = held\nreturn (buf0, )", [held]).reuses == ()
    step = step_timeline(lowered, replace(lowered, phase="backward"))
    assert [reuse.after for reuse in step.reuses] == [2, 2 + len(lowered.events)]


def test_size_is_the_span_of_the_strides():
    lowered = read("buf0 = empty_strided_cpu((2, 3), (100, 1), torch.int64)\nreturn (buf0, )")
    assert lowered.peak == (100 + 2 + 1) * 8
    assert read("buf0 = empty_strided_cpu((0, 3), (3, 1), torch.int64)\nreturn (buf0, )").events == ()


def test_reuse_and_alias_share_storage():
    lowered = read(f"""
        buf0 = {NEW}
        buf1 = reinterpret_tensor(buf0, (16, 16), (16, 1), 0); del buf0  # reuse
        buf2 = reinterpret_tensor(buf1, (16, ), (1, ), 16)  # alias
        del buf1
        buf3 = {NEW}
        del buf2
        return (buf3, )
    """)
    assert changes(lowered) == [("buf0", KIB), ("buf3", KIB), ("buf0", -KIB)]


def test_owned_inputs_are_freed_and_others_are_not():
    inputs = [
        tensor("saved", 256, owned=True),
        tensor("weight", 256),
        tensor("view", 16, 16, owned=True, storage="saved"),
    ]
    lowered = read(f"del saved\nbuf0 = {NEW}\ndel weight\ndel view\nreturn (buf0, )", inputs)
    assert [(event.value, event.bytes) for event in lowered.events] == [("forward.buf0", KIB), ("saved", -KIB)]


def test_outputs_say_what_they_alias():
    lowered = read(
        f"buf0 = {NEW}\nreturn (None, reinterpret_tensor(weight, (16, 16), (1, 16), 0), buf0, 3, )",
        [tensor("weight", 256)],
    )
    assert [output.input for output in lowered.outputs] == [None, "weight", None, None]
    assert [output.storage for output in lowered.outputs] == [None, "weight", "forward.buf0", None]
    assert lowered.outputs[1].stride == (1, 16)


def test_operators_allocate_their_outputs_and_views_do_not():
    lowered = read(
        """
        buf0 = torch.ops.aten.topk.default(x, 4, -1, True, True)
        buf1 = buf0[0]
        assert_size_stride(buf1, (8, 4), (4, 1), 'torch.ops.aten.topk.default')
        buf2 = buf0[1]
        del buf0
        del buf1
        buf3 = torch.ops.aten.view.dtype(x, torch.int32)
        buf4 = extern_kernels.convolution(y, w, None, stride=(1,), padding=(0,), dilation=(1,),
            transposed=False, output_padding=(0,), groups=1)
        del buf4
        extern_kernels.mm(x, reinterpret_tensor(x, (32, 8), (1, 32), 0), out=buf2)
        cpp_fused_add_0(buf2, x)
        return (buf2, buf3, )
        """,
        [tensor("x", 8, 32), tensor("y", 1, 3, 8), tensor("w", 4, 3, 3)],
        before="cpp_fused_add_0 = async_compile.cpp_pybinding(['float*'], '''code''')",
        device="cpu",
    )
    names = [name for name, _ in changes(lowered)]
    assert names[:3] == ["buf0", "buf0#2", "buf0"]
    assert [size for _, size in changes(lowered)][:4] == [8 * 4 * 4, 8 * 4 * 8, -8 * 4 * 4, 4 * 6 * 4]
    assert lowered.outputs[1].input == "x"
    assert names[4:6] == ["convolution scratch"] * 2


def test_other_devices_do_not_count():
    body = """
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            buf0 = empty_strided_cuda((3, ), (1, ), torch.float32)
            stream0 = get_raw_stream(0)
            triton_0.run(buf0, 3, stream=stream0)
        buf1 = empty_strided_cpu_pinned((3, ), (1, ), torch.float32)
        buf1.copy_(buf0, True)
        buf2 = torch.ops.aten.flip.default(buf0, [0])
        return (buf0, buf1, buf2, )
    """
    before = "triton_0 = async_compile.triton('triton_0', '''code''')"
    assert changes(read(body, before=before, device="cuda")) == [("buf0", 12), ("buf2", 12)]
    assert changes(read(body, before=before)) == [("buf1", 12)]


LAYOUTS = """
    assert_size_stride_grouped = torch._C._dynamo.guards.assert_size_stride_grouped
    empty_strided_somewhere = torch._C._dynamo.guards._empty_strided_somewhere
"""


def test_checks_of_layouts_are_read():
    """torch 2.15 checks several inputs in one call, and the type of what an operator returns."""
    inputs = [tensor("a", 256), tensor("b", 16, 16)]
    grouped = "assert_size_stride_grouped((a, b), ((256, ), (16, {columns})), ((1, ), (16, 1)), 'input')"
    typed = "assert_tensor_metadata(a, (256, ), (1, ), torch.{dtype}, 'torch.ops.aten.cumsum.default')"
    for line in (grouped.format(columns=16), typed.format(dtype="float32")):
        assert read(f"{line}\nreturn (a, )", inputs, LAYOUTS).events == ()
    for line in (grouped.format(columns=8), typed.format(dtype="int64")):
        with pytest.raises(NotReadable, match="found"):
            read(f"{line}\nreturn (a, )", inputs, LAYOUTS)


def test_a_function_that_is_no_kernel_is_refused():
    """Taken for a kernel, an allocation of a kind that a later torch may bring would be bytes missed."""
    with pytest.raises(NotReadable, match="no call that memgraph knows"):
        read("buf0 = empty_strided_somewhere((256, ), (1, ), torch.float32)\nreturn ()", before=LAYOUTS)


def test_partial_sums_of_a_workspace_are_summed_up_by_the_wrapper():
    """As Inductor does on CUDA with the gradient of a norm's weight: a float32 sum stands beside its smaller copy."""
    lowered = read("""
        workspace_0 = empty_strided_cpu((4096, ), (1, ), torch.float32)
        buf0 = workspace_0[0 * 8 * 256 : (0 + 1) * 8 * 256].view(8, 256).sum(dim=0).view([1, 1, 256]).to(torch.bfloat16)
        buf1 = workspace_0[1 * 8 * 256 : (1 + 1) * 8 * 256].view(8, 256).amax(dim=0).view([256])
        del workspace_0
        assert_size_stride(buf0, (1, 1, 256), (256, 256, 1), 'buf0')
        return (buf0, buf1, )
    """)
    assert changes(lowered) == [
        ("workspace_0", 16 * KIB),
        ("buf0", KIB), ("buf0#2", KIB // 2), ("buf0", -KIB),
        ("buf1", KIB),
        ("workspace_0", -16 * KIB),
    ]  # fmt: skip
    for wrong in ("view(7, 256).sum(dim=0)", "view(8, 256).sum(dim=1)", "view(8, 256).prod(dim=0)"):
        with pytest.raises(NotReadable):
            read(f"buf0 = empty_strided_cpu((2048, ), (1, ), torch.float32)[0:2048].{wrong}\nreturn (buf0, )")


def test_symbolic_sizes():
    inputs = [Input("arg0_1", 0, "arg0_1", value=6), tensor("arg1_1", 6, 4)]
    body = """
        s77 = arg0_1
        arg1_1_size = arg1_1.size()
        s5 = arg1_1_size[1]
        u0 = buf9.item()
        buf0 = empty_strided_cpu((s77, 8*s5), (8*s5, 1), torch.float32)
        buf1 = empty_strided_cpu((max(1, u0 // 2), ), (1, ), torch.float32)
        return (buf0, buf1, s77*s5, )
    """
    lowered = read("buf9 = arg1_1\n" + textwrap.dedent(body), inputs, symbols={"u0": 20})
    assert changes(lowered) == [("buf0", 6 * 32 * 4), ("buf1", 40)]
    with pytest.raises(NotReadable, match=r"u0 = buf9\.item"):
        read("buf9 = arg1_1\n" + textwrap.dedent(body), inputs)


@pytest.mark.parametrize("callee", ["part_0(a)", "self.partitions[0](a)"])
def test_functions_of_the_wrapper_are_interpreted(callee):
    before = f"""
        def part_0(args):
            x, y = args
            args.clear()
            buf0 = {NEW}
            del x
            buf1 = {NEW}
            return (buf0, y, )
    """
    body = f"""
        buf0 = {NEW}
        buf1 = {NEW}
        a = [buf0, buf1]
        del buf0, buf1
        (buf2, buf3) = {callee}
        del a
        return (buf2, )
    """
    lowered = read(body, before=before)
    assert changes(lowered) == [
        ("buf0", KIB), ("buf1", KIB), ("buf0#2", KIB), ("buf0", -KIB),
        ("buf1#2", KIB), ("buf1#2", -KIB), ("buf1", -KIB),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "statement",
    [
        "while True: pass",
        "for x in range(3): pass",
        "buf0 = mystery(3)",
        "buf0 = mystery",
        "mystery.run(3)",
        "buf0 += 1",
        "buf0 = torch.ops.aten.mystery.default(3)",
        "buf0 = torch.ops.aten.nonzero.default(x)",  # its size depends on data
        "buf0 = x.clone()",
        "assert_size_stride(x, (8, 2), (2, 1), 'input')",
        "buf0 = [y for y in x]",
        "del mystery",
    ],
)
def test_what_is_not_known_is_refused(statement):
    with pytest.raises(NotReadable) as caught:
        read(f"buf1 = {NEW}\n{statement}\nreturn (buf1, )", [tensor("x", 2, 8)])
    assert caught.value.line == 7
    assert statement.split(":")[0] in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_step():
    forward = read(f"buf0 = {NEW}\nbuf1 = {NEW}\nreturn (buf0, weight, buf1, )", [tensor("weight", 256)])
    boxed = hasattr(torch.autograd.Function, "boxed_grads_call")  # before it, autograd holds the tangents
    given = [tensor("weight", 256), tensor("buf1", 256), tensor("tangent", 256)]
    saved = {0: 1, 1: 2}
    inputs = saved_inputs(given, forward, saved, held=[0])
    assert [(i.storage, i.owned) for i in inputs] == [
        ("weight", False),
        ("forward.buf1", True),
        ("tangent", boxed),
    ]
    backward = read(f"buf0 = {NEW}\ndel weight, buf1\nbuf2 = {NEW}\ndel tangent\nreturn (buf0, buf2)", inputs)
    timeline = step_timeline(forward, backward, saved)
    assert [total // KIB for total in timeline.sums()] == [1, 2, 3, 4, 3, 4, 3]  # the last: the tangent
    assert step_timeline(forward, None).peak == 2 * KIB


def test_gradients_of_outputs_that_are_not_contiguous_are_copied():
    """AOTAutograd traces a backward with the layout of outputs, and copies what comes otherwise before it begins."""
    forward = read(f"buf0 = {NEW}\nbuf1 = {NEW}\nbuf2 = {NEW}\nreturn (buf0, buf1, buf2, )")

    def peak(*stride: int) -> int:
        tangents = [replace(tensor(f"tangents_{n}", 16, 16), stride=stride) for n in (1, 2)]
        inputs = saved_inputs([tensor("buf2", 256), *tangents], forward, {0: 2})
        body = "buf0 = empty_strided_cpu((1, ), (1, ), torch.float32)\nreturn (buf0, )"
        return step_timeline(forward, read(body, inputs), {0: 2}).peak

    assert peak(16, 1) == 5 * KIB + 4
    assert peak(1, 16) == 7 * KIB  # both gradients twice, before anything of the backward is there


def test_what_lies_on_another_device_is_no_part_of_a_step():
    body = """
        buf0 = empty_strided_cuda((3, ), (1, ), torch.float32)
        buf1 = empty_strided_cpu((3000, ), (1, ), torch.float32)
        return (buf0, buf1, )
    """
    forward = read(body, device="cuda")
    given = [tensor("buf0", 3, device="cuda"), tensor("there", 75, device="cuda"), tensor("here", 75)]
    backward = read("return (None, )", saved_inputs(given, forward, {0: 0}), device="cuda")
    saved_and_tangent = 3 * 4 + 75 * 4
    assert max(step_timeline(forward, backward, {0: 0}, dropped={1}).sums()) == saved_and_tangent
    assert min(step_timeline(forward, backward, {0: 0}, dropped={1}).sums()) >= 0
    assert step_timeline(forward, None, dropped={0, 1}).sums()[-1] == 0


def test_a_sparse_gradient_holds_its_indices_and_values():
    make = "torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default"
    lowered = read(f"""
        buf0 = empty_strided_cpu((1, 128), (128, 1), torch.int64)
        buf1 = empty_strided_cpu((128, 2), (2, 1), torch.float32)
        buf2 = {make}(1, 1, [256, 2], buf0, buf1, dtype=torch.float32, layout=torch.sparse_coo, device='cpu')
        del buf0
        del buf1
        buf3 = buf2
        assert_size_stride(buf3, (256, 2), (0, 0), 'as Inductor asks')
        del buf2
        buf4 = {NEW}
        return (buf3, )
    """)
    assert changes(lowered) == [("buf0", KIB), ("buf1", KIB), ("buf4", KIB), ("buf4", -KIB)]


def test_a_sparse_gradient_of_bags_has_a_row_for_each_index():
    """The forward of a sum leaves the table of bags empty; the fake kernel then says that the gradient has no rows."""
    indices, offsets = tensor("indices", 64, dtype=torch.int64), tensor("offsets", 8, dtype=torch.int64)
    table, sizes = tensor("table", 0, dtype=torch.int64), tensor("sizes", 8, dtype=torch.int64)
    lowered = read(
        "buf0 = torch.ops.aten._embedding_bag_backward.default(grad, indices, offsets, table, sizes, sizes, 16, False, "
        "0, True, None)\nbuf1 = buf0\nreturn (buf1, )",
        [tensor("grad", 8, 4), indices, offsets, table, sizes],
    )
    assert changes(lowered)[0] == ("buf0", 64 * 4 * 4)
