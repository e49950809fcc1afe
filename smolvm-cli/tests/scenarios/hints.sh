#!/bin/sh
# Hints are followed to the letter: each command that a refusal names is run, and works.
set -eu
smolvm=${SMOLVM:-smolvm} image=${IMAGE:-debian} dir=$(mktemp -d) name=hint-$$ other=hint-$$-b
cd "$dir"
cleanup() {
    for machine in "$name" "$other" "$name-new"; do "$smolvm" machine delete --name "$machine" -f > /dev/null 2>&1 || :; done
    cd /
    rm -rf "$dir"
}
trap cleanup EXIT
fail() { echo "hints: $*" >&2; exit 1; }
command -v pgrep > /dev/null || fail "pgrep is missing: apt-get install procps"

# follow WHAT COMMAND...: COMMAND is refused, its hint begins with WHAT, and that command works.
follow() {
    wanted=$1
    shift
    if "$smolvm" machine "$@" > out 2> err; then fail "not refused: $*"; fi
    hint=$(sed -n 's/^hint: .*: //p' err | sed 's/, or .*//; s/NEW/'"$name-new"'/; s/NAME/'"$name"'/; s/CHECKPOINT/.\/x.checkpoint/')
    case $hint in
    "$wanted"*) ;;
    *) fail "$*: wanted a hint with '$wanted': $(cat err)" ;;
    esac
    echo "$hint"
    set -- $hint
    if [ "$1" = smolvm ]; then
        shift
        "$smolvm" "$@" > out 2> err || fail "$hint: $(cat err)"
    else
        "$@" > out 2> err || fail "$hint: $(cat err)"
    fi
}

follow "smolvm machine ls" status --name "$name"
follow "smolvm image ls" create --name "$name" --image no-such-image
follow "smolvm kernel ls" create --name "$name" --kernel no-such-kernel
"$smolvm" machine create --name "$name" --image "$image" --mem 256M > /dev/null
"$smolvm" machine create --name "$other" --image "$image" --mem 256M > /dev/null
follow "smolvm machine rename $other" rename "$name" "$other"
"$smolvm" machine status --name "$name-new" > /dev/null || fail "it is not renamed"
follow "smolvm machine delete --name $name-new" create --name "$name-new" --image "$image"
if "$smolvm" machine rename "$name" "$name" 2> err; then fail "renamed to itself"; fi
if grep -q delete err; then fail "it is told to delete itself: $(cat err)"; fi

follow "smolvm machine start --name $name" exec --name "$name" -- true
follow "smolvm machine checkpoint --name $name" undo --name "$name"
follow "smolvm machine checkpoint-log --store" undo --name "$name" --to 00000000
follow "smolvm machine checkpoint-log --store" undo --name "$name" --to '~9'
"$smolvm" machine checkpoint --name "$name" --store ./store -o ./x.checkpoint > /dev/null
follow "smolvm machine checkpoint-log ./x.checkpoint" create --name "$other" --from ./x.checkpoint --at '~9'

# A VMM that a signal has stopped.
vmm=$(pgrep -P "$(pgrep -f "__supervisor .* $name\$")" -f __vmm)
kill -STOP "$vmm"
follow "kill -CONT $vmm" checkpoint --name "$name"
"$smolvm" machine checkpoint --name "$name" > /dev/null || fail "it is not saved after it went on"
kill -STOP "$vmm"
follow "smolvm machine undo --name $name --discard" undo --name "$name"
"$smolvm" machine exec --name "$name" -- true

# Where a checkpoint cannot be made.
follow "mkdir -p $dir/deep/er" checkpoint --name "$name" -o ./deep/er/y.checkpoint
"$smolvm" machine checkpoint --name "$name" -o ./deep/er/y.checkpoint > /dev/null || fail "not in the directory that was made"
for place in ./x.checkpoint ./x.checkpoint/in.checkpoint ./store/packs/in.checkpoint ./y; do
    if "$smolvm" machine checkpoint --name "$name" -o "$place" 2> err; then fail "saved at $place"; fi
    other=$(sed -n 's/^hint: .*: -o //p' err)
    "$smolvm" machine checkpoint --name "$name" -o "$other" > /dev/null 2> err || fail "$place, hint $other: $(cat err)"
    rm -r "$other"
done
other=hint-$$-b
follow "smolvm machine checkpoint --name $name --store" checkpoint-prune --store ./new-store
id=$("$smolvm" machine checkpoint --name "$name" -o ./z.checkpoint --json | sed 's/.*"id": *"\([0-9a-f]*\)".*/\1/')
follow "smolvm machine checkpoint-delete $dir/z.checkpoint -f" checkpoint-delete "$id"
[ ! -e z.checkpoint ] || fail "the checkpoint is not deleted"
follow "smolvm machine branch --from $name --name" branch-release --name "$name"
"$smolvm" machine delete --name "$name-new" -f > /dev/null
"$smolvm" machine pause --name "$name" > /dev/null
follow "smolvm machine resume --name $name" exec --name "$name" -- true
"$smolvm" machine pause --name "$name" > /dev/null
follow "smolvm machine resume --name $name" stop --name "$name"

"$smolvm" machine stop --name "$name" > /dev/null
follow "smolvm machine start --name $name" checkpoint --name "$name"
"$smolvm" machine exec --name "$name" -- touch /root/changed
"$smolvm" machine stop --name "$name" > /dev/null
follow "smolvm machine undo --name $name --discard" undo --name "$name"
follow "smolvm machine delete --name $name -f" delete --name "$name"
echo ok
