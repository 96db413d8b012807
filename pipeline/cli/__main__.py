"""`python -m pipeline.cli`: the command without its console script, for `accelerate launch -m pipeline.cli train ...`."""

from pipeline.cli.main import main

if __name__ == "__main__":
    main()
