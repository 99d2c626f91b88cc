"""What servers of Kubernetes' HTTP APIs have in common: Status objects, certificates, streams of pods."""
