#!/bin/sh
# Starts user-mode Linux on this machine's files, which it can read and not write: all mounts are read-only in
# a mount namespace of its own, but for RESULTS and an empty /dev/shm. Run by `unshare --mount --pid --mount-proc`.
# Usage: boot.sh KERNEL-DIRECTORY RESULTS-DIRECTORY INIT
set -eu
kernel=$1 results=$2 init=$3
tree=$(cd "$(dirname "$init")/../.." && pwd)
mount --make-rprivate /
mount --bind "$results" "$results"
cut -d' ' -f2 /proc/self/mounts | while read -r place; do
	[ "$place" = "$results" ] || mount -o remount,bind,ro "$place" 2>/dev/null || true
done
mount -t tmpfs tmpfs /dev/shm
if touch "$kernel/writable" 2>/dev/null; then
	echo "boot.sh: $kernel is not read-only" >&2
	exit 1
fi
cd /
export TMPDIR=/dev/shm
exec "$kernel/usr/bin/linux.uml" mem=1536M rootfstype=hostfs rootflags=/ ro "init=$init" \
	uml_dir=/dev/shm con=null con0=null,fd:1 dummy.numdummies=0 bonding.max_bonds=0 \
	"podwire_kernel=$kernel" "podwire_results=$results" "podwire_tree=$tree" </dev/null
