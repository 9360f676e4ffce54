#!/bin/sh
# Boot a host, again after each reboot, until it powers off. Runs in mount and network namespaces
# of its own, inside the host's cgroup, so that nothing here outlives that cgroup.
#   boot.sh NAME ROOTFS LOOPBACK NSPAWN-OPTION...     (standard input: a tar of files to lay)
set -eu
umask 022
name=$1 rootfs=$2 loopback=$3
shift 3

[ "$loopback" = no ] || ip link set lo up

# systemd-nspawn wants a pure cgroup2 tree; the machine may have the old hierarchies.
umount -l /sys/fs/cgroup
mount -t cgroup2 "$name" /sys/fs/cgroup
mount -t tmpfs -o mode=755 "$name" /run

folder=/run/opsctl-host
mkdir "$folder"
mount -t tmpfs -o mode=755,size=8g "$name" "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=$rootfs,upperdir=$folder/upper,workdir=$folder/work" \
    "$name" "$folder/root"
# Inside the tree, so that no link of it leads out.
chroot "$folder/root" tar -x -C /
chroot "$folder/root" ldconfig # a library may be among the files
exec </dev/null

while :; do
    code=0
    # No machined to register with. CAP_BPF and bpf(): without them the host's systemd does not
    # enforce DevicePolicy= and IPAddressDeny=.
    systemd-nspawn --quiet --register=no --keep-unit --boot --console=pipe --link-journal=no \
        --resolv-conf=off --timezone=off --capability=CAP_BPF --system-call-filter=bpf \
        --machine="$name" --directory="$folder/root" "$@" || code=$?
    [ "$code" = 133 ] || exit "$code" # 133: the host asked for a reboot
done
