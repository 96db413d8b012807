"""The papers' models, by the `config.json` published with them, for when they are not on this machine."""

from typing import Any


def _qwen2(layers: int, heads: int, kv_heads: int, hidden: int, inner: int, vocab: int, context: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
    }


_R1_1_5B = _qwen2(28, 12, 2, 1536, 8960, 151936, 131072)
_R1_32B = _qwen2(64, 40, 8, 5120, 27648, 152064, 131072)
_R1_70B = _qwen2(80, 64, 8, 8192, 28672, 128256, 131072) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_LLAMA_8B = _qwen2(32, 32, 8, 4096, 14336, 128256, 131072) | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_MISTRAL_7B = _qwen2(32, 32, 8, 4096, 14336, 32000, 32768) | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/QwQ-32B": _R1_32B | {"max_position_embeddings": 40960},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _R1_1_5B,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen2(28, 28, 4, 3584, 18944, 152064, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": _qwen2(48, 40, 8, 5120, 13824, 152064, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": _R1_32B,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": _R1_70B,
    "Skywork/Skywork-OR1-32B": _R1_32B,
    "Skywork/Skywork-OR1-32B-Preview": _R1_32B,
    "Zyphra/ZR1-1.5B": _R1_1_5B,
    "peiyi9979/math-shepherd-mistral-7b-prm": _MISTRAL_7B,
    "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": _LLAMA_8B,
}
"""Hub name to what decides about memory. Skywork's and Zyphra's models were trained from R1-Distill models and keep their shape,
the reward models are Mistral 7B and Llama 3.1 8B, whose tables stand here."""
