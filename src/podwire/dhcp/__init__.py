"""DHCPv4 leases of containers: packets, the client's states, the store, and the keeper that renews them."""
