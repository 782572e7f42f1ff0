"""Lets PyTorch begin without its compiler: that halves the CPU time of a small run.

The first optimizer of a process imports `torch._dynamo`, in order to mark functions that the
compiler shall not see. Python imports this module before any other. With it, a function is marked
once a script has imported the compiler, and one that has not calls the function itself.
"""

import functools
import sys
from importlib.machinery import PathFinder

MARKS = "torch._compile"


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


class Finder:
    """Finds the module of PyTorch that marks, and changes its decorator."""

    @staticmethod
    def find_spec(name, path=None, target=None):
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
