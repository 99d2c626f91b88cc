"""Where pods come from: files, later URLs and the API; and the mux that merges them into one stream."""
