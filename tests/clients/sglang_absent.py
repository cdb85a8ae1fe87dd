"""SGLang imports packages, and modules of its own, that a driver does not use. These stand-ins take their place.

A driver that runs in SGLang's environment then needs neither these packages nor what they need.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types


class _AnyName(type):
    """A class of an absent package; it has every attribute."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (_AnyClass,), {})

    def __or__(cls, other):
        return cls

    def __ror__(cls, other):
        return cls

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())


class _AnyClass(metaclass=_AnyName):
    def __init__(self, *_, **__):
        pass

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __call__(self, *args, **_):
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass()


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in place of packages and of SGLang's own modules, and SGLang's root without its patches."""

    def __init__(self, packages, modules):
        self.packages, self.modules = frozenset(packages), tuple(modules)

    def find_spec(self, name, path=None, target=None):
        replaced = any(name == module or name.startswith(module + ".") for module in self.modules)
        if name != "sglang" and not replaced and name.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__version__ = "0.0.0"
        if spec.name == "sglang":
            module.__path__ = [path for folder in sys.path if os.path.isdir(path := os.path.join(folder, "sglang"))]
        else:
            module.__path__ = []
            module.__getattr__ = lambda name: getattr(_AnyClass, name)
        return module

    def exec_module(self, module):
        module.__spec__.submodule_search_locations = module.__path__


def stand_in(packages, modules):
    """From here on, import empty modules in place of these packages and of these modules of SGLang."""
    sys.meta_path.insert(0, StandIns(packages, modules))
