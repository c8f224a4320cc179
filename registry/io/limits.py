"""Size limits of untrusted input, checked before it is parsed. `docs/formats.md` lists them all.

They are far above the sizes of genuine files, and low enough that no file makes a command use more than 500 MB of
memory beyond the model's own tensors.
"""

JSON_BYTES = 16 * 2**20  # config.json, indexes, adapter_config.json, composition.json, receipts
JSON_VALUES = 2**20  # values in one JSON document: they bound its memory, which its bytes do not
JSON_KEYS = 2**19  # keys of all objects in one JSON document, and so the largest vocabulary
JSON_DEPTH = 100  # objects and lists within one another
JSON_DIGITS = 40  # digits of a whole number in JSON; tokenizers write 10^30 for "no limit"

TOKENIZER_BYTES = 48 * 2**20  # each file of a tokenizer; the largest known has 34 MB
TOKENIZER_VALUES = 3 * 2**20  # values in a tokenizer.json; the largest known has 1.9 million
SMALL_BYTES = 64 * 2**20  # config.json, the tokenizer's files and generation_config.json together

HEADER_BYTES = 8 * 2**20  # the header of a safetensors file: some 60,000 tensors
HEADER_VALUES = 2**20  # values in the header of a safetensors file
SUMMARY_BYTES = 128 * 2**20  # a summary of a version: 40 MB for 400 billion weights in 16 bits

TEXT_BYTES = 64 * 2**20  # a `.txt` file, which is one document
ROW_BYTES = 32 * 2**20  # a row of `.jsonl`, expanded, or of `.parquet`
EXPANSION = 100  # largest ratio of a `.jsonl.gz` file's expanded size to its own; natural language reaches 10
EXPANSION_FREE = 2**20  # bytes that any `.jsonl.gz` may expand to
FOOTER_BYTES = 16 * 2**20  # bytes of each text, and items of each list, in the footer of a parquet file

YAML_BYTES = 64 * 2**10  # a recipe file
YAML_VALUES = 4096  # values in a recipe file
YAML_DEPTH = 8  # nesting of mappings and lists in a recipe file

SIGNER_BYTES = 2**20  # a key, a file of allowed signers, an SSH signature; a bundle is JSON
