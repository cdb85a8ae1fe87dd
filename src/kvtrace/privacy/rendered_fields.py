"""The names that the section `rendering` of a published sidecar may state: engines, and fields of requests.

The fields can change the tokens of a prompt. A log may have others; they are counted under none of these names.
"""

ENGINES = {  # whose rendering of a request -> how prompts became tokens, on a card
    "vllm": "as vLLM renders them", "sglang": "as SGLang renders them", "raw": "as the log has them",
}  # fmt: skip
RENDERED_FIELDS = frozenset({
    "add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs", "context_management",
    "continue_final_message", "documents", "image_grid", "image_grid_thw", "mcp_servers", "media",
    "mm_processor_kwargs", "output_config", "reasoning", "reasoning_effort", "response_format", "suffix", "text",
    "thinking", "tool_choice", "tools", "truncate_prompt_tokens",
})  # fmt: skip
