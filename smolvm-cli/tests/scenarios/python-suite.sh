#!/bin/sh
# Python's own tests of what depends on the processor, in a guest: floating point, big integers,
# decimals, strings, hashes, compression, threads.
set -eu
smolvm=${SMOLVM:-smolvm} name=python-suite-$$ dir=$(mktemp -d)
tests=${TESTS:-test_float test_math test_struct test_json test_re test_zlib test_hashlib test_int test_unicodedata test_threading test_sqlite3 test_decimal}
if ! "$smolvm" image ls | grep -q '^debian-dev '; then
    echo "skipped: python-suite: no image debian-dev here (scripts/test --long makes it)"
    exit 77
fi
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
"$smolvm" machine create --name "$name" --image debian-dev
"$smolvm" machine start --name "$name"
for test in $tests; do
    code=0
    "$smolvm" machine exec --name "$name" -- python3 -m test "$test" > log 2>&1 || code=$?
    # The runner of the tests also succeeds where it has run none.
    if [ $code != 0 ] || ! grep -q '^Tests result: SUCCESS$' log || grep -q 'no tests ran' log; then
        tail -n 40 log >&2
        echo "python-suite: $test ended with $code" >&2
        exit 1
    fi
    echo "$test: $(grep '^Total duration' log)"
done
"$smolvm" machine exec --name "$name" -- dmesg > dmesg
if grep -E 'soft lockup|rcu.*stall|unstable|BUG:|Oops|general protection|unchecked MSR|segfault|traps:' dmesg; then exit 1; fi
echo ok
