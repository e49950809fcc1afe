#!/bin/busybox sh
# PID 1 of the emulated host until its root file system is there.
#   vmtest.mode=fill   unpack the tar archive on the second disk onto the first, power off
#   vmtest.mode=run    mount root and data, go on with /data/inside.sh
# A command that fails ends this script; the kernel then panics and QEMU exits.
set -eu
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module.ko"; done < /modules/order
while [ ! -b /dev/vdb ]; do sleep 0.02; done

case $(cat /proc/cmdline) in
*vmtest.mode=fill*)
    mount -t ext4 /dev/vda /root
    tar -xf /dev/vdb -C /root
    mkdir -p /root/data
    umount /root
    echo "vmtest: filled"
    poweroff -f
    ;;
esac

mount -t ext4 -o noinit_itable /dev/vda /root
mount -t ext4 -o noinit_itable /dev/vdb /root/data
ifconfig lo up
for folder in proc sys dev; do mount --move "/$folder" "/root/$folder"; done
exec switch_root /root /bin/bash /data/inside.sh
