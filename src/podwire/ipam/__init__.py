"""Address ranges, the order in which they are given out, and the store that remembers who has what."""
