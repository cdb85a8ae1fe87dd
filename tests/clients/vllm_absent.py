"""vLLM imports packages that its scheduler and cache do not use. Import this module first: it stands in for them.

A driver that runs in vLLM's environment then needs neither these packages nor what they need.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

ABSENT = ["uvloop", "xgrammar", "llguidance", "outlines_core"]  # imported by vLLM, not used here
if importlib.util.find_spec("openai_harmony") is None:  # used by vllm_prompts.py alone, for gpt-oss
    ABSENT.append("openai_harmony")


class _AnyName(type):
    """A class of an absent package; it has every attribute."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _AnyClass:
    def __init__(self, *arguments, **options):
        pass

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()


def _any_name(name):
    if name.startswith("__"):  # inspect asks each module for its file
        raise AttributeError(name)
    return _AnyName(name, (_AnyClass,), {})


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in place of packages that the scheduler does not use."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = _any_name
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Absent())
