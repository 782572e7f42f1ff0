"""Lets PyTorch begin without what these scripts do not use: half of the CPU time of a small run.

Python imports this module before any other.

- The first optimizer of a process imports `torch._dynamo`, the compiler, in order to mark functions
  that it shall not see. Here a function is marked once a script has imported the compiler, and
  before that the function itself is called.
- `import torch` registers shapes of tensors without values, and kernels for GPUs that are written
  in Python. That is two fifths of its time, and here it does not.
"""

import functools
import sys
from importlib.machinery import ModuleSpec, PathFinder

MARKS = "torch._compile"
LEFT_OUT = ["torch._meta_registrations", "torch._native"]


def once_there_is_a_compiler(mark):
    """The decorator `mark`, whose mark counts once the compiler is imported."""

    def decorate(function=None, recursive=True):
        if function is None:
            return functools.partial(decorate, recursive=recursive)
        marked = mark(function, recursive)

        @functools.wraps(function)
        def call(*arguments, **named):
            chosen = marked if "torch._dynamo" in sys.modules else function
            return chosen(*arguments, **named)

        return call

    return decorate


class Empty:
    """Loads a module in which there is nothing."""

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        pass


class Finder:
    """Finds the module of PyTorch that marks and changes its decorator, and leaves modules out."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in LEFT_OUT:
            return ModuleSpec(name, Empty)
        if name != MARKS:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module._disable_dynamo = once_there_is_a_compiler(module._disable_dynamo)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder)
