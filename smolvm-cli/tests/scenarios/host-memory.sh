#!/bin/sh
# What a machine takes of the host's memory besides its guest's stays below 80 MiB, after a boot, after
# much code was run, and after a checkpoint.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=host-memory-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
limit_kib=81920 mem_mib=512

command -v pgrep > /dev/null || { echo "host-memory: pgrep is missing: apt-get install procps" >&2; exit 1; }
# The proportional share of every mapping of supervisor and VMM but the guest's memory, in KiB.
beyond() {
    cat "/proc/$supervisor/smaps" "/proc/$vmm/smaps" | awk -v guest=$((mem_mib << 10)) '
        $1 == "Size:" { size = $2 }
        $1 == "Pss:" { if (size >= guest) found++; else sum += $2 }
        END { if (found != 1) exit 1; print sum }'
}
check() {
    supervisor=$(pgrep -f "__supervisor .* $name\$")
    vmm=$(pgrep -P "$supervisor" -f __vmm)
    kib=$(beyond) || { echo "host-memory: no guest memory among the mappings" >&2; exit 1; }
    echo "$1: $kib KiB besides the guest's memory"
    [ "$kib" -lt "$limit_kib" ] || { grep -E '^[0-9a-f]+-|^Pss:' "/proc/$vmm/smaps" >&2; exit 1; }
}

"$smolvm" machine create --name "$name" --image "$image" --mem "${mem_mib}M"
"$smolvm" machine start --name "$name"
check booted
# Code of many kinds: most modules of Python's library, and programs that are all different.
"$smolvm" machine exec --name "$name" -- sh -ec '
    python3 -c "
import importlib, pkgutil
skip = {\"antigravity\", \"this\", \"idlelib\", \"turtle\", \"tkinter\", \"turtledemo\", \"test\", \"lib2to3\"}
done = 0
for name in sorted(m.name for m in pkgutil.iter_modules()):
    if name not in skip and not name.startswith(\"_\"):
        try:
            importlib.import_module(name)
            done += 1
        except ImportError:
            pass
assert done > 100, done"
    cd /tmp; git init -q r; cd r; echo a > a; git add a; git -c user.name=a -c user.email=a@b commit -qm a
    git fsck; sqlite3 b "create table t(a); insert into t values(1); select * from t"
    ssh-keygen -q -t ed25519 -N "" -f key; tar cf - /etc | gzip | sha256sum; find / -xdev | sort | md5sum' > work.log 2>&1 ||
    { cat work.log >&2; exit 1; }
check worked
"$smolvm" machine checkpoint --name "$name" --store ./store -o ./a.checkpoint
check saved
i=0
while [ $i -lt 4 ]; do
    i=$((i + 1))
    "$smolvm" machine exec --name "$name" -- sh -c 'head -c 16M /dev/urandom > /dev/shm/changed'
    "$smolvm" machine checkpoint --name "$name" --store ./store -o "./again-$i.checkpoint"
done
check 'saved again'
"$smolvm" machine delete --name "$name" -f
"$smolvm" machine create --name "$name" --from ./a.checkpoint
"$smolvm" machine start --name "$name"
check restored
echo ok
