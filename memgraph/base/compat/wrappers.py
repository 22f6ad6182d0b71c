"""Wrappers that Inductor writes and does not load: a load compiles all kernels of a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class Wrapper:
    """Stands for the module of a wrapper, which is loaded by `load`, or when it is first run.

    Attributes:
        __file__: the path of the wrapper's source; Inductor logs it.
    """

    def __init__(self, path: str, load: Callable[[], Any]) -> None:
        self.__file__ = path
        self._load: Callable[[], Any] | None = load
        self._module: Any = None

    def load(self) -> Any:
        """The module of the wrapper. Its kernels are compiled before this returns; once, however often it is called."""
        if self._load is not None:
            self._module = self._load()
            self._load = None  # it holds the constants of the graph
        return self._module

    def call(self, args: list[Any]) -> Any:
        """Run the wrapper, which takes its arguments out of the list."""
        return self.load().call(args)


@contextlib.contextmanager
def loading_later() -> Iterator[list[Wrapper]]:
    """While this lasts, Inductor loads no wrapper that it writes. Yields those that it has written, in their order.

    Wrappers that come from its caches are loaded all the same. A wrapper that is loaded later has no `runner`, which
    CUDA graphs would ask for.
    """
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.graph import GraphLowering

    written: list[Wrapper] = []
    stock = GraphLowering._compile_to_module_lines

    def write(lowering: Any, code: Any) -> Any:
        loader, load = PyCodeCache.__dict__["load_by_key_path"], PyCodeCache.load_by_key_path

        def later(key: str, path: str, *args: Any, **kwargs: Any) -> Wrapper:
            written.append(Wrapper(path, lambda: load(key, path, *args, **kwargs)))
            return written[-1]

        PyCodeCache.load_by_key_path = staticmethod(later)
        try:
            return stock(lowering, code)
        finally:
            PyCodeCache.load_by_key_path = loader

    GraphLowering._compile_to_module_lines = write
    try:
        yield written
    finally:
        GraphLowering._compile_to_module_lines = stock
