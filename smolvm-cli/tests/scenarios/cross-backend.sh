#!/bin/sh
# One point, two ways of running vCPUs: what the software CPU saved goes on with KVM, and back, with
# the profiles v1 and v2.
set -eu
smolvm=${SMOLVM:-smolvm}; image=${IMAGE:-debian}
if ! "$smolvm" doctor 2>&1 | grep -q '^backend *kvm *yes'; then
  if [ "${SMOLVM_REQUIRE_KVM:-}" = 1 ]; then echo "no usable KVM here"; exit 1; fi
  echo "skipped: cross-backend: no usable KVM here, so there is no second backend"
  exit 77
fi
dir=$(mktemp -d); cd "$dir"
# Where the host has given up its own TSC, KVM stops a guest's while its vCPU does not run, and any guest's
# kernel may give it up, restored or not.
complaints='soft lockup|rcu.*stall|BUG:|Oops|general protection|unchecked MSR'
if grep -qw tsc /sys/devices/system/clocksource/clocksource0/available_clocksource; then
  complaints="$complaints|clocksource.*unstable"
fi
names=
trap 'for n in $names; do "$smolvm" machine stop --name $n --timeout 1s >/dev/null 2>&1 || :; "$smolvm" machine delete --name $n -f >/dev/null 2>&1 || :; done; cd /; rm -rf "$dir"' EXIT

cat > work.py <<'PY'
# Floating point, integers, threads and timers that go on for ever; each round checks itself and is logged.
import hashlib, math, threading, time
def digest(n):
    return hashlib.sha256(b"".join(math.sin(i / 7).hex().encode() for i in range(n))).hexdigest()
want, box = digest(500), [0]
def beat():
    while True:
        time.sleep(0.05)
        box[0] += 1
threading.Thread(target=beat, daemon=True).start()
last, n = time.monotonic(), 0
while True:
    now = time.monotonic()
    good = digest(500) == want and now >= last and now - last < 60
    last, n = now, n + 1
    with open("/run/log", "a") as log:
        log.write(f"{n} {box[0]} {'good' if good else 'BAD'}\n")
    time.sleep(0.02)
PY
inside() { "$smolvm" machine exec --name "$1" --timeout 300s -- sh -ec "$2"; }
# The process of before still runs, counts on, and found nothing wrong.
goes_on() {
  inside "$1" 'pid=$(cat /run/pid); kill -0 $pid; n=$(wc -l < /run/log); b=$(tail -n 1 /run/log | cut -d" " -f2)
    i=0; while [ $i -lt 240 ]; do
      m=$(wc -l < /run/log); c=$(tail -n 1 /run/log | cut -d" " -f2)
      if [ "$m" -gt $((n + 3)) ] && [ "$c" -gt "$b" ]; then break; fi
      i=$((i + 1)); sleep 0.5; done
    test $i -lt 240; if grep BAD /run/log; then exit 1; fi; kill -0 $pid
    if dmesg | grep -E "'"$complaints"'"; then exit 1; fi'
}

round() { # profile, backend that saves first, backend that goes on
  a=xa-$1-$2; b=xb-$1-$2; c=xc-$1-$2; names="$names $a $b $c"
  "$smolvm" machine create --name "$a" --image "$image" --backend "$2" --cpu "$1" --cpus 1
  "$smolvm" machine start --name "$a"
  "$smolvm" machine cp ./work.py "$a:/root/work.py"
  inside "$a" 'setsid python3 /root/work.py > /run/err 2>&1 < /dev/null & echo $! > /run/pid; until test -s /run/log; do sleep 0.2; done'
  goes_on "$a"
  "$smolvm" machine checkpoint --name "$a" --store ./store -o "./$a.checkpoint"
  "$smolvm" machine stop --name "$a"; "$smolvm" machine delete --name "$a" -f
  "$smolvm" machine create --name "$b" --from "./$a.checkpoint" --backend "$3"
  "$smolvm" machine start --name "$b"
  goes_on "$b"
  # And back.
  "$smolvm" machine checkpoint --name "$b" --store ./store -o "./$b.checkpoint"
  "$smolvm" machine stop --name "$b"; "$smolvm" machine delete --name "$b" -f
  "$smolvm" machine create --name "$c" --from "./$b.checkpoint" --backend "$2"
  "$smolvm" machine start --name "$c"
  goes_on "$c"
  "$smolvm" machine stop --name "$c"; "$smolvm" machine delete --name "$c" -f
  echo "$1: $2 -> $3 -> $2 goes on"
}
round v1 soft kvm
round v2 kvm soft
echo ok
