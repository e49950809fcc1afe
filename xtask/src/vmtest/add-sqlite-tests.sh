#!/bin/sh
# Hook of mmdebstrap for the image `debian-dev`; $1 is its root. Debian's package of Python's tests
# leaves test_sqlite3 out: it comes from upstream's archive in the source package of the release.
set -eu
# The image has no apt: the host's works on its lists.
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
list=$1/etc/apt/sources.list.d/source.list
sed -n '/ bookworm main$/s/^deb /deb-src /p' "$1/etc/apt/sources.list" > "$list"
apt-get -qq update
(cd "$1/tmp" && apt-get -qq source --download-only --tar-only python3.11)
tar -xf "$1"/tmp/python3.11_*.orig.tar.* -C "$1/usr/lib/python3.11" --strip-components=2 --no-same-owner \
    --wildcards 'Python-*/Lib/test/test_sqlite3'
test -e "$1/usr/lib/python3.11/test/test_sqlite3/__init__.py"
rm "$1"/tmp/python3.11_* "$list"
apt-get -qq update
