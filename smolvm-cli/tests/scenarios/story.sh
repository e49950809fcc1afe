#!/bin/sh
# The README's story, word by word, in a terminal of 80 columns: each command is typed as it stands there, and says what stands there
# but for numbers.
set -eu
smolvm=${SMOLVM:-smolvm} dir=$(mktemp -d)
here=$(cd "$(dirname "$0")" && pwd)
readme=$here/README.md
[ -r "$readme" ] || readme=$here/../../../README.md
outer=${SMOLVM_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/smolvm}
smolvm=$(command -v "$smolvm"); smolvm=$(cd "$(dirname "$smolvm")" && pwd)/$(basename "$smolvm")
cd "$dir"
export SMOLVM_HOME="$dir/home"
trap '"$smolvm" machine delete --all -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "story: $*" >&2; exit 1; }
command -v script > /dev/null || fail "this test needs script (package bsdutils)"
[ -r "$readme" ] || fail "no README beside $here"
mkdir -m 700 "$SMOLVM_HOME" bin work
ln -s "$outer/images" "$outer/kernels" "$SMOLVM_HOME"
ln -s "$smolvm" bin/smolvm
PATH=$dir/bin:$PATH
# Runs `typed` in a terminal of 80 columns; what it shows is in `shown`, its exit code in `code`.
terminal() {
    # A bar that is drawn and removed again leaves what stands behind its last erasure of the line.
    script -qec "stty rows 24 cols 80 -onlcr; cd work; sh ../typed; echo \$? > ../code" /dev/null < /dev/null > raw
    sed -e 's/\r$//' -e 's/.*\x1b\[2K//' -e 's/.*\r//' -e 's/\x1b\[[0-9;?]*[A-Za-z]//g' raw > shown
}
# What differs from run to run, and what is said where this user may not use KVM. Sizes of columns follow the numbers in them.
mask() {
    sed -E -e 's/[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z/TIME/g' -e 's/\b[0-9a-f]{12}\b/ID/g' -e 's/\((soft|kvm)\)/(BACKEND)/' \
        -e 's/[0-9]+(\.[0-9]+)? (B|KiB|MiB|GiB)\b/SIZE/g' -e 's/[0-9]+(\.[0-9]+)? (ms|s|min)\b/SPAN/g' -e 's/ +/ /g' \
        -e '/^warning: slower than it could be: kvm/d' -e '/^hint: join the group kvm/d' \
        -e 's/^[0-9]+$/NUMBER/' -e 's/[0-9]+ (entry|entries)/SOME entries/' -e 's/ $//'
}

echo "the story"
# Its blocks of what was typed and printed, up to the end of its section.
awk '/^## /{ story = ($0 == "## The undo story") } !story { next }
    /^```/ { block = ($0 == "```text"); next } block { print }' "$readme" > story
[ "$(grep -c '^\$ ' story)" -ge 20 ] || fail "there is no story in the README"
count=0
told() {
    [ -s typed ] || return 0
    case $(cat typed) in
    "cat work.sh") cp expected work/work.sh ;;
    esac
    terminal
    # A command whose message is expected on its own may fail, but smolvm may not.
    code=$(cat code)
    if [ "$code" = 125 ] || [ "$code" = 2 ]; then fail "$(cat typed): exit $code: $(cat shown)"; fi
    mask < expected > want
    mask < shown > got
    cmp -s want got || { diff want got; fail "$(cat typed): not what the README says"; }
    count=$((count + 1))
}
: > typed
: > expected
while IFS= read -r line; do
    case $line in
    '$ '*) told; printf '%s\n' "${line#??}" > typed; : > expected ;;
    *) printf '%s\n' "$line" >> expected ;;
    esac
done < story
told
[ "$count" -ge 20 ] || fail "only $count commands were typed"
echo ok
