"""The figures of a device, where `memgraph.plan(hardware=...)` takes them."""

from memgraph.machine.hardware import Hardware

__all__ = ["Hardware"]
