#!/bin/sh
# 100 MiB of random bytes through exec and cp, both ways: nothing is lost, added or mixed.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} name=transfer-$$ dir=$(mktemp -d)
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "transfer: $*" >&2; exit 1; }
run() { "$smolvm" machine exec --name "$name" "$@"; }
same() { cmp "$1" "$2" || fail "$3: not equal"; rm -f "$2"; }

head -c 104857600 /dev/urandom > random
"$smolvm" machine create --name "$name" --image "$image"
"$smolvm" machine start --name "$name"

echo "exec, in and out"
run -i -- sh -c 'cat > /root/by-exec' < random
run -- cat /root/by-exec > back
same random back "exec"
echo "through a command, both ways at once"
run -i -- cat < random > back
same random back "exec -i cat"
echo "cp, in and out"
"$smolvm" machine cp ./random "$name:/root/by-cp"
run -- cmp /root/by-exec /root/by-cp || fail "cp and exec differ"
"$smolvm" machine cp "$name:/root/by-cp" ./back
same random back "cp"
run -- rm /root/by-exec
echo "two streams at once"
run -- sh -c 'cat /root/by-cp & cat /root/by-cp >&2; wait' > out 2> err
same random out "stdout"
same random err "stderr"
echo "a reader that is slow"
run -- head -c 20971520 /root/by-cp | { sleep 2; cat > back; }
head -c 20971520 random | cmp - back || fail "slow reader"
echo ok
