"""The command line: one module a command, each with `add_parser(subparsers)` and `run(args) -> int`."""
