"""`python -m marslm`, which is how `accelerate launch -m` and `torchrun -m` start a command."""

from marslm.cli.app import main

main()
