"""Commands that are killed, or meet a full disk, at every change of a file: what they leave, and what repeating does.

`faults.c` counts the changes where program, SQLite and libraries hand them to the C library, and strikes at a chosen
one. `python -m tests.crash kill|random|full|mount` does it, and prints one line of JSON with what it found.
"""
