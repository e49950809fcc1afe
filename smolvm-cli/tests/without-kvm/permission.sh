#!/bin/sh
# A user who may not open /dev/kvm is told so, with the way out, and served by the software CPU until then.
set -eu
smolvm=${SMOLVM:-smolvm} dir=$(mktemp -d)
cd "$dir"
[ -e /dev/kvm ] || { echo "skipped: permission: there is no /dev/kvm"; exit 77; }
[ ! -w /dev/kvm ] || { echo "skipped: permission: this user may open /dev/kvm"; exit 77; }
unset SMOLVM_BACKEND
# A home of its own: which backend is best is remembered there.
outer=${SMOLVM_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/smolvm}
export SMOLVM_HOME="$dir/home"
trap '"$smolvm" machine delete --all -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT
fail() { echo "permission: $*" >&2; exit 1; }
mkdir -p "$SMOLVM_HOME"
ln -s "$outer/images" "$outer/kernels" "$SMOLVM_HOME"

echo "doctor names the way out"
"$smolvm" doctor > out
grep -q 'no permission to open /dev/kvm' out || fail "$(cat out)"
grep -q 'sudo usermod -aG kvm' out || fail "$(cat out)"

echo "KVM asked for by name"
"$smolvm" machine create --name named --backend kvm > out
"$smolvm" machine start --name named > out 2> err && fail "started: $(cat out)"
grep -q 'no permission to open /dev/kvm' err || fail "$(cat err)"
grep -q 'hint: .*sudo usermod -aG kvm' err || fail "no hint: $(cat err)"
"$smolvm" machine status --name named | grep -q '^state *created' || fail "$("$smolvm" machine status --name named)"

echo "whatever there is"
"$smolvm" machine start --create --name any > out 2> err
grep -q "Started 'any' (soft)" out || fail "$(cat out err)"
grep -q 'warning: .*no permission to open /dev/kvm' err || fail "no warning: $(cat err)"
grep -q 'hint: .*sudo usermod -aG kvm' err || fail "no hint: $(cat err)"
[ "$("$smolvm" machine exec --name any -- echo works)" = works ] || fail "it does not work"
# With the permission the next start shall find KVM: this verdict is not kept.
[ ! -e "$SMOLVM_HOME/cache/backend.json" ] || fail "kept: $(cat "$SMOLVM_HOME/cache/backend.json")"
echo ok
