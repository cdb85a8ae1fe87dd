"""Who computes a prompt: examples by hand, and what is refused. vLLM's schedulers behind the rules: test_apart.py."""

import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.apart import serve_apart
from kvtrace.serving.deciders import ConditionalDisagg
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import BatchLimits, DynamoCost, StepCost, open_loop
from kvtrace.serving.workers import Workers
from kvtrace.trace.building import toy


def served(*prompts, **rules):
    """Requests of one moment on one worker of each kind, which computes one prompt at a time."""
    one = Workers(StepCost(token_s=1e-3), Setting(1000, engine="vllm"), VllmScheduler(max_num_seqs=1))
    return serve_apart(toy(*prompts, block_size=16, gap_ms=1.0), one, one, **rules)


def test_prompts_stay_while_the_queue_is_full():
    # the first one is computed at once, the second and the third wait; the queue has two
    run = served("0", "1", "2", "3", "4", max_prefill_queue_size=2)
    assert run.instance.tolist() == [0, 0, 0, -1, -1]
    assert served("0", "1", max_prefill_queue_size=0).instance.tolist() == [-1, -1]
    assert served("0", "1", "2").instance.tolist() == [0, 0, 0]


def test_a_prompt_stays_if_its_prefill_worker_has_much_to_compute():
    # 16 tokens wait after the first, 32 after the second; the line is at 20 of 8,192
    line = f"policy=prefill_load,prefill_busy_threshold={20 / 8192}"
    assert served("0", "1", "2", "3", router_conditional_disagg_config=line).instance.tolist() == [0, 0, -1, -1]
    gate = f"{line},decode_busy_threshold=0.001"  # a block of 1,000: one prompt
    assert served("0", "1", "2", "3", router_conditional_disagg_config=gate).instance.tolist() == [0, 0, -1, 0]


def test_a_prompt_stays_if_little_of_it_is_new():
    # the second request has 16 new tokens of 64, which is less than the threshold and a quarter of the prompt
    by_length = "eff_isl_threshold=17,eff_isl_ratio_threshold=0.3"
    prompts = ("0 1 2", "0 1 2 3"), ("0 1 2", "0 1 2 3 4 5")
    one = Workers(StepCost(token_s=1e-4), Setting(1000, engine="vllm"))
    for pair, last in zip(prompts, (-1, 0), strict=True):
        trace = toy(*pair, block_size=16, gap_ms=1e4)
        run = serve_apart(trace, one, one, router_conditional_disagg_config=by_length)
        assert run.instance.tolist() == [0, last]


@pytest.mark.parametrize(
    ("text", "message"),
    [("policy=always", "a policy of --router-conditional-disagg-config"),
     ("policy=prefill_load", "policy=prefill_load needs prefill_busy_threshold"),
     ("eff_isl_ratio_threshold=1.5", "must be from 0 to 1"), ("isl=5", "not an option of --router-conditional"),
     ("decode_busy_threshold=nan", "decode_busy_threshold")],
)  # fmt: skip
def test_bad_options_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        ConditionalDisagg.of(text)


def test_what_is_not_modelled_is_refused():
    both = {"router_conditional_disagg_config": "eff_isl_threshold=5", "max_prefill_queue_size": 2}
    with pytest.raises(UsageError, match="another router's"):
        Disaggregation(1, 1, **both)
    with pytest.raises(UsageError, match="must be at least 0"):
        Disaggregation(1, 1, max_prefill_queue_size=-1)
    queue = Disaggregation(1, 1, max_prefill_queue_size=2)
    with pytest.raises(UsageError, match="Leave out --max-prefill-queue-size"):
        open_loop(toy("0"), DynamoCost(), setting=Setting(9, engine="dynamo"), disaggregation=queue)
    with pytest.raises(UsageError, match="compute no prompts. Leave out --max-prefill-queue-size"):
        setting, limits = Setting(9000, engine="sglang"), BatchLimits(64, 4)
        open_loop(toy("0"), StepCost(1e-3), setting=setting, limits=limits, disaggregation=queue)
    with pytest.raises(UsageError, match="sglang-cache-aware"):
        aware = Disaggregation(1, 1, router_conditional_disagg_config="eff_isl_threshold=5")
        open_loop(
            toy("0"), StepCost(1e-3), setting=Setting(9, engine="vllm"), disaggregation=aware,
            router="sglang-cache-aware",
        )  # fmt: skip
