"""`python -m onejob` is `onejob`."""

from onejob.cli import main

if __name__ == "__main__":
    main()
