"""Speed of Podwire beside the Go reference plugins and beside the bare kernel requests."""
