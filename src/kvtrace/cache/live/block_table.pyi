class Known:
    digest_mask: int
