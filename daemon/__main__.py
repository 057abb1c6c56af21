"""`python -m patchswarm.daemon`: the `patchswarm` command where no script is on the path."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="patchswarm")
