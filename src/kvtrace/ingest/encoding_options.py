"""How a log is read and its prompts become blocks: the options that `anonymize`, `lint`, `record` and `watch` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from .._base.options import option

RenderAs = Literal["vllm", "sglang", "raw"]  # the rows of text.engine_forms.FORMS
OnMismatch = Literal["stop", "warn"]


def _field_map(maps: Any) -> dict[str, str]:
    from .logs.fieldmap import parse_map

    return parse_map(maps)


@dataclass(frozen=True, kw_only=True)
class EncodingOptions:
    """How the rows of a log become lengths and digests of blocks."""

    log_format: str = option(
        "auto",
        "Log format: {rows}; auto detects it from the first rows.",
        metavar="NAME",
        group="Input",
    )
    field_map: dict[str, str] | None = option(
        None,
        "Path of a field in the log, such as session=meta.conversation. Repeatable.",
        name="map", metavar="FIELD=PATH", many=True, parse=_field_map, group="Input",
    )  # fmt: skip
    time_unit: str = option(
        "auto",
        "Unit of the log's times: s, ms, us, ns or iso; auto detects it from the first rows.",
        metavar="UNIT",
        group="Input",
    )
    tokenizer: str | None = option(  # None = the prompts are token ids, or the log holds hashes
        "auto",
        "Built-in name, o200k_base or cl100k_base, path of a tokenizer.json or of its folder, or Hugging Face id. auto "
        "takes that of the log's model if it needs no download, else deepseek-r1.",
        metavar="NAME",
        group="Text",
    )
    chat_template: str | Path | None = option(
        None,
        "Jinja file to use instead of the tokenizer's own chat template.",
        metavar="FILE",
        group="Text",
    )
    use_template: bool = option(
        True,
        "Do not apply a chat template: the prompts are already the text that the engine receives.",
        name="no-chat-template",
        group="Text",
    )
    generation_prompt: str | None = option(
        None,
        r"Replace the template's generation prompt; \n is a newline.",
        metavar="TEXT",
        group="Text",
    )
    render_as: RenderAs = option(
        "vllm",
        "Engine whose form of a request the chat template gets; raw: as logged.",
        choices=get_args(RenderAs),
        group="Text",
    )
    request_templates: bool = option(
        False,
        "Render a request that brings its own chat template with it, in a sandbox.",
        group="Text",
    )
    block_size: int | None = option(
        None,
        "Tokens per block.  [default: 512, or the block size of the log's hashes]",
        metavar="TOKENS",
        group="Blocks",
    )
    outputs: bool = option(
        False,
        "Also write the ids of the output's blocks.",
        group="Blocks",
    )
    tenant_field: str | None = option(
        None,
        "Path of the tenant in a row; k-sharing then counts tenants.",
        metavar="PATH",
        group="Privacy",
    )
    isolate_tenants: bool = option(
        False,
        "Share no block between tenants, as in engines with a separate cache for each tenant.",
        group="Privacy",
    )
    arrivals: str | None = option(
        None,
        "Generate arrival times for a log without times, such as rate=2/s,think=30s,seed=1.",
        metavar="MODEL",
        group="Input",
    )
    request_sample: float | None = option(
        None,
        "The log is a sample by request of this share, such as 1%: every hit rate is then marked as too low.",
        metavar="SHARE",
        group="Input",
    )
    allow_truncated: bool = option(
        False,
        "Accept prompts that the logger cut short.",
        group="Input",
    )
    on_mismatch: OnMismatch = option(
        "stop",
        "If the log's own counts of prompt tokens differ from ours by more than 2 %, though the tokenizer is known to "
        "be the model's: stop, or warn.",
        choices=get_args(OnMismatch),
        group="Text",
    )
    max_errors: int = 0  # bad rows to skip, -1 = any number; the commands have --on-error and --max-errors

    @property
    def fields(self) -> dict[str, str]:
        """The paths of fields, with that of the tenant."""
        return (self.field_map or {}) | ({} if self.tenant_field is None else {"tenant": self.tenant_field})

    @property
    def maps_domain(self) -> bool:
        """Whether the domain of a request is the field of `--map domain=PATH` alone."""
        return "domain" in (self.field_map or {})

    @property
    def by_tenant(self) -> bool:
        """Whether k-sharing counts the tenants of --tenant-field, and no other accounts."""
        return self.tenant_field is not None and not self.isolate_tenants
