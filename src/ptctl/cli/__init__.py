"""The command line: one file a subcommand, imported when it is called; errors become exit codes in `main` alone."""
