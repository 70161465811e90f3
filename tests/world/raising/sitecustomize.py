"""Makes one function of mpsd raise, from when a file is there: TESTS_RAISES is `module:name FILE`.

Every Python with this folder on its PYTHONPATH imports it. A coroutine function that is running
then raises too.
"""

import asyncio
import functools
import inspect
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

MESSAGE = "raised by a test"


def _raise(file: Path) -> None:
    if file.exists():
        raise RuntimeError(MESSAGE)


def raising(original: Any, file: Path) -> Any:
    if isinstance(original, property):
        assert original.fget
        return property(raising(original.fget, file))

    @functools.wraps(original)
    def called(*given: Any, **named: Any) -> Any:
        _raise(file)
        return original(*given, **named)

    @functools.wraps(original)
    async def awaited(*given: Any, **named: Any) -> Any:
        _raise(file)
        work = asyncio.ensure_future(original(*given, **named))
        try:
            while not (await asyncio.wait({work}, timeout=0.05))[0]:
                _raise(file)
            return work.result()
        finally:
            work.cancel()

    return awaited if inspect.iscoroutinefunction(original) else called


class _Finder:
    """Patches the module once it has been imported."""

    def __init__(self, module: str, name: str, file: Path) -> None:
        self._module = module
        self._name = name
        self._file = file

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec
        assert spec.loader
        load: Callable[[ModuleType], None] = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            *outer, last = self._name.split(".")
            place: Any = functools.reduce(getattr, outer, module)
            setattr(place, last, raising(inspect.getattr_static(place, last), self._file))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if asked := os.environ.get("TESTS_RAISES"):
    function, _space, there = asked.partition(" ")
    sys.meta_path.insert(0, _Finder(*function.split(":"), Path(there)))  # type: ignore[arg-type]
