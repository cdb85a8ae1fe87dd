"""The names that the section `rendering` of a published sidecar may state: engines, and fields of requests.

The fields can change the tokens of a prompt. A log may have others; they are counted under none of these names.
"""

ENGINES = ("vllm", "sglang", "raw")  # whose rendering of a request; raw: the text as the log has it
RENDERED_FIELDS = frozenset({
    "add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs", "continue_final_message",
    "documents", "functions", "instructions", "media", "mm_processor_kwargs", "previous_response_id",
    "prompt_template", "reasoning_effort", "response_format", "suffix", "system", "template_fields", "thinking",
    "tool_choice", "tools",
})  # fmt: skip
