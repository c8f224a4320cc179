"""How large anything may be that somebody else wrote: checked before it is parsed. `docs/formats.md` tells them all.

They are far above what genuine files have, and low enough that no file makes a command take more than 500 MB beyond the
model's own tensors.
"""

JSON_BYTES = 16 * 2**20
"""config.json, indexes, adapter_config.json, composition.json, receipts."""

JSON_VALUES = 2**20
"""Values in one JSON document: a bound on the memory that it takes, which its bytes are not."""

JSON_KEYS = 2**19
"""Keys of all its objects together; so many tokens a vocabulary may have."""

JSON_DEPTH = 100
"""Objects and lists within one another."""

JSON_DIGITS = 40
"""Digits of a whole number in JSON. Tokenizers write 10^30 for "no limit"."""

TOKENIZER_BYTES = 48 * 2**20
"""Each file of a tokenizer. The largest known has 34 MB."""

SMALL_BYTES = 64 * 2**20
"""config.json, the tokenizer's files and generation_config.json together."""

TOKENIZER_VALUES = 3 * 2**20
"""Values in a tokenizer.json. The largest known has 1.9 million."""

HEADER_BYTES = 8 * 2**20
"""The header of a safetensors file: some 60,000 tensors."""

HEADER_VALUES = 2**20
"""Values in the header of a safetensors file."""

SUMMARY_BYTES = 128 * 2**20
"""A summary of a version. Of 400 billion weights in 16 bits it has 40 MB."""

TEXT_BYTES = 64 * 2**20
"""A `.txt` file, which is one document."""

ROW_BYTES = 32 * 2**20
"""A row of `.jsonl`, expanded, or of `.parquet`."""

EXPANSION = 100
"""How many times its own size a `.jsonl.gz` may expand to. Text of natural language comes to 10 at most."""

EXPANSION_FREE = 2**20
"""Bytes that a `.jsonl.gz` may expand to whatever its own size."""

FOOTER_BYTES = 16 * 2**20
"""The texts, and the items of each list, that the footer of a parquet file may hold."""

YAML_BYTES = 64 * 2**10
"""A recipe file."""

YAML_VALUES = 4096
"""Values in a recipe file."""

YAML_DEPTH = 8
"""Mappings and lists within one another in a recipe file."""
