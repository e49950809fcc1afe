#!/bin/bash
# PID 1 of the emulated host: prepares it as a Debian host would be, runs the jobs as an ordinary
# user in group kvm, reports each exit code on the virtio port and powers off.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /data/settings # token, job_timeout; or shell, first, rows, columns, term; variables

prepare() {
    mkdir -p /dev/pts /dev/shm
    mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mount -t tmpfs -o mode=755 tmpfs /run
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    ln -sfn /proc/self/fd /dev/fd
    ln -sfn /proc/self/fd/0 /dev/stdin
    ln -sfn /proc/self/fd/1 /dev/stdout
    ln -sfn /proc/self/fd/2 /dev/stderr
    echo emulated-host > /proc/sys/kernel/hostname
    echo '127.0.0.1 localhost emulated-host' > /etc/hosts
    getent group kvm > /dev/null || echo 'kvm:x:990:smol' >> /etc/group
    echo 'smol:x:1000:' >> /etc/group
    echo 'smol:x:1000:1000::/home/smol:/bin/bash' >> /etc/passwd
    chgrp kvm /dev/kvm && chmod 0660 /dev/kvm
    mkdir -p /home/smol /data/home /data/tmp
    chown -R smol:smol /home/smol /data/home
    chmod 0700 /data/home
    chmod 1777 /data/tmp
    mount --bind /data/tmp /tmp
}

environment=(
    HOME=/home/smol USER=smol LOGNAME=smol LANG=C.UTF-8
    PATH=/data/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
    SMOLVM=/data/bin/keep-logs/smolvm SMOLVM_HOME=/data/home SMOLVM_REQUIRE_KVM=1 SMOLVM_BOOTED_POINTS=off RUST_BACKTRACE=1
    $variables
)

run_job() { # path of the job
    local id=${1##*/} account=smol groups=--init-groups
    case $id in
    *.root) account=root ;;
    *.outsider) groups=--clear-groups ;;
    esac
    printf '\n%s start %s\n' "$token" "$id" >&4
    rm -rf /data/kept
    mkdir -m 1777 /data/kept
    (
        cd /tmp && exec timeout -k 10 "$job_timeout" \
            setpriv --reuid "$account" --regid "$account" "$groups" --inh-caps=-all \
            env -i "${environment[@]}" /bin/bash "$1"
    ) < /dev/null >&4 2>&4
    local code=$?
    # A program that crashed or was killed for want of memory is named here only.
    [ "$code" = 0 ] || [ "$code" = 77 ] || {
        dmesg | tail -n 15 | sed 's/^/emulated host: /'
        for kept in /data/kept/*; do
            [ ! -e "$kept" ] || tail -n 300 "$kept" | sed "s|^|${kept##*/}: |"
        done
    } >&4
    printf '\n%s done %s %s\n' "$token" "$id" "$code" >&4
    # Nothing of one job may reach the next.
    pkill -KILL -u smol && printf '\n%s left %s\n' "$token" "$id" >&4
}

# What VMMs do while a guest says nothing for long although its agent is not there yet; two looks at each guest. (One that
# was restored says nothing either: it is looked at in vain.)
look_at_silent_guests() {
    local log looks vmm thread
    for log in /data/home/machines/*/console.log /tmp/*/home/machines/*/console.log; do
        [ -e "$log" ] && [ -d /data/kept ] || continue
        grep -q 'smolvm-agent: ready' "$log" && continue
        [ $(($(date +%s) - $(stat -c %Y "$log"))) -gt 20 ] || continue
        looks=/data/kept/silent.$(stat -c %i "$log")
        [ "$(grep -cs '^look ' "$looks")" != 2 ] || continue
        mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
        {
            date '+look at %T'
            for vmm in $(pgrep -f -- __vmm); do
                for thread in "/proc/$vmm/task"/*; do
                    echo "$thread $(cut -d ' ' -f 2,3,14,15 "$thread/stat") $(cat "$thread/syscall")"
                    cat "$thread/stack"
                done
            done
            grep . /sys/kernel/debug/kvm/*-*/* | grep -v ':0$'
            look_at_exits
        } >> "$looks" 2>&1
    done
}

# What the vCPUs do at the moment, as KVM traces it.
look_at_exits() {
    local tracing=/sys/kernel/debug/tracing
    echo 1 > "$tracing/events/kvm/enable"
    sleep 0.2
    echo 0 > "$tracing/events/kvm/enable"
    tail -n 80 "$tracing/trace"
    echo > "$tracing/trace"
}

power_off() {
    sync
    echo o > /proc/sysrq-trigger
    sleep 30
}

prepare
if [ "$shell" = yes ]; then
    stty -F /dev/hvc0 rows "$rows" cols "$columns"
    # The job that comes first, if any, runs in the same session as the shell.
    setsid -c setpriv --reuid smol --regid smol --init-groups --inh-caps=-all \
        env -i "${environment[@]}" TERM="$term" FIRST="$first" /bin/bash -c \
        'cd; if [ -n "$FIRST" ]; then bash "/data/jobs/$FIRST"; fi; unset FIRST; exec bash -i' \
        < /dev/hvc0 > /dev/hvc0 2>&1
    power_off
fi

# A port can be opened once, so one process copies what all jobs write into a pipe.
port=
for name in /sys/class/virtio-ports/*; do
    [ "$(cat "$name/name" 2> /dev/null)" = vmtest ] && port=/dev/${name##*/}
done
mkfifo /run/output
cat /run/output > "$port" &
copier=$!
exec 4> /run/output
# Signs of life: without them qemu.rs takes this kernel as hung.
while sleep 5; do
    printf '\n%s alive\n' "$token" >&4
    look_at_silent_guests 4>&-
done &
signs=$!
for job in /data/jobs/*; do run_job "$job"; done
kill "$signs"
printf '\n%s end\n' "$token" >&4
exec 4>&-
wait "$copier"
power_off
