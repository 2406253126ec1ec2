"""The same numbers, faster: convolutions as products, traced and recorded functions, memory, lanes."""
