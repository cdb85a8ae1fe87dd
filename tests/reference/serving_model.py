"""A model's matrices, its prefill FLOP and a provider's bill, by plain loops over matrices, tokens and uses."""


def matrices(config):
    """(rows, columns, number of experts with it, number of those that a token uses) of each matrix."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    yield config["vocab_size"], hidden, 1, 1
    if not config.get("tie_word_embeddings"):
        yield config["vocab_size"], hidden, 1, 1
    experts = config.get("n_routed_experts") or config.get("num_local_experts") or config.get("num_experts") or 0
    for layer in range(config["num_hidden_layers"]):
        for rows, columns in attention(config, hidden, heads):
            yield rows, columns, 1, 1
        is_mixed = (
            experts > 0
            and layer >= config.get("first_k_dense_replace", 0)
            and layer % config.get("moe_layer_freq", 1) == 0
            and (layer + 1) % config.get("decoder_sparse_step", 1) == 0
            and layer not in config.get("mlp_only_layers", [])
        )
        if not is_mixed:
            yield from [(hidden, config["intermediate_size"], 1, 1)] * 3
            continue
        width = config.get("moe_intermediate_size", config["intermediate_size"])
        yield hidden, experts, 1, 1  # the router
        yield from [(hidden, width, experts, config["num_experts_per_tok"])] * 3
        yield from [(hidden, width, config.get("n_shared_experts", 0), config.get("n_shared_experts", 0))] * 3
        yield from [(hidden, config.get("shared_expert_intermediate_size", 0), 1, 1)] * 3


def attention(config, hidden, heads):
    """(rows, columns) of each matrix of one layer's attention."""
    if "kv_lora_rank" not in config:
        head_dim = config.get("head_dim", hidden // heads)
        kv_heads = config.get("num_key_value_heads", heads)
        return [(hidden, heads * head_dim), *[(hidden, kv_heads * head_dim)] * 2, (heads * head_dim, hidden)]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    latent, queries = config["kv_lora_rank"], config.get("q_lora_rank")
    through = [(hidden, queries), (queries, heads * (nope + rope))] if queries else [(hidden, heads * (nope + rope))]
    return [
        *through,
        (hidden, latent),
        (hidden, rope),
        (latent, heads * nope),
        (latent, heads * value),
        (heads * value, hidden),
    ]


def prefill_flops(shape, new, cached):
    """FLOP of a prompt's new tokens: each uses the layers' active parameters and attends to the tokens before it.

    Attention to itself counts half, as n**2 - p**2 implies for the diagonal.
    """
    flops = 0.0
    layers = shape.active_parameters - shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    for before in range(cached, cached + new):
        flops += 2 * layers
        flops += 2 * shape.layers * shape.heads * (shape.head_dim + shape.value_dim) * (before + 0.5)
    return flops


def bill(gaps_s, tokens, lives_s, read, write):
    """Cost of each use of one prefix, in input tokens, with the cache followed over time."""
    clock, expires, costs = 0.0, None, []
    for gap, count in zip(gaps_s, tokens, strict=True):
        if gap == float("inf"):
            clock, expires = 0.0, None  # another prefix
        else:
            clock += gap
        is_read = expires is not None and clock <= expires
        costs.append(count * (read if is_read else write))
        expires = clock + lives_s
    return costs
