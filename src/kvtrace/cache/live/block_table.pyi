class BlockTable:
    digest_mask: int
