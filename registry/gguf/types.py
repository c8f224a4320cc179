"""Types of GGUF files."""

EXACT = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
"""dtype of weights in safetensors → the type of file that holds them exactly."""

BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5}
"""Types that llama.cpp's converter writes → bits of a weight."""

FEW_BITS = {"q6_K": 6.6, "q5_K_M": 5.7, "q4_K_M": 4.9, "q4_0": 4.6, "iq4_XS": 4.3, "q3_K_M": 4.0, "q2_K": 3.4}
"""Types that `llama-quantize` makes of those, → bits of a weight, about: some matrices get more."""

TYPES = (*BITS, *FEW_BITS)
"""Every type, that of the most bits first."""
