//go:build guest

package tests

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// program is the path of one of our programs, built beside the tests.
func program(name string) string { return filepath.Join(os.Getenv("OUT"), "bin", name) }

// examples/ping, both ends, prints percentiles and the device.
func TestBothPingExample(t *testing.T) {
	server := start(t, program("ping"), "-listen", net.JoinHostPort(addr, "7000"), "-once")
	server.listens(t)
	out := run(t, program("ping"), "-n", "200", "-size", "64", net.JoinHostPort(addr, "7000"))
	want := regexp.MustCompile(`on (rxe0 \(InfiniBand\)|siw0 \(iWARP\)), 64 bytes\n200 round trips: min \S+, median \S+, 90% \S+, 99% \S+, max \S+`)
	if !want.MatchString(out) {
		t.Errorf("ping printed:\n%s", out)
	}
	server.wait(t)
}

// examples/echo, both ends, checks what came back by its hash. On a busy machine the software device may be faster to connect: here it is
// not asked.
func TestBothEchoExample(t *testing.T) {
	t.Setenv("RCONN_DEVICE", os.Getenv("RDMA_DEV")+"0")
	server := start(t, program("echo"), "-listen", net.JoinHostPort(addr, "7001"))
	server.listens(t)
	out := run(t, program("echo"), "-size", "2MiB", net.JoinHostPort(addr, "7001"))
	want := regexp.MustCompile(`(?m)^2097152 bytes there and back in \S+, .* over (rxe0|siw0) \(\w+\), hash [0-9a-f]{16} equal$`)
	if !want.MatchString(out) {
		t.Errorf("echo printed:\n%s", out)
	}
}
