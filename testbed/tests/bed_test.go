//go:build guest

package tests

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// These tests are of the bed itself, with programs that nobody here wrote.

func TestBothRping(t *testing.T) {
	for name, address := range map[string]string{"ipv4": addr, "ipv6": "fd00:9::1"} {
		t.Run(name, func(t *testing.T) {
			server := start(t, "rping", "-s", "-a", address, "-C", "3", "-V", "-v")
			server.listens(t)
			run(t, "rping", "-c", "-a", address, "-C", "3", "-V", "-v")
			server.wait(t)
		})
	}
}

func TestRxeRstream(t *testing.T) { testRstream(t) }
func TestSiwRstream(t *testing.T) { testRstream(t) }

func testRstream(t *testing.T) {
	// Sizes given, or rstream goes through all of its own; v verifies the data.
	args := []string{"-S", "4096", "-I", "20", "-C", "2", "-T", "v"}
	server := start(t, append([]string{"rstream", "-b", addr}, args...)...)
	server.listens(t)
	run(t, append([]string{"rstream", "-s", addr}, args...)...)
	server.wait(t)
}

func TestPairRxeCable(t *testing.T) {
	if role == "B" {
		server := start(t, "rping", "-s", "-a", addr, "-C", "3", "-v")
		server.listens(t)
		barrier(t, "listening")
		server.wait(t)
		barrier(t, "done")
		return
	}
	barrier(t, "listening")
	run(t, "rping", "-c", "-a", peer, "-C", "3", "-v")

	run(t, "cable", "down")
	start(t, "ping", "-c", "1", "-W", "1", peer).fails(t)
	run(t, "cable", "up")
	pingTime(t)

	run(t, "cable", "netem", "delay", "150ms")
	if rtt := pingTime(t); rtt < 150*time.Millisecond {
		t.Errorf("a ping takes %v on a cable with a delay of 150 ms", rtt)
	}
	run(t, "cable", "netem", "off")
	barrier(t, "done")
}

func TestPairSiwRping(t *testing.T) {
	if role == "B" {
		server := start(t, "rping", "-s", "-a", addr, "-C", "3", "-v")
		server.listens(t)
		barrier(t, "listening")
		server.wait(t)
		return
	}
	barrier(t, "listening")
	run(t, "rping", "-c", "-a", peer, "-C", "3", "-v")
}

func TestPairNoneKill(t *testing.T) {
	if role == "B" {
		barrier(t, "up")
		select {} // until the power is cut
	}
	pingTime(t)
	barrier(t, "up")
	run(t, "peer", "kill")
	start(t, "ping", "-c", "1", "-W", "1", peer).fails(t)
	start(t, "barrier", "alone").fails(t)
}

// A guest of its own is what a test needs that takes the device away.
func TestFreshRxeRemoval(t *testing.T) {
	run(t, "rdma", "link", "del", "rxe0")
	if _, err := os.Stat("/sys/class/infiniband/rxe0"); err == nil {
		t.Fatal("rxe0 is still there")
	}
}

var rePing = regexp.MustCompile(`time=([0-9.]+) ms`)

// pingTime is the round-trip time to the peer, not counting the first packet,
// which may wait for ARP.
func pingTime(t *testing.T) time.Duration {
	t.Helper()
	run(t, "ping", "-c", "1", "-W", "2", peer)
	out := run(t, "ping", "-c", "1", "-W", "2", peer)
	m := rePing.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no time in ping's output:\n%s", out)
	}
	ms, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ms * float64(time.Millisecond))
}
