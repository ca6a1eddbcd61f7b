"""`python -m stillweb` is the command `stillweb`."""

from stillweb.cli import main

if __name__ == "__main__":
    main()
