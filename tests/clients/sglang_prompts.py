"""Run in SGLang's environment: the prompt that SGLang makes of each request, by its own request models and servers.

Cases and answers are those of vllm_prompts.py; "reasoning_parser" names the server's parser of reasoning, which writes
the earlier thinking of Anthropic's requests back into their content.
"""

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache
from types import SimpleNamespace

from sglang_absent import stand_in

ABSENT = """
    sgl_kernel flashinfer cuda triton_kernels flash_attn xgrammar outlines outlines_core datasets kernels deep_gemm
    deep_ep tilelang torch_memory_saver modelscope mooncake cutlass quack torchao flash_mla tvm_ffi nixl lmcache pynvml
    watchfiles blobfile
"""  # imported by SGLang, not used here
UNUSED = (
    "sglang.srt.layers", "sglang.srt.distributed", "sglang.kernels", "sglang.srt.model_executor",
    "sglang.srt.managers.tokenizer_manager", "sglang.srt.sampling.custom_logit_processor",
)  # fmt: skip

stand_in(ABSENT.split(), UNUSED)

import transformers.utils.chat_template_utils as chat_template_utils  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: E402
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing  # noqa: E402
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest, ResponsesRequest  # noqa: E402
from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion  # noqa: E402
from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses  # noqa: E402
from sglang.srt.parser.template_manager import TemplateManager  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang.srt.utils.hf_transformers_utils import get_tokenizer  # noqa: E402

REQUESTS = {
    "chat": ChatCompletionRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": AnthropicMessagesRequest,
}


class Clock(datetime):
    """The time that templates see."""

    seconds = 0.0

    @classmethod
    def now(cls, tz=None):
        return datetime.fromtimestamp(cls.seconds, UTC)


chat_template_utils.datetime = Clock
settings = {"page_size": 1, "chunked_prefill_size": -1, "max_running_requests": 1}
fixed = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
runtime_context.publish(ServerArgs(model_path="dummy", **fixed, **settings), role="scheduler")


@lru_cache(maxsize=1)  # a tokenizer takes up to half a gigabyte
def servers(folder, reasoning_parser):
    """SGLang's servers of completions, chats (and responses), and Anthropic's messages, without an engine."""
    hf_config = SimpleNamespace(architectures=["StandIn"], model_type="stand-in")
    model = SimpleNamespace(hf_config=hf_config, is_multimodal=False, get_default_sampling_params=dict)
    manager = SimpleNamespace(
        tokenizer=get_tokenizer(folder), processor=None, model_config=model, server_args=None, model_path="stand-in",
        served_model_name="stand-in", config_value={"reasoning_parser": reasoning_parser}.get,
    )  # fmt: skip
    templates = TemplateManager()
    templates.load_chat_template(manager, None, "stand-in")
    chats = OpenAIServingResponses(manager, templates)
    chats._validate_media_content = lambda request: None  # a model of text would refuse media
    return OpenAIServingCompletion(manager, templates), chats, AnthropicServing(chats), manager.tokenizer


async def render(case):
    """The prompts of one request, as ids, and the media in order."""
    completions, chats, messages, tokenizer = servers(case["tokenizer"], case.get("reasoning_parser"))
    request = REQUESTS[case["api"]].model_validate(case["request"])
    if case["api"] == "completions":
        refusal = completions._validate_request(request)
        if refusal:
            raise ValueError(refusal)
        engine = completions._convert_to_internal_request(request)[0]
        texts = [engine.text] if isinstance(engine.text, str) else engine.text
        ids = engine.input_ids if engine.text is None else tokenizer(texts)["input_ids"]
        return [ids] if isinstance(ids[0], int) else ids, []
    if case["api"] == "responses":
        _, prompts, _, _ = await chats._make_request(request, None, tokenizer)
        return prompts, []
    if case["api"] == "messages":
        request = messages._convert_to_chat_completion_request(request)
    refusal = chats._validate_request(request)
    if refusal:
        raise ValueError(refusal)
    engine = chats._convert_to_internal_request(request)[0]
    media = [kind for kind in ("image", "video", "audio") for _ in getattr(engine, f"{kind}_data") or ()]
    return [engine.input_ids], media


async def answer(case):
    """The line that is printed of one case."""
    Clock.seconds = case.get("time", 0.0)
    try:
        prompts, media = await render(case)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    tokenizer = servers(case["tokenizer"], case.get("reasoning_parser"))[-1]
    line = {"ids": list(prompts[0]), "text": tokenizer.decode(prompts[0])}
    if len(prompts) > 1:
        line["prompts"] = [list(ids) for ids in prompts]
    return line | ({"media": media} if media else {})


async def main(path):
    logging.disable(logging.CRITICAL)
    with open(path) as cases:
        for line in cases:
            print(json.dumps(await answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
