# shellcheck shell=bash
# Sourced: addr is the address to serve, $ADDR or that of an RDMA device, and where there is none loopback, which the software device
# serves.

# rdma_addr prints an address of an RDMA device, if there is one.
rdma_addr() {
	local ndev
	for ndev in /sys/class/infiniband/*/ports/1/gid_attrs/ndevs/0; do
		[[ -r $ndev ]] || continue
		ip -4 -o address show dev "$(cat "$ndev" 2>/dev/null)" 2>/dev/null || true # without ip: loopback
	done | awk 'NR == 1 { sub("/.*", "", $4); print $4 }'
}
addr=${ADDR:-$(rdma_addr)}
addr=${addr:-127.0.0.1}
