"""Tokenizers of 260 tokens, each with a chat template of our own that reads a request in another way.

A token is a byte of the text, or one of four control tokens. `<s>` stands before a text that has special tokens.
"""

import json

SPECIAL = ("<s>", "</s>", "<|turn|>", "<|image|>")

TEMPLATES = {
    # texts, tools as JSON in the system turn, a switch of thinking, no developer
    "texts": """{{ bos_token }}{% if tools %}<|turn|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}{% for message in messages %}<|turn|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}{{ call.id }}{% endfor %}</s>
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- endif %}{{ reasoning_effort or '' }}""",
    # parts, with placeholders of images and all keys of a part; knows the developer
    "parts": """{% for message in messages %}{{ '<|turn|>' + message.role }}
{% if message['role'] == 'developer' %}!{% endif %}{% if message['content'] is string %}{{ message['content'] }}
{%- else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image|>{% else %}{{ part | tojson }}
{%- endif %}{% endfor %}{% endif %}
{% endfor %}{{ tools | tojson if tools else '' }}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}""",
    # documents, the date, the names of users, trimmed contents
    "documents": """{{ strftime_now('%d %b %Y') }}{% for document in documents or [] %}[{{ document.title }}]
{{- document.text }}{% endfor %}{% for message in messages %}
<|turn|>{{ message.role }} {{ message.name }} {{ message.tool_call_id }}
{{ message.content | trim }}{% endfor %}{{ tools | tojson(indent=2) if tools }}
{% if add_generation_prompt %}<|turn|>assistant{% endif %}""",
    # no tools; system messages only at the start; raises on roles that it does not know
    "strict": """{% for message in messages %}{% if message.role == 'system' and not loop.first %}
{{- raise_exception('the system message must be first') }}{% endif %}
{%- if message.role not in ('system', 'user', 'assistant') %}{{ raise_exception('unknown role') }}{% endif %}
{{- '<|turn|>' + message.role + ':' + message.content }}{% endfor %}
{%- if add_generation_prompt %}<|turn|>assistant:{% endif %}""",
    # one template for requests with tools, another for those without
    "named": [
        {"name": "default", "template": "{% for m in messages %}<|turn|>{{ m.role }}={{ m.content }}{% endfor %}"},
        {"name": "tool_use", "template": "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{% endfor %}"},
    ],
}


def write(name, folder):
    """Write the tokenizer of a name to a folder, and return its path as text."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    settings = {
        "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False, "chat_template": TEMPLATES[name],
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(path)


def _tokenizer():
    words = [*_byte_letters(), *SPECIAL]
    added = [
        {"id": 256 + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, token in enumerate(SPECIAL)
    ]  # fmt: skip
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": bytes_, "decoder": bytes_,
        "post_processor": {
            "type": "TemplateProcessing", "single": [start, text], "pair": [start, text, other],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {word: i for i, word in enumerate(words)}, "merges": [],
        },
    }  # fmt: skip


def _byte_letters():
    """The letter of each byte in byte-level tokenizers: itself if it prints, else one of those from U+0100 on."""
    prints = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


def decoded(ids):
    """The text of token ids, with control tokens by name."""
    names = dict(enumerate(SPECIAL, 256))
    text = b"".join(bytes([token]) if token < 256 else names[token].encode() for token in ids)
    return text.decode(errors="backslashreplace")
