"""The names of the routers, whose choices `core/serving.py` computes. docs/cache/simulate.md explains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .._base.errors import UsageError, wrong_word
from .._base.options import changed_by_text

if TYPE_CHECKING:
    from .deployment import Deployment

RouterName = Literal[
    "round-robin", "sticky", "overlap", "least-loaded", "kv-aware", "dynamo", "lmetric", "vllm-dp",
    "sglang-total-requests", "sglang-total-tokens", "sglang-cache-aware",
]  # fmt: skip
ROUTERS: dict[RouterName, str] = {
    "round-robin": "each instance in turn",
    "sticky": "the instance of the session, or of the prompt's second block if the trace has no sessions",
    "overlap": "the instance with the most hit blocks; of equal ones the first",
    "least-loaded": "the instance with the fewest prompt tokens of active requests; then with fewest requests so far",
    "kv-aware": "the lowest sum of blocks to compute and active blocks, as Dynamo's router with a weight of 1",
    "dynamo": "Dynamo's KV router, in time only: tokens to compute in blocks, and distinct blocks of active prompts",
    "lmetric": "the lowest product of tokens to compute and (active requests + 1): LMetric (arXiv 2603.15202)",
    "vllm-dp": "vLLM's own balancer of data-parallel ranks, in time only: requests in flight, and published counts",
    "sglang-total-requests": "SGLang's controller with total_requests, in time only: the rank with the fewest requests",
    "sglang-total-tokens": "SGLang's controller with total_tokens, in time only: the rank with the fewest tokens",
    "sglang-cache-aware": "SGLang's gateway with cache_aware: the instance with the best match, or the idlest",
}
# an engine's own balancers of its data-parallel ranks, by the names that the engine has for them
BALANCERS: dict[str, dict[str, RouterName]] = {
    "vllm": {"internal": "vllm-dp"},
    "sglang": {
        "auto": "round-robin", "round_robin": "round-robin", "total_requests": "sglang-total-requests",
        "total_tokens": "sglang-total-tokens",
    },
    "dynamo": {"round_robin": "round-robin", "kv_router": "dynamo"},
}  # fmt: skip
OWN = {"vllm-dp": "vllm", "sglang-total-requests": "sglang", "sglang-total-tokens": "sglang"}  # router -> its engine
TIMED = ("dynamo", *OWN)  # routers that need a simulation in time
FULL_ATTENTION = ("kv-aware", "dynamo")  # routers that count the blocks of one group of full attention
MOST_WORKERS = 64  # of SGLang's gateway
UNPLANNED = (
    "overlap",
    "sglang-cache-aware",
    *TIMED,
)  # overlap sends all requests to one instance; the others are of one product each
PLANNED: tuple[RouterName, ...] = tuple(name for name in ROUTERS if name not in UNPLANNED)


@dataclass(frozen=True)
class GatewayOptions:
    """Options of SGLang's model gateway with the policy cache_aware, by its names and with its defaults.

    >>> gateway_options("cache_threshold=0.5").cache_threshold
    0.5
    """

    cache_threshold: float = 0.3  # share of a prompt above which the match decides
    balance_abs_threshold: int = 64  # requests in flight; more difference than this,
    balance_rel_threshold: float = 1.5  # and more than this many times as many, is uneven
    eviction_interval_secs: int = 60  # 0: never
    max_tree_size: int = 1 << 26  # characters of a worker
    characters_per_token: float = 4.0  # not the gateway's: it counts characters

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < 1e15 or (name == "characters_per_token" and value == 0):
                raise UsageError(f"{name} must be {'above' if name == 'characters_per_token' else 'at least'} 0.")

    @property
    def terms(self) -> dict[str, float]:
        """The terms of the kernel, whose sizes are tokens."""
        return vars(self) | {"max_tree_tokens": int(self.max_tree_size / self.characters_per_token)}


def gateway_options(text: str | None) -> GatewayOptions:
    """The options of a text, `cache_threshold=0.5,balance_abs_threshold=32`; UsageError if one is not valid."""
    return changed_by_text(GatewayOptions(), text, "SGLang's gateway") if text else GatewayOptions()


def check_gateway(router: str, options: str | None, instances: int) -> None:
    """Raise UsageError for options of a router that has none, and for more instances than SGLang's gateway can have."""
    if router == "sglang-cache-aware":
        gateway_options(options)
        if instances > MOST_WORKERS:
            raise UsageError(f"--router {router} supports at most {MOST_WORKERS} instances in all.")
    elif options:
        raise UsageError(f"--router-options are those of sglang-cache-aware; {router} has none. Leave them out.")


