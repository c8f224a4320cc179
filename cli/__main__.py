"""Entry point of `python -m cli`, which is the same as `reg`."""

from cli.main import main

main(prog_name="reg")
