#!/bin/bash
# Runs redis-benchmark against redis-server and pgbench against PostgreSQL, each through a pair of rdmaproxies. Installs them on Debian.
# ADDR is the address of the RDMA connections; without one it is loopback, which the software device serves. FLAGS are for all
# proxies, such as -ring=4KiB. REQUESTS, a multiple of 16, is how many redis-benchmark makes of each kind, TRANSACTIONS how many each of
# ten clients of pgbench, SCALE the size of its tables. RDMAPROXY names the program, if it is built. MATRIX is a file that gets lines for
# the matrix of docs/compat.md, see compat/servers/matrix_test.go, and COLUMN what they are for.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/debian.sh

say() { echo "proxy-real: $*" >&2; }

install_missing redis-server redis-tools postgresql

addr=${ADDR:-127.0.0.1}
requests=${REQUESTS:-20000} transactions=${TRANSACTIONS:-200} scale=${SCALE:-2}
read -ra flags <<<"${FLAGS:-}"
program=${RDMAPROXY:-}
if [[ -z $program ]]; then
	program=$PWD/build/rdmaproxy
	mkdir -p build
	go build -o "$program" ./cmd/rdmaproxy
fi

dir=$(mktemp -d /tmp/proxy.XXXXXX)
chmod 755 "$dir"
pids=()
pg_ctl=() # how to control a server that runs
stop() {
	local status=$?
	((status == 0)) || tail -n 5 "$dir"/*.log >&2 || true
	((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
	((${#pg_ctl[@]} == 0)) || as_user "${pg_ctl[@]}" stop || true
	wait
	rm -rf "$dir"
}
trap stop EXIT

# until_true COMMAND... waits for a command to succeed, for a minute at most.
until_true() {
	local end=$((SECONDS + 60))
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || { say "waited in vain for: $*"; return 1; }
		sleep 0.05
	done
}

# proxy NAME RULE starts a proxy, and sets $listens to its address.
proxy() {
	"$program" -forward "$2" -metrics 127.0.0.1:0 "${flags[@]}" 2>"$dir/$1.log" &
	pids+=($!)
	proxies+=("$1:$!")
	until_true grep -q msg=metrics "$dir/$1.log"
	listens=$(sed -n 's/.*msg=listening.* address="\?\([^" ]*\).*/\1/p' "$dir/$1.log")
}
proxies=()

