"""Models built from a config with random weights: nothing is downloaded."""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

# tiny runs in seconds on two CPU cores; small and large are for GPUs (0.37B and 1.36B parameters).
LLAMA_SIZES = {
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=512),
    "small": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, vocab_size=32000),
    "large": dict(hidden_size=2048, num_hidden_layers=24, num_attention_heads=16, vocab_size=32000),
}
MOE_SIZES = {
    "tiny": dict(hidden_size=64, moe_intermediate_size=48, num_hidden_layers=2, num_experts=8, vocab_size=512),
    "small": dict(hidden_size=1024, moe_intermediate_size=512, num_hidden_layers=12, num_experts=16, vocab_size=32000),
}


def llama(size: str = "tiny") -> LlamaForCausalLM:
    options = LLAMA_SIZES[size]
    return LlamaForCausalLM(LlamaConfig(**options, intermediate_size=options["hidden_size"] * 11 // 4, use_cache=False))


def qwen3_moe(size: str = "tiny", experts: str | None = None) -> Qwen3MoeForCausalLM:
    """`experts` picks the implementation: None is the library's default, "eager" the loop over experts."""
    config = Qwen3MoeConfig(
        **MOE_SIZES[size],
        intermediate_size=MOE_SIZES[size]["hidden_size"] * 2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=MOE_SIZES[size]["hidden_size"] // 4,
        num_experts_per_tok=2,
        use_cache=False,
    )
    if experts is not None:
        config._experts_implementation = experts
    return Qwen3MoeForCausalLM(config)
