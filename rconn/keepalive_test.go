package rconn

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// A dead link is found for an idle reader within idle + timeout, in virtual time.
//
// fault: DEATH-3
func TestKeepaliveFindsDeadLink(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		synctest.Test(t, func(t *testing.T) {
			fc.Latency = time.Millisecond
			cfg := Config{KeepAlive: time.Second, KeepAliveTimeout: time.Second, Linger: -1}
			n := newNetwork(t, fc, cfg)
			d, a := n.pair(t)
			time.Sleep(10 * time.Second) // idle and alive
			require.NotZero(t, d.Stats().Probes)
			n.fab.Cut(n.a, n.b)
			start := time.Now()
			_, err := d.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			require.LessOrEqual(t, time.Since(start), 2*time.Second+10*time.Millisecond)
			d.Close()
			a.Close()
		})
	})
}

func TestKeepaliveOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1, Linger: -1})
		d, a := n.pair(t)
		synctest.Wait()
		n.fab.Cut(n.a, n.b)
		d.SetReadDeadline(time.Now().Add(time.Hour))
		_, err := d.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Zero(t, d.Stats().Probes)
		d.Close()
		a.Close()
	})
}
