"""Eviction policies in plain Python, over dicts and lists: the definitions of the compiled ones."""

from importlib import import_module

FILES = {"2q": "two_q", "unlimited": "lru"}  # the others' files have the policy's name


def file_of(policy):
    """The module of this package with a policy's twin.

    >>> file_of("lfu-da")
    'lfu_da'
    """
    return FILES.get(policy, policy.replace("-", "_"))


def twin_of(policy, cls):
    """The plain class of a policy: it has the name of the compiled one."""
    return getattr(import_module(f"{__name__}.{file_of(policy)}"), cls)
