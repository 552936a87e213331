"""The stage graph: what runs where, what is done already, and the commit of a finished run."""
