#!/bin/bash
# $SMOLVM of a job: the real smolvm, after a copy of the machines' logs where a command may remove them
# (a script deletes its machines when it fails). inside.sh shows the copies of a job that failed.
case ${2-} in
start | stop | delete)
    at=$(date +%T.%N)
    for machine in "${SMOLVM_HOME-}"/machines/*; do
        for log in console supervisor; do
            # A name may be used again: the number tells machines apart.
            [ -s "$machine/$log.log" ] &&
                cp "$machine/$log.log" "/data/kept/${machine##*/}.$(stat -c %i "$machine").$log"
        done
    done 2> /dev/null
    echo "${at%???????} ${*@Q}" >> /data/kept/commands
    ;;
esac
exec /data/bin/smolvm "$@"
