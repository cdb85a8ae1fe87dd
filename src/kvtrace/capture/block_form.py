"""The form of blocks: requests of one window, or of one gauge, must have the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockForm:
    """The block size, and what becomes of the last, partial block of a prompt."""

    block_size: int  # tokens
    tail: str  # kept or dropped

    def misfit(self, first: BlockForm) -> str | None:
        """Why blocks of this form cannot be beside those of the first source; None if they can.

        >>> BlockForm(16, "kept").misfit(BlockForm(512, "kept"))
        'its blocks have 16 tokens, and those of the first source have 512. Use one block size, or another recorder.'
        """
        if self.block_size != first.block_size:
            return (
                f"its blocks have {self.block_size} tokens, and those of the first source have {first.block_size}. "
                "Use one block size, or another recorder."
            )
        if self.tail != first.tail:
            with_tail, without = ("it", "the first source") if self.tail == "kept" else ("the first source", "it")
            return (
                f"{with_tail} has the last, partial block of a prompt, and {without} has not. "
                "Use another recorder, or a profile that drops partial blocks."
            )
        return None
