#!/bin/sh
# A compiler, OpenSSL, SQLite and Python in a guest compute what the host's own programs compute.
set -eu
smolvm=${SMOLVM:-smolvm} name=dev-tools-$$ dir=$(mktemp -d)
if ! "$smolvm" image ls | grep -q '^debian-dev '; then
    echo "skipped: dev-tools: no image debian-dev here (scripts/test --long makes it)"
    exit 77
fi
for tool in cc openssl sqlite3 python3; do
    command -v $tool > /dev/null || { echo "skipped: dev-tools: the host has no $tool to compare with"; exit 77; }
done
cd "$dir"
trap '"$smolvm" machine delete --name "$name" -f > /dev/null 2>&1 || :; cd /; rm -rf "$dir"' EXIT

mkdir work
cat > work/numbers.c <<'C'
#include <math.h>
#include <stdint.h>
#include <stdio.h>

/* Integers, both widths of floating point, x87 and a little of libm that is rounded correctly. */
int main(void) {
    uint64_t x = 88172645463325252u, sum = 0;
    double d = 1.0;
    float f = 1.0f;
    long double l = 1.0L;
    for (int i = 1; i < 200000; i++) {
        x ^= x << 13; x ^= x >> 7; x ^= x << 17;
        sum += x % (uint64_t)i + (x >> (i & 63)) * 3;
        d = sqrt(d + (double)(x >> 40)) / 1.5;
        f = f / 3.0f + (float)(x >> 50);
        l = l / 7.0L + (long double)(x >> 11);
        if (i % 20000 == 0)
            printf("%d %016llx %a %a %La\n", i, (unsigned long long)sum, d, f, l);
    }
    return 0;
}
C
cat > work/Makefile <<'M'
numbers: numbers.c
	cc -O2 -ffp-contract=off -fno-tree-vectorize -o $@ $< -lm
M
cat > work/base.sql <<'Q'
create table t(a integer primary key, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
  insert into t select i, printf('%05d-%s', i * 7919 % 20000, hex(i)), i / 3.0 from n;
create index tb on t(b);
select count(*), sum(a), min(b), max(b) from t;
select substr(b, 1, 2) as p, count(*), printf('%.9f', avg(c)) from t group by p order by p;
select a, b from t where b between '00100' and '00120' order by b;
update t set b = upper(b) where a % 3 = 0; delete from t where a % 5 = 0;
select count(*), printf('%.6f', total(c)) from t; pragma integrity_check;
Q
cat > work/base.py <<'P'
import decimal, hashlib, json, sqlite3, struct, zlib
base = sqlite3.connect("py.db")
base.execute("create table t(i integer, f real, s text, b blob)")
rows = [(i * i, i / 7, str(i)[::-1], struct.pack("<d", i / 3)) for i in range(5000)]
with base:
    base.executemany("insert into t values(?, ?, ?, ?)", rows)
base.create_function("twice", 1, lambda v: 2 * v)
try:
    with base:
        base.execute("delete from t")
        raise RuntimeError
except RuntimeError:
    pass
got = base.execute("select * from t order by rowid").fetchall()
assert got == rows
print(base.execute("select count(*), sum(twice(i)), max(s) from t").fetchone())
print(hashlib.sha512(json.dumps([r[:3] for r in got]).encode()).hexdigest(), zlib.crc32(b"".join(r[3] for r in got)))
decimal.getcontext().prec = 500
print(decimal.Decimal(2).sqrt(), decimal.Decimal(10).ln())
P
cat > work/run.sh <<'R'
set -eu
cd "$1"
make -s numbers && ./numbers > numbers.out
seq 100000 > data
{
    for digest in md5 sha1 sha256 sha512 blake2b512; do openssl dgst -$digest -r data; done
    for cipher in aes-128-cbc aes-256-ctr chacha20; do
        openssl enc -$cipher -K 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f -iv 000102030405060708090a0b0c0d0e0f -in data 2> /dev/null | sha256sum
    done
    openssl dgst -sha256 -hmac key -r data
    openssl genrsa -out key.pem 2048 2> /dev/null
    openssl dgst -sha256 -sign key.pem -out signature data
    openssl rsa -in key.pem -pubout -out public.pem 2> /dev/null
    openssl dgst -sha256 -verify public.pem -signature signature data
    openssl ecparam -name prime256v1 -genkey -noout -out ec.pem
    openssl ec -in ec.pem -pubout -out ec-public.pem 2> /dev/null
    openssl dgst -sha256 -sign ec.pem -out signature data
    openssl dgst -sha256 -verify ec-public.pem -signature signature data
    openssl prime 170141183460469231731687303715884105727
} > openssl.out
rm -f sql.db; sqlite3 sql.db < base.sql > sqlite.out
rm -f py.db; python3 base.py > python.out
sha256sum *.out
R
cp -r work host
sh host/run.sh host > host.sums
"$smolvm" machine create --name "$name" --image debian-dev --mem 512M
"$smolvm" machine start --name "$name"
"$smolvm" machine cp ./work "$name:/root/work"
"$smolvm" machine exec --name "$name" -- sh /root/work/run.sh /root/work > guest.sums
if ! diff host.sums guest.sums; then
    for part in numbers openssl sqlite python; do
        "$smolvm" machine cp "$name:/root/work/$part.out" ./$part.out
        diff "host/$part.out" ./$part.out | head -n 20 || :
    done
    exit 1
fi
cat guest.sums
echo ok
