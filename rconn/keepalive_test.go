package rconn

import (
	"errors"
	"math"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// A dead link is found for an idle reader within idle + timeout and a step, in virtual time.
//
// fault: DEATH-3
func TestKeepaliveFindsDeadLink(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for _, timeout := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				fc.Latency = time.Millisecond
				cfg := Config{KeepAlive: time.Second, KeepAliveTimeout: timeout, Linger: -1, AckTimeout: 31}
				n := newNetwork(t, fc, cfg)
				d, a := n.pair(t)
				read := make(chan error, 1)
				go func() {
					_, err := d.Read(make([]byte, 1))
					read <- err
				}()
				time.Sleep(10 * time.Second) // idle and alive
				require.NotZero(t, d.Stats().Probes)
				n.fab.Cut(n.a, n.b)
				start := time.Now()
				err := <-read
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
				require.True(t, err.(net.Error).Timeout(), "as in package net")
				require.LessOrEqual(t, time.Since(start), time.Second+timeout+time.Second/keepaliveSteps+10*time.Millisecond)
				d.Close()
				a.Close()
			})
		}
	})
}

// Timers of connections that were made at different times expire together.
func TestKeepaliveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, idle := range []time.Duration{15 * time.Second, time.Second, 7} {
			k := keepalive{idle: idle}
			ends := make(map[time.Time]bool)
			for range 100 {
				now, d := time.Now(), k.until(idle)
				require.GreaterOrEqual(t, d, idle)
				require.LessOrEqual(t, d, idle+idle/keepaliveSteps)
				ends[now.Add(d)] = true
				time.Sleep(idle / 100)
			}
			if idle > 100 {
				require.InDelta(t, keepaliveSteps, len(ends), 1)
			}
		}
	})
}

// A time that means never does not come early.
func TestKeepaliveNever(t *testing.T) {
	for _, d := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Hour, 100 * 365 * 24 * time.Hour} {
		k := keepalive{idle: d}
		require.GreaterOrEqual(t, k.until(d), d)
	}
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

// A connection that answers its probes lives, whatever the two times are to each other.
func TestKeepaliveLeavesLivingAlone(t *testing.T) {
	forFlavours(t, func(t *testing.T, fc verbstest.Config) {
		for _, timeout := range []time.Duration{time.Millisecond * 100, time.Second, 5 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				fc.Latency = time.Millisecond
				n := newNetwork(t, fc, Config{KeepAlive: time.Second, KeepAliveTimeout: timeout})
				d, a := n.pair(t)
				require.NoError(t, d.SetReadDeadline(time.Now().Add(time.Minute)))
				_, err := d.Read(make([]byte, 1))
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.NoError(t, errors.Join(d.Close(), a.Close()))
			})
		}
	})
}
