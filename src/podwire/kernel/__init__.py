"""Linux and nothing else: rtnetlink, namespaces, sysctl, nftables and conntrack, by our own codec."""
