"""`python -m ptctl`, so that `torchrun -m ptctl train` works."""

from ptctl.cli.main import main

if __name__ == "__main__":
    main()
