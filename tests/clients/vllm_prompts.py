"""Run in vLLM's environment: the prompt that vLLM makes of each request, by its own request models and renderers.

A case is {"tokenizer": folder, "api": "chat" | "completions" | "responses" | "messages", "request": JSON body}, with
"time" (seconds since 1970) where the template prints the date, "content_format" in place of the detected one, and
"harmony" for gpt-oss. The answer is {"ids", "text"}, with "media" in order where there are any, or {"error"}. A model's
own processor is out of reach, so its placeholders are not expanded: "ids" are those of the text.
"""

import vllm_absent  # noqa: I001

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache
from types import SimpleNamespace

import transformers.utils.chat_template_utils as chat_template_utils
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages, DisabledThinkingEffortResolver
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.parser import harmony_utils
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.renderers.chat_utils import item_tracker
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.tokenizers import get_tokenizer

REQUESTS = {
    "chat": ChatCompletionRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": AnthropicMessagesRequest,
}
MODEL_LENGTH = 1 << 20
PLACEHOLDERS = {"image": "<image>", "audio": "<audio>", "video": "<video>"}  # of the stand-in for a model class


class Clock(datetime):
    """The time that templates see."""

    seconds = 0.0

    @classmethod
    def now(cls, tz=None):
        return datetime.fromtimestamp(cls.seconds, UTC)


class ToolParser:
    """Accepts every tool choice, as a server does that was started with a tool parser; it changes no prompt."""

    tool_parser_cls, reasoning_parser_cls, always_adjust_request = object, None, False

    def __init__(self, *_arguments, **_options):
        pass

    def set_prompt_token_ids(self, ids):
        pass

    def adjust_request(self, request):
        return request


class Tracker(item_tracker.AsyncMultiModalItemTracker):
    """Counts images, sounds and videos; does not fetch them."""

    media = []  # noqa: RUF012

    def add(self, modality, item):
        self.media.append(modality)
        return PLACEHOLDERS[modality.replace("_embeds", "")]

    async def resolve_items(self):
        return None, None


class Parser(item_tracker.AsyncMultiModalContentParser):
    """Remembers which medium a part holds and leaves its data alone."""

    def _parse(self, modality):
        self._add_placeholder(modality, self._tracker.add(modality, None))

    def parse_image(self, image_url, uuid=None):
        self._parse("image")

    def parse_image_embeds(self, image_embeds, uuid=None):
        self._parse("image")

    def parse_audio(self, audio_url, uuid=None):
        self._parse("audio")

    def parse_input_audio(self, input_audio, uuid=None):
        self._parse("audio")

    def parse_video(self, video_url, uuid=None):
        self._parse("video")


def without_models():
    """Put the stand-ins where vLLM looks for a clock, a model class and its processor."""
    from vllm.renderers.chat_utils import chat_message

    chat_template_utils.datetime = Clock
    harmony_utils.datetime = SimpleNamespace(datetime=Clock)
    Tracker.create_parser = lambda tracker, mm_processor_kwargs=None: Parser(tracker, mm_processor_kwargs)
    chat_message.AsyncMultiModalItemTracker = Tracker


@lru_cache(maxsize=1)  # a tokenizer takes up to half a gigabyte
def online_renderer(folder, content_format, harmony, exclude_tools):
    """vLLM's renderer with the tokenizer of a folder and a stand-in for the model's configuration."""
    hf_config = SimpleNamespace(model_type="gpt_oss" if harmony else "stand-in")
    model = SimpleNamespace(
        model=folder, tokenizer=folder, tokenizer_mode="hf", tokenizer_revision=None, revision=None, code_revision=None,
        trust_remote_code=False, hf_config=hf_config, hf_text_config=hf_config, hf_overrides=None,
        max_model_len=MODEL_LENGTH, encoder_config=None, is_encoder_decoder=False, enable_prompt_embeds=False,
        renderer_num_workers=1, supports_multimodal_inputs=False, is_multimodal_model=False, multimodal_config=None,
        skip_tokenizer_init=False, allowed_local_media_path="", allowed_media_domains=None,
        get_vocab_size=lambda: 1 << 31,
    )  # fmt: skip
    process = SimpleNamespace(_api_process_rank=0, _api_process_count=1)
    config = SimpleNamespace(model_config=model, observability_config=None, parallel_config=process)
    renderer = OnlineRenderer(
        model, HfRenderer(config, get_tokenizer(folder)), request_logger=None, chat_template=None,
        chat_template_content_format=content_format, trust_request_chat_template=True, enable_auto_tools=True,
        exclude_tools_when_tool_choice_none=exclude_tools,
    )  # fmt: skip
    renderer.parser = ToolParser
    return renderer


@lru_cache(maxsize=1)  # a tokenizer takes up to half a gigabyte
def merges_inline_system(renderer):
    return AnthropicServingMessages._should_merge_inline_system(renderer)


async def render(case):
    """The prompts of one request, as vLLM hands them to its engine."""
    settings = case.get("content_format", "auto"), case.get("harmony", False), case.get("exclude_tools", False)
    renderer = online_renderer(case["tokenizer"], *settings)
    request = REQUESTS[case["api"]].model_validate(case["request"])
    if case["api"] == "messages":
        effort = await DisabledThinkingEffortResolver(renderer).resolve_for(request)
        request = AnthropicServingMessages.to_chat_completion_request(
            request, merge_inline_system=merges_inline_system(renderer), disabled_thinking_effort=effort
        )
    if case["api"] == "completions":
        return await renderer.render_completion(request)
    if case["api"] == "responses":
        result = await renderer.render_responses(request)
        return [result.engine_input] if hasattr(result, "engine_input") else result
    result = await renderer.render_chat(request)
    return result[1] if isinstance(result, tuple) else result


async def answer(case):
    """The line that is printed of one case."""
    Clock.seconds, Tracker.media = case.get("time", 0.0), []
    try:
        prompts = await render(case)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    if not isinstance(prompts, list):
        return {"error": prompts.error.message[:400]}
    first = prompts[0]
    line = {"ids": list(first["prompt_token_ids"]), "text": first.get("prompt")}
    if len(prompts) > 1:
        line["prompts"] = [list(prompt["prompt_token_ids"]) for prompt in prompts]
    return line | ({"media": Tracker.media} if Tracker.media else {})


async def main(path):
    logging.disable(logging.CRITICAL)
    without_models()
    with open(path) as cases:
        for line in cases:
            print(json.dumps(await answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    vllm_absent.ABSENT  # noqa: B018
    asyncio.run(main(sys.argv[1]))
