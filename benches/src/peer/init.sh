#!/bench/busybox sh
# PID 1 of the peer's guest (`rdinit=`): does what smolvm's agent does before it serves, and serves
# commands on the second serial line instead of vsock. It runs twice: in the initramfs, and then with
# the argument `rooted` in the root file system.
if [ "$1" = rooted ]; then
    exec < /dev/ttyS1 > /dev/ttyS1 2>&1
    stty raw -echo 115200
    printf 'bench-ready\n'
    # As a script: with a terminal as its input it would print prompts.
    exec sh /dev/ttyS1
fi
set -e
box=/bench/busybox
$box mkdir -p /newroot
$box mount -t devtmpfs -o mode=0755 dev /dev
while read -r module; do $box insmod "/modules/$module"; done < /modules/order
while [ ! -b /dev/vda ]; do $box sleep 0.01; done
$box mount -t ext4 /dev/vda /newroot
$box mount --move /dev /newroot/dev
$box mount -t proc proc /newroot/proc
$box mount -t sysfs sysfs /newroot/sys
$box mkdir -p /newroot/dev/pts /newroot/dev/shm
$box mount -t devpts -o gid=5,mode=0620,ptmxmode=0666 devpts /newroot/dev/pts
$box mount -t tmpfs -o mode=1777 tmpfs /newroot/dev/shm
$box mount -t tmpfs -o mode=0755 tmpfs /newroot/run
$box mount -t cgroup2 cgroup2 /newroot/sys/fs/cgroup
$box ifconfig lo up
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root USER=root LOGNAME=root SHELL=/bin/bash
exec $box switch_root /newroot /bin/sh -c "$($box cat "$0")" sh rooted
