"""Where work runs: in this process, in a child process, on Ray."""
