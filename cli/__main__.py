"""`python -m cli`: the same as `reg`."""

from cli.main import main

main(prog_name="reg")
