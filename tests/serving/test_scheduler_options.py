"""Options of schedulers as people write them."""

import pytest

from kvtrace._base.errors import UsageError
from kvtrace.serving.schedulers import BatchLimits, scheduler_of
from kvtrace.serving.schedulers.base import with_options
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.schedulers.vllm import VllmScheduler


def test_each_type_of_option_is_read():
    text = "max_num_seqs=1,024, watermark=1%".replace("1,024", "1024") + ", async_scheduling=OFF, policy=priority"
    expected = VllmScheduler(max_num_seqs=1024, watermark=0.01, async_scheduling=False, policy="priority")
    assert with_options(VllmScheduler(), text) == expected


def test_options_of_sglang_have_numbers_above_one_and_a_page_size():
    text = "page_size=64,schedule_conservativeness=1.3,chunked_prefill_size=-1,enable_mixed_chunk=on"
    expected = SglangScheduler(
        page_size=64, schedule_conservativeness=1.3, chunked_prefill_size=-1, enable_mixed_chunk=True
    )
    assert with_options(SglangScheduler(), text) == expected


def test_limits_keep_the_other_options():
    scheduler = VllmScheduler(watermark=0.1).limited(BatchLimits(100, 3))
    assert scheduler == VllmScheduler(max_num_batched_tokens=100, max_num_seqs=3, watermark=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seqs=4", "'seqs=4' is not an option of vllm's scheduler"), ("watermark", "is not an option"),
        ("async_scheduling=maybe", "async_scheduling is on or off"), ("watermark=2", "below 1"),
        ("watermark=200%", "is not a share"),
        ("max_num_seqs=many", "many"), ("policy=lifo", "Try fcfs or priority"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_sentence(text, message):
    with pytest.raises(UsageError, match=message):
        with_options(VllmScheduler(), text)


def test_a_scheduler_without_options_says_so():
    with pytest.raises(UsageError, match="has no options"):
        with_options(scheduler_of("reference"), "watermark=1%")
