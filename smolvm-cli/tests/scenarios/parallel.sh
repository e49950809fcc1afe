#!/bin/sh
# Ten machines created, started, used, stopped and deleted at once, while others look; before that, twenty
# made at once without a name.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} me=$$ dir=$(mktemp -d)
cd "$dir"
fail() { echo "parallel: $*" >&2; exit 1; }
cleanup() {
    : > enough
    for n in 0 1 2 3 4 5 6 7 8 9; do
        "$smolvm" machine delete --name "many-$me-$n" -f > /dev/null 2>&1 || :
    done
    forget
    wait
    cd /; rm -rf "$dir"
}
# What was made without a name, by the label that it was given.
unnamed() {
    "$smolvm" machine ls --json | grep "\"unnamed\":\"$me\"" |
        sed 's/.*"name":"\([^"]*\)".*/\1/'
}
forget() {
    for name in $(unnamed); do
        "$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :
    done
}
trap cleanup EXIT

makers=
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    "$smolvm" machine create --image "$image" --mem 256M --label "unnamed=$me" > "made-$n" 2>&1 &
    makers="$makers $!"
done
for pid in $makers; do wait "$pid" || fail "a machine without a name: $(cat made-*)"; done
[ "$(unnamed | sort -u | wc -l)" = 20 ] || fail "without a name: $(unnamed | sort | tr '\n' ' ')"
forget
[ -z "$(unnamed)" ] || fail "still there: $(unnamed)"

look() {
    while [ ! -e enough ]; do
        "$smolvm" machine ls > looked 2>> looks-failed || echo "ls failed" >> looks-failed
        "$smolvm" machine ls --json > looked 2>> looks-failed || echo "ls --json failed" >> looks-failed
        for n in 0 5; do
            # A machine that is not made yet, or deleted already, is no failure.
            "$smolvm" machine status --name "many-$me-$n" > looked 2> status ||
                grep -q 'there is no machine' status || cat status >> looks-failed
        done
        sleep 0.2
    done
}
life() {
    name=many-$me-$1
    "$smolvm" machine create --name "$name" --image "$image" --mem 256M --cpus 1
    "$smolvm" machine start --name "$name"
    [ "$("$smolvm" machine exec --name "$name" -- sh -c "echo $1 > /root/n; hostname")" = "$name" ]
    [ "$("$smolvm" machine exec --name "$name" -- cat /root/n)" = "$1" ]
    # A guest that has to share two processors with nine others takes its time.
    "$smolvm" machine stop --name "$name" --timeout 5m
    "$smolvm" machine delete --name "$name" -f
    echo "done" > "done-$1"
}

: > looks-failed
look &
looker=$!
lives=
for n in 0 1 2 3 4 5 6 7 8 9; do
    (set -e; life "$n") > "life-$n" 2>&1 &
    lives="$lives $!"
done
for pid in $lives; do wait "$pid" || :; done
: > enough
wait "$looker" || :
for n in 0 1 2 3 4 5 6 7 8 9; do
    [ -e "done-$n" ] || fail "machine $n: $(cat "life-$n")"
    grep -i 'lock\|error\|warning' "life-$n" && fail "machine $n complained"
done
[ ! -s looks-failed ] || fail "looking: $(sort looks-failed | uniq -c)"
"$smolvm" machine ls | grep "many-$me-" && fail "something is left"
echo ok
