"""The order of a plan in Inductor's scheduler: which node waits for which."""

import types

from torch._inductor.virtualized import V

from memgraph.base import compat
from memgraph.lower.order import KeepOrder


class Node:
    """A scheduler node as the pass sees it."""

    def __init__(self, name, scheduler, extern=False):
        self.name, self.scheduler, self.extern = name, scheduler, extern
        self.ancestors, self.unmet_dependencies = set(), set()
        self.read_writes = types.SimpleNamespace(reads=(), writes=())

    def add_fake_dep(self, dep):
        assert dep.is_fake  # else a buffer would live longer for it
        self.unmet_dependencies.add(dep)

    def is_extern(self):
        return self.extern

    def is_template(self):
        return False

    def is_reduction(self):
        return False

    def get_buffer_names(self):
        return {f"buf_{self.name}"}

    def get_outputs(self):
        return ()

    def get_operation_names(self):
        return {f"op_{self.name}"}


def ordered(names, planned=True):
    """The nodes that each node waits for; in capitals those that fuse with nothing."""
    scheduler = types.SimpleNamespace(compute_ancestors=lambda: None, name_to_buf={})
    nodes = [Node(name, scheduler, extern=name.isupper()) for name in names]
    with V.set_graph_handler(types.SimpleNamespace(is_backward=True)):
        assert KeepOrder(lambda backward: planned, "identity")(nodes) == nodes
    return {
        node.name: "".join(sorted(dep.name.removeprefix("buf_") for dep in node.unmet_dependencies)) for node in nodes
    }


def test_kernels_stay_between_the_operators_that_they_stand_between():
    assert ordered("abMcNd") == {"a": "", "b": "", "M": "ab", "c": "M", "N": "Mc", "d": "N"}


def test_a_graph_that_is_not_planned_is_left_alone():
    assert set(ordered("abMcNd", planned=False).values()) == {""}


def test_nothing_waits_for_what_it_waits_for_already():
    scheduler = types.SimpleNamespace(compute_ancestors=lambda: None, name_to_buf={})
    first, second = Node("M", scheduler, extern=True), Node("N", scheduler, extern=True)
    second.ancestors = {"op_M"}
    with V.set_graph_handler(types.SimpleNamespace(is_backward=True)):
        KeepOrder(lambda backward: True, "identity")([first, second])
    assert not second.unmet_dependencies


def test_who_reads_a_part_of_a_group_comes_after_all_that_the_group_waits_for():
    def node(operations, reads=(), **more):
        needs = [types.SimpleNamespace(name=name) for name in reads]
        return types.SimpleNamespace(
            scheduler=scheduler,
            ancestors=set(),
            unmet_dependencies=needs,
            get_operation_names=lambda: operations,
            **more,
        )

    made = {name: types.SimpleNamespace(defining_op_name=lambda name=name: f"op_{name}") for name in "abcde"}
    scheduler = types.SimpleNamespace(name_to_buf=made)
    parts = [node(["op_b"]), node(["op_c"])]
    first, group = node(["op_a"]), node(["op_b", "op_c"], "ab", snodes=parts)  # a part may read another's buffer
    last = node(["op_d"], "c")
    compat.recompute_ancestors([first, group, last])
    assert [first.ancestors, group.ancestors, last.ancestors] == [set(), {"op_a"}, {"op_c", "op_a"}]
    assert all(part.ancestors == {"op_a"} for part in parts)
    assert [each.min_order for each in (first, group, last)] == [0, 1, 2]
