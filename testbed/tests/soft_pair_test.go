//go:build guest

package tests

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rconn/rdma/internal/softiwarp"
)

// Two hosts: the software device on A, siw on B, where iwpmd, the iWARP port mapper, is started half-way. With it the kernel asks A, on UDP
// port 3935, before it connects; when nobody answers that costs 10 s.
//
// The C program that listens is not rstream, which loses its last bytes on a cable in one of three runs, whether the client is C or ours:
// see rstreamTest.call.
func TestPairSiwSoft(t *testing.T) {
	if role == "A" {
		pairSoft(t)
	} else {
		pairSiw(t)
	}
	barrier(t, "done")
}

const pairBytes = 4 << 20

var pairRun = rstreamTest{64 << 10, 10, 1}

func pairSoft(t *testing.T) {
	dev := soft(t, softiwarp.Config{})
	accept := func(dev softDevice, do func(*testing.T, net.Listener)) {
		ln := dev.listen(t, join(addr, rstreamPort))
		defer ln.Close()
		barrier(t, "a-listens")
		do(t, ln)
	}
	noise := noiseOn(t)

	callGreeter := func() {
		barrier(t, "b-listens")
		begin := time.Now()
		if err := greeted(dev, peer); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("software to siw took %v", took)
		}
	}

	accept(dev, pairRun.serve)
	callGreeter()
	accept(dev, func(t *testing.T, ln net.Listener) { noise(ln.Accept()) })
	barrier(t, "b-listens")
	noise(dialerOn(dev.provider).Dial("rdma", join(peer, rstreamPort)))

	barrier(t, "iwpmd")
	accept(dev, pairRun.serve)
	callGreeter()
	mapper := soft(t, softiwarp.Config{PortMapper: true})
	accept(mapper, pairRun.serve)
	accept(mapper, func(t *testing.T, ln net.Listener) { noise(ln.Accept()) })
}

func pairSiw(t *testing.T) {
	noise := noiseOn(t)
	dial := func() time.Duration {
		barrier(t, "a-listens")
		begin := time.Now()
		run(t, append([]string{"rstream", "-s", peer}, pairRun.args(rstreamPort, "b")...)...)
		return time.Since(begin).Round(time.Millisecond)
	}
	accept := func() {
		server := greeter(t, addr, 1)
		barrier(t, "b-listens")
		server.wait(t)
	}
	systemDials := func() {
		barrier(t, "a-listens")
		d := dialerOn(system)
		d.Config.HandshakeTimeout = patience
		noise(d.Dial("rdma", join(peer, rstreamPort)))
	}

	without := dial()
	accept()
	systemDials()
	ln := listenOn(t, system, join(addr, rstreamPort))
	barrier(t, "b-listens")
	noise(ln.Accept())
	ln.Close()

	run(t, "iwpmd")
	waitFor(t, "iwpmd to have its port", func() bool {
		b, err := os.ReadFile("/proc/net/udp")
		return err == nil && strings.Contains(string(b), ":0F5F ") // 3935
	})
	barrier(t, "iwpmd")
	silent := dial()
	accept()
	answered := dial()
	systemDials()
	t.Logf("seen: rstream over siw to software: %v without iwpmd, %v with it and no answer, %v with the port mapper's answer",
		without, silent, answered)
	if silent < 9*time.Second || silent > 15*time.Second {
		t.Error("with iwpmd and no answer siw should take 10 s")
	}
	if answered > 5*time.Second || without > 5*time.Second {
		t.Error("otherwise it should not")
	}
}

// noiseOn gives a function that exchanges noise on a connection just made.
func noiseOn(t *testing.T) func(net.Conn, error) {
	return func(c net.Conn, err error) {
		t.Helper()
		if err == nil {
			err = exchangeNoise(c, pairBytes)
		}
		if err != nil {
			t.Error(err)
		}
	}
}