def check_router(name: str, *, in_time: bool = True) -> None:
    """Raise UsageError if the name is not a router, or is not one of a simulation without times."""
    if name not in ROUTERS:
        raise wrong_word(name, "a router", ROUTERS)
    if name in TIMED and not in_time:
        times = "--model and --gpu" if name in OWN else "--engine dynamo, or --model and --gpu"
        other = "round-robin" if name in OWN else "kv-aware"
        raise UsageError(f"--router {name} needs a simulation in time. Add {times}; or try {other}.")


def check_balancer(router: str, engine: str) -> None:
    """Raise UsageError if the router is another engine's own balancer.

    >>> check_balancer("vllm-dp", "sglang")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: --router vllm-dp is vllm's own balancer. Use --engine vllm.
    """
    if OWN.get(router, engine) != engine:
        raise UsageError(f"--router {router} is {OWN[router]}'s own balancer. Use --engine {OWN[router]}.")


def check_fleet(router: str, *, lockstep: bool = False) -> None:
    """Raise UsageError if the instances are the ranks of one server, which do not start and drain by themselves.

    >>> check_fleet("vllm-dp")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: --fleet does not support the ranks of one server. Leave out --router vllm-dp.
    """
    if lockstep or router in OWN:
        what = "--data-parallel-size" if lockstep else f"--router {router}"
        raise UsageError(f"--fleet does not support the ranks of one server. Leave out {what}.")


def in_lockstep(deployment: Deployment, *, has_experts: bool) -> bool:
    """Whether the data-parallel ranks of a deployment begin and end their steps together, and share their experts.

    >>> from .deployment import Deployment
    >>> in_lockstep(Deployment(data_parallel_size=2), has_experts=True)
    True
    """
    if deployment.engine == "dynamo":  # its mocked engine always has a barrier
        return deployment.data_parallel_size > 1
    together = deployment.enable_dp_attention if deployment.engine == "sglang" else has_experts
    return deployment.data_parallel_size > 1 and together


def ranks_of(
    deployment: Deployment, instances: int | None = None, router: RouterName | None = None
) -> tuple[int, RouterName]:
    """The instances that a simulation has of a deployment, and their router: its data-parallel ranks are instances.

    Args:
        deployment: What is simulated, with an engine.
        instances: Copies of the deployment; the default is one.
        router: Of these copies; the default is round-robin.

    Raises:
        UsageError: Both are more than one, or the balancer of the ranks is not simulated.

    >>> from .deployment import Deployment
    >>> ranks_of(Deployment(data_parallel_size=4)), ranks_of(Deployment(), 2, "kv-aware")
    ((4, 'vllm-dp'), (2, 'kv-aware'))
    """
    size = deployment.data_parallel_size
    if size == 1:
        return instances or 1, router or "round-robin"
    if instances is not None and instances > 1 and deployment.engine == "dynamo":
        raise UsageError(
            f"--instances and --data-parallel-size cannot both be above 1. For {instances} workers of {size} ranks "
            f"each, give --instances {instances * size} --scheduler dp_size={size}."
        )
    if instances is not None and instances > 1:
        raise UsageError(
            f"--instances and --data-parallel-size cannot both be above 1 yet. For one router over all ranks, give "
            f"--instances {instances * size} alone."
        )
    balancers = BALANCERS.get(deployment.engine)
    if balancers is None:
        raise UsageError(
            f"--data-parallel-size does not support engine {deployment.engine}. Use {' or '.join(BALANCERS)}."
        )
    name = deployment.balancer or next(iter(balancers))
    if name not in balancers:
        raise UsageError(f"the balancer {name} of {deployment.engine} is not simulated. Try {', '.join(balancers)}.")
    return size, router or balancers[name]
