"""`python -m taskrecipe.core` is the `recipe` command."""

from taskrecipe.core.cli import main

if __name__ == "__main__":
    main()
