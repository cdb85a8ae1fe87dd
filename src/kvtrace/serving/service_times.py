"""How long a request takes alone on an instance: to estimate the service times of a log that did not measure them.

    service = the steps of the prompt's uncached tokens, at most STEP_TOKENS each + a step for each output token but the
              first, which reads one token more than the step before

Each step takes what `step_seconds` in core/instance.py gives for a batch of one request; before the first one, the
request passes the API server. Nothing waits: queues, other requests in the batch and the network are not part of it, so
measured times are longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._base.errors import UsageError
from .calibration.costs import roofline_cost
from .calibration.fitting import launched_seconds, routed_and_exchanged, step_seconds
from .deployment import Deployment
from .hardware.roofline import roofline_of
from .simulation import StepCost

STEP_TOKENS = 8192  # of a prompt in one step, as in vLLM


@dataclass(frozen=True)
class ServiceModel:
    """The times of requests that are alone on an instance. `service_model` makes one."""

    cost: StepCost
    about: dict[str, Any]  # the model, the GPU and the costs, for a sidecar

    def milliseconds(self, cached: np.ndarray, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """The whole milliseconds of each request, as logs have them.

        Args:
            cached: Request -> tokens of its prompt that a cache has; the last token is always computed.
            prompt: Request -> tokens of its prompt.
            output: Request -> tokens of its output.
        """
        front_s, delay_s = self.cost.front(prompt, 1)
        steps_s = self.prefill_s(cached, prompt) + self._decode_s(prompt, output)
        return np.round(1000.0 * (front_s + delay_s + steps_s))

    def prefill_s(self, cached: np.ndarray, prompt: np.ndarray, step_tokens: int = STEP_TOKENS) -> np.ndarray:
        """The seconds of the steps of each prompt; lengths as in `milliseconds`.

        >>> ServiceModel(StepCost(token_s=1.0, overhead_s=0.5), {}).prefill_s(np.array([0]), np.array([3]), 2)
        array([4.])
        """
        computed = np.minimum(cached, np.maximum(prompt - 1, 0)).astype(np.float64)
        terms, seconds = vars(self.cost), np.zeros(len(computed))
        while (left := prompt - computed).any():
            chunk = np.minimum(left, step_tokens)
            step = step_seconds(terms, chunk, chunk * (2 * computed + chunk), computed, 1.0)
            step = launched_seconds(terms, chunk, step)
            seconds += np.where(left > 0, step, 0.0)
            computed += chunk
        return seconds

    def _decode_s(self, prompt: np.ndarray, output: np.ndarray) -> np.ndarray:
        """Seconds of the output tokens after the first; the sum of the steps of a context that grows by one a step."""
        steps = np.maximum(output - 1.0, 0.0)
        context = prompt + 1.0
        cost, single = self.cost, np.ones(1)
        reads = steps * context + steps * (steps - 1) / 2
        # memory time exceeds compute time from some step on, since the context grows
        bound = (
            (cost.token_s - cost.step_s) / cost.read_s - context if cost.read_s > 0 else np.full(len(prompt), np.inf)
        )
        computing = np.clip(np.ceil(bound), 0, steps) if cost.token_s > cost.step_s or cost.read_s > 0 else 0 * steps
        after = steps - computing
        read = after * (cost.step_s + cost.read_s * context) + cost.read_s * (
            after * computing + after * (after - 1) / 2
        )
        alone = cost.overhead_s + cost.request_s + routed_and_exchanged(vars(cost), single)
        window = np.zeros(len(prompt))
        if cost.window_tokens > 0:
            growing = np.clip(np.floor(cost.window_tokens - context) + 1, 0, steps)
            inside = growing * context + growing * (growing - 1) / 2 + (steps - growing) * cost.window_tokens
            window = cost.window_read_s * inside
        return computing * cost.token_s + read + steps * alone + cost.attention_read_s * reads + window


def service_model(
    model: str | Path | dict[str, Any] | None = None,
    gpu: str | Path | None = None,
    *,
    gpus: int | None = None,
    costs: str | Path | None = None,
) -> ServiceModel:
    """A model of how long requests take that are alone on an instance, for `anonymize`.

    Args:
        model: The name of a model that `kvtrace models` lists, or its config.json; with `costs`, another model than the
            measured one.
        gpu: The GPU, by its name.
        gpus: GPUs of an instance, by tensor parallelism; the default is 1, or as many as the costs were measured on.
        costs: A file of `kvtrace calibrate`, in place of `gpu`.

    Returns:
        A model that `anonymize` takes as `service_model`.

    Raises:
        UsageError: Neither a GPU nor costs are given, or both.

    >>> model = service_model("llama-3.1-8b", "h100")
    >>> model.milliseconds(np.array([0, 9_000]), np.array([10_000, 10_000]), np.array([200, 200]))
    array([1621., 1418.])
    """
    if (gpu is None) == (costs is None):
        raise UsageError("--service-time needs --gpu or --costs. Use one of them.")
    about: dict[str, Any] = {"costs": "roofline" if costs is None else "calibrated"}
    if costs is not None:
        from .calibration.costs import read_costs

        measured = read_costs(costs)
        calibrated = measured.for_gpus(model, gpus=gpus)
        return ServiceModel(calibrated.cost, about | _named(model or measured.model, measured.gpu, calibrated.gpus))
    roofline = roofline_of(Deployment(model, gpu=gpu).with_gpus(gpus))
    return ServiceModel(roofline_cost(roofline), about | _named(model, gpu, roofline.gpus))


def _named(model: Any, gpu: Any, gpus: int) -> dict[str, Any]:
    """The names that are no paths."""
    from .hardware.gpus import GPUS
    from .models.config import model_name

    names = {"model": model_name(model), "gpu": gpu if isinstance(gpu, str) and gpu in GPUS else None}
    return {name: value for name, value in names.items() if value is not None} | {"gpus": gpus}
