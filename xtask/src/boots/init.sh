#!/bin/busybox sh
# PID 1 of a guest that boots on two CPUs. Lines `boots: KEY = VALUE` are compared; keys are unique. `boots: message TEXT` is
# a kernel message of level err or worse. A command that fails ends this script, and with it the guest, before `boots: end`.
set -eu -o pipefail
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# No kernel message goes between what is printed here.
dmesg -n 1
while read -r module; do insmod "/modules/$module.ko"; done < /modules/order

say() { echo "boots: $1 = $2"; }
# What a command prints; unlike in an argument, its failure counts.
run() { value=$(eval "$2"); say "$1" "$value"; }
sum() { sha256sum | cut -d ' ' -f 1; }

# The CPU as the kernel sees it.
for field in 'vendor_id' 'cpu family' 'model' 'stepping' 'fpu_exception' 'wp' 'clflush size' 'address sizes'; do
    run "cpu $field" "sed -n 's/^$field[[:space:]]*: //p' /proc/cpuinfo"
done
for flag in $(sed -n 's/^flags[[:space:]]*: //p' /proc/cpuinfo); do say "flag $flag" yes; done
run 'kernel' 'uname -r -m'

# Generated data, through programs that compute with integers only.
seq 1 150000 > /data
for program in crc32 md5sum sha1sum sha256sum sha512sum sha3sum; do run "$program" "$program < /data | cut -d ' ' -f 1"; done
run 'sort' 'sort -r /data | sum'
run 'gzip' 'gzip -9 < /data | sum'
run 'gunzip' 'gzip < /data | gunzip | sum'
run 'bzip2' 'bzip2 < /data | sum'
run 'bunzip2' 'bzip2 < /data | bunzip2 | sum'
run 'base64' 'base64 < /data | base64 -d | sum'
run 'tar' 'cd / && tar -cf - data | tar -xOf - | sum'
run 'bc' "echo 'scale = 60; 4 * a(1); e(1); sqrt(2); 2 ^ 400 % 1000003' | bc -l | tr '\n' ' '"

# awk knows only floating-point numbers: as integers, and to the last digit.
cat > /integers.awk << 'EOF'
BEGIN { for (x = i = 1; i < 60000; i++) { x = (x * 16807) % 2147483647; s += x % 7 }; print x, s }
EOF
cat > /floats.awk << 'EOF'
BEGIN { for (x = 1e-9; x < 1e9; x = x * 1.02 + 1e-10) printf "%.17g %.17g %.17g %d\n", x, x / 3 - x * x, x % 0.7, x * 1000 }
EOF
run 'awk integers' 'awk -f /integers.awk'
run 'awk floats' 'awk -f /floats.awk | sum'

# Processes, pipes and signals.
i=0; text=x
while [ $i -lt 60 ]; do text=$(echo "$text" | md5sum | cut -c 1-32); i=$((i + 1)); done
say 'pipes' "$text"
for signal in SEGV KILL TERM; do
    code=0; sh -c "kill -$signal \$\$" > /dev/null 2>&1 || code=$?
    say "signal $signal" "$code"
done

# A program that is compiled for the profile; it names its own keys.
guest_work | while IFS= read -r line; do echo "boots: $line"; done

# The disk, with a file on it from outside; written, and read again after its cache has gone.
while [ ! -b /dev/vda ]; do sleep 0.02; done
mkdir /disk
mount -t ext4 /dev/vda /disk
run 'disk given' 'sum < /disk/given'
mkdir /disk/many
for i in $(seq 1 100); do echo "$i $text" > "/disk/many/$i"; done
cp /data /disk/copy
dd if=/data of=/disk/sparse bs=4096 seek=1000 2> /dev/null
umount /disk
mount -t ext4 /dev/vda /disk
run 'disk many' 'cd /disk/many && sha256sum * | sum'
run 'disk copy' 'sum < /disk/copy'
run 'disk sparse' 'sum < /disk/sparse'
umount /disk

# Memory that fills and goes again.
mkdir /memory
mount -t tmpfs -o size=128m tmpfs /memory
dd if=/dev/zero bs=1M count=48 2> /dev/null | tr '\0' 'a' > /memory/file
run 'memory' 'sum < /memory/file'
umount /memory

dmesg -r | sed -n 's/^<[0-3]>/boots: message /p'
echo 'boots: end'
poweroff -f