# end_proxies stops all proxies. They must have carried something, met no error, and end in order.
end_proxies() {
	local p name pid metrics status
	for p in "${proxies[@]}"; do
		name=${p%%:*} pid=${p##*:}
		metrics=$(sed -n 's/.*msg=metrics address=//p' "$dir/$name.log")
		curl -sf "http://$metrics/metrics" >"$dir/metrics"
		awk -v name="$name" '
			/^rdmaproxy_errors_total/ { errors += $NF }
			/^rdmaproxy_connections_total/ { conns = $NF }
			/^rdmaproxy_bytes_total/ { bytes += $NF }
			END {
				printf "%s: %d connections, %d bytes, %d errors\n", name, conns, bytes, errors
				exit errors > 0 || bytes == 0
			}' "$dir/metrics"
		kill "$pid"
		status=0
		wait "$pid" || status=$?
		((status == 0)) || { say "$name ended with status $status"; return 1; }
	done
	proxies=()
}

# as_user runs a command as one who may run PostgreSQL, which refuses root.
as_user() {
	if ((EUID == 0)); then
		runuser -u postgres -- "$@"
	else
		"$@"
	fi
}

# row NAME VERSION WHAT SINCE: all went well.
row() {
	local took=$((($(date +%s%N) - $4) / 100000000))
	[[ -z ${MATRIX:-} ]] || printf '%s\t%s\t%s\t%s\t%d.%d s\n' "$1" "$2" "$3" "${COLUMN:-software rdma}" $((took / 10)) $((took % 10)) >>"$MATRIX"
}

redis() {
	local began
	began=$(date +%s%N)
	redis-server --port 0 --unixsocket "$dir/redis.sock" --save '' --dir "$dir" >"$dir/redis.log" &
	local server=$! port n=$requests
	pids+=("$server")
	until_true redis-cli -s "$dir/redis.sock" ping
	proxy redis-back "rdma://$addr:0=unix://$dir/redis.sock"
	proxy redis-front "tcp://127.0.0.1:0=rdma://$listens"
	port=${listens##*:}
	echo "== redis-benchmark, $(redis-server --version | cut -d ' ' -f 1-3)"
	redis-benchmark -h 127.0.0.1 -p "$port" -n "$n" -c 50 -q -t ping,set,get,incr,lpush,lrange_100,mset | tr '\r' '\n' | grep -a 'requests per second'
	redis-benchmark -h 127.0.0.1 -p "$port" -n "$n" -c 50 -q -t set,get -P 16 -d 1000 | tr '\r' '\n' | grep -a 'requests per second'
	redis-benchmark -h 127.0.0.1 -p "$port" -n $((n / 20)) -c 20 -k 0 -q -t ping_inline | tr '\r' '\n' | grep -a 'requests per second'
	# What the server counted: INCR once for each request, SET in two of the runs.
	redis-cli -s "$dir/redis.sock" info commandstats | tr -d '\r' >"$dir/stats"
	local want
	for want in "incr:calls=$n" "set:calls=$((2 * n))" "mset:calls=$n" "lrange:calls=$n"; do
		grep -q "^cmdstat_$want," "$dir/stats" || { say "the server did not count $want"; cat "$dir/stats"; return 1; }
	done
	end_proxies
	kill "$server"
	wait "$server"
	row redis-benchmark "$(redis-server --version | sed 's/.*v=\([^ ]*\).*/redis-server \1/')" \
		"through a pair of rdmaproxies: PING, SET, GET, INCR, LPUSH, LRANGE and MSET on 50 connections, pipelines, a connection for each request" "$began"
}

postgres() {
	local bin data=$dir/pg clients=10 sums began
	began=$(date +%s%N)
	bin=$(find /usr/lib/postgresql -name initdb -printf '%h\n' | sort -V | tail -n 1)
	mkdir "$data" "$dir/front"
	((EUID)) || chown postgres "$data"
	as_user "$bin/initdb" -D "$data/db" -A trust -U bench >"$dir/initdb.log"
	pg_ctl=("$bin/pg_ctl" -D "$data/db" -s -w -m immediate)
	as_user "${pg_ctl[@]}" start -l "$data/log" -o "-c listen_addresses= -c unix_socket_directories=$data -c fsync=off"
	proxy pg-back "rdma://$addr:0=unix://$data/.s.PGSQL.5432"
	proxy pg-front "unix://$dir/front/.s.PGSQL.5432=rdma://$listens"
	echo "== $("$bin/pgbench" --version)"
	"$bin/pgbench" -h "$dir/front" -U bench -i -s "$scale" -q postgres 2>&1 | grep "done in"
	"$bin/pgbench" -h "$dir/front" -U bench -c "$clients" -j 2 -t "$transactions" postgres >"$dir/pgbench.out" 2>&1
	grep -E 'transactions actually|failed|tps' "$dir/pgbench.out"
	# A connection for each transaction; and answers of many rows.
	"$bin/pgbench" -h "$dir/front" -U bench -n -c 4 -t 25 -C -S postgres >>"$dir/pgbench.out" 2>&1
	grep -q "processed: $((clients * transactions))/$((clients * transactions))" "$dir/pgbench.out"
	grep -q 'processed: 100/100' "$dir/pgbench.out"
	local front direct
	front=$("$bin/psql" -h "$dir/front" -U bench -c 'select * from pgbench_accounts order by aid' postgres | sha256sum)
	direct=$("$bin/psql" -h "$data" -U bench -c 'select * from pgbench_accounts order by aid' postgres | sha256sum)
	[[ $front == "$direct" ]] || { say "$((scale * 100000)) rows differ"; return 1; }
	sums=$("$bin/psql" -h "$data" -U bench -At -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
		(select count(*) from pgbench_history)' postgres)
	[[ $sums == "t|$((clients * transactions))" ]] || { say "the books do not balance: $sums"; return 1; }
	echo "books balance, $((scale * 100000)) rows are equal"
	end_proxies
	as_user "${pg_ctl[@]}" stop
	pg_ctl=()
	row pgbench "$("$bin/pgbench" --version | sed 's/.*) \([0-9.]*\).*/PostgreSQL \1/')" \
		"through a pair of rdmaproxies: 10 clients of TPC-B, a connection for each transaction, all rows of its tables; the books balance" "$began"
}

redis
postgres
echo "redis-benchmark and pgbench ran to the end through rdmaproxy"
