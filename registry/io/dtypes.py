"""The names of dtypes, without torch: headers are checked before it is loaded."""

SAFETENSORS = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
}
"""How a safetensors header spells them."""

WEIGHT_DTYPES = ("bfloat16", "float16", "float32")
"""What a checkpoint's weights may be, and what a composition may be written in."""

NAMES = {spelling: name for name, spelling in SAFETENSORS.items()}
"""The way back."""
