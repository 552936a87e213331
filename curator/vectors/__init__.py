"""The index of vectors: which vectors are near each other, and near those of a query."""
