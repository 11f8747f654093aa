"""`python -m taskrecipe` is the `recipe` command."""

from taskrecipe.cli import main

if __name__ == "__main__":
    main()
