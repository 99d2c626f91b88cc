#!/bin/sh
# The guest's first program: makes it a machine, runs RESULTS/command, leaves log and exit status there, powers
# off. The kernel passes what it does not know of its command line as environment: podwire_kernel,
# podwire_results and podwire_tree.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for directory in /dev/shm /tmp /run /var/lib /mnt; do
	mount -t tmpfs tmpfs $directory
done
mount -t hostfs -o "$podwire_results" hostfs /mnt
stage() { echo "$1" >>/mnt/stages; } # read by machine.py
stage "the first program"
if [ ! -d "$podwire_tree" ]; then # it lies below one of these
	mkdir -p "$podwire_tree"
	mount -t hostfs -o "$podwire_tree" hostfs "$podwire_tree"
fi
# Modules come from the unpacked package; busybox looks for them in /lib/modules only.
mount -t proc proc "$podwire_kernel/proc"
echo "$podwire_kernel/modprobe" >/proc/sys/kernel/modprobe
stage "the module ipv6"
"$podwire_kernel/modprobe" ipv6
ip link set lo up
echo 4 >/proc/sys/kernel/printk # the console is for the boot
stage command
sh /mnt/command >/mnt/log 2>&1
echo $? >/mnt/status.new
mv /mnt/status.new /mnt/status
stage "power off"
busybox poweroff -f
