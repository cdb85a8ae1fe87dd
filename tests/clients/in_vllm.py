"""Drivers that run in vLLM's environment, the folder `vllm` of KVTRACE_CLIENTS."""

from tests.clients import in_engine

PYTHON = in_engine.python_of("vllm")
needs_vllm = in_engine.needs("vllm")


def answers(cases, folder, driver):
    """What a driver of this folder prints of each case."""
    return in_engine.answers(cases, folder, "vllm", driver)
