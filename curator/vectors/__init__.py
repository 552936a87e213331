"""An index of vectors that finds near pairs, and the nearest vectors of a query."""
