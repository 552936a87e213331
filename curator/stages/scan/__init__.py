"""Lists sources and reads their headers, without decoding frames."""
