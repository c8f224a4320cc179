"""Names of dtypes, without torch: headers are checked before it is loaded."""

SAFETENSORS = {  # dtype → its spelling in a safetensors header
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3",
}

NAMES = {spelling: name for name, spelling in SAFETENSORS.items()}  # spelling in a safetensors header → dtype
WEIGHT_DTYPES = ("bfloat16", "float16", "float32")  # those of a checkpoint's weights, and of a composition's
AUTO = "auto"  # in place of a dtype: that of the weights where the device computes it fast, else float32
COMPUTE_DTYPES = (AUTO, *WEIGHT_DTYPES)  # dtypes that a pass may be asked to compute in
