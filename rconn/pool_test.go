package rconn

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// talk sends some bytes each way.
func talk(t *testing.T, d, a *Conn, text string) {
	t.Helper()
	for _, way := range [][2]*Conn{{d, a}, {a, d}} {
		_, err := way[0].Write([]byte(text))
		require.NoError(t, err)
		got := make([]byte, len(text))
		_, err = io.ReadFull(way[1], got)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
}

// hangUp closes both ends.
func hangUp(t *testing.T, d, a *Conn) {
	t.Helper()
	closed := make(chan error)
	go func() { closed <- d.Close() }()
	require.NoError(t, a.Close())
	require.NoError(t, <-closed)
}

// spares is for how many connections the listener keeps memory.
func spares(l *Listener) int {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return len(l.pool.spare)
}

// Connections one after the other have the same memory, without what was in it, and a table that is as new.
//
// fault: MEM-10
func TestPoolReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		ln := n.listen(t, n.addr)
		var keys []uint32
		for i := range 5 {
			d, a := n.connect(t, ln, ln.Addr().String())
			keys = append(keys, a.ep.recv.RKey())
			for range i + 1 { // not always the same place in the rings
				talk(t, d, a, "first come, first served")
			}
			hangUp(t, d, a)
			require.Equal(t, 1, spares(ln))
			m := ln.pool.spare[0]
			require.Empty(t, bytes.Trim(m.recv.Bytes(), "\x00"), "not scrubbed")
			require.Empty(t, bytes.Trim(m.send.Bytes(), "\x00"), "not scrubbed")
		}
		for _, k := range keys {
			require.Equal(t, keys[0], k)
		}
		require.Equal(t, 2, n.b.Calls(verbstest.AllocMR))
		require.Equal(t, 1, n.b.Calls(verbstest.AllocPD))
		require.Equal(t, 10, n.a.Calls(verbstest.AllocMR), "who dials has no pool")
		require.NoError(t, ln.Close())
		require.Zero(t, n.fab.Objects())
	})
}

// The key that a former peer knows opens nothing, though the memory and its key are in use again.
//
// fault: MEM-10
func TestPoolFormerPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		ln := n.listen(t, n.addr)
		defer ln.Close()
		d, a := n.connect(t, ln, ln.Addr().String())
		key := a.ep.recv.RKey()
		hangUp(t, d, a)

		d, a = n.connect(t, ln, ln.Addr().String())
		require.Equal(t, key, a.ep.recv.RKey())
		former, itsEnd := n.connect(t, ln, ln.Addr().String())
		_, err := former.ep.qp.PostSend([]verbs.SendWR{{
			Opcode: verbs.OpRDMAWrite, Inline: []byte("let me in"), RemoteAddr: a.ep.recv.Addr() + tableSpace, RKey: key,
		}})
		require.NoError(t, err)
		within(t, func() {
			_, err = former.Read(make([]byte, 1))
			require.ErrorIs(t, err, &verbs.CompletionError{Status: verbs.StatusRemAccessErr})
		})
		require.Empty(t, bytes.Trim(a.ep.recv.Bytes()[tableSpace:], "\x00"))
		talk(t, d, a, "undisturbed")
		hangUp(t, d, a)
		hangUp(t, former, itsEnd)
	})
}

// Memory that nobody needs is freed, however often other memory is.
func TestPoolFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		ln := n.listen(t, n.addr)
		idle := n.fab.Objects()
		var ds, as []*Conn
		for range 20 {
			d, a := n.connect(t, ln, ln.Addr().String())
			ds, as = append(ds, d), append(as, a)
		}
		for i := range ds {
			hangUp(t, ds[i], as[i])
		}
		size := ln.pool.spare[0].size()
		require.Equal(t, poolBytes/size, spares(ln))
		require.Equal(t, spares(ln)*size, ln.pool.bytes)
		require.Equal(t, spares(ln), n.fab.Objects().PDs)

		made := n.b.Calls(verbstest.AllocMR)
		for range 10 {
			d, a := n.connect(t, ln, ln.Addr().String())
			hangUp(t, d, a)
			time.Sleep(poolTime / 2)
		}
		require.Equal(t, 1, spares(ln))
		require.Equal(t, made, n.b.Calls(verbstest.AllocMR), "what is needed was freed")
		time.Sleep(2 * poolTime)
		require.Equal(t, idle, n.fab.Objects(), "left after a while")

		d, a := n.connect(t, ln, ln.Addr().String())
		hangUp(t, d, a)
		require.Equal(t, 1, spares(ln), "and it begins anew")
		require.NoError(t, ln.Close())
	})
}

// What is not kept: memory of connections that outlive their listener, or broke, of a device that fails or is gone, and more than there is
// place for.
func TestPoolRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		cfg    Config
		before func(t *testing.T, n *network, ln *Listener, d, a *Conn)
	}{
		"listener closed": {before: func(_ *testing.T, _ *network, ln *Listener, _, _ *Conn) { ln.Close() }},
		"broken": {before: func(t *testing.T, _ *network, _ *Listener, d, a *Conn) {
			_, err := d.ep.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Inline: []byte("?")}})
			require.NoError(t, err)
			_, err = a.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}},
		"broken, seen by nobody": {before: func(t *testing.T, _ *network, _ *Listener, d, a *Conn) {
			_, err := d.ep.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Inline: []byte("?")}})
			require.NoError(t, err)
			require.NoError(t, a.SetLinger(0))
		}},
		"broken, and no linger": {cfg: Config{Linger: -1}, before: func(t *testing.T, _ *network, _ *Listener, d, _ *Conn) {
			_, err := d.ep.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Inline: []byte("?")}})
			require.NoError(t, err)
		}},
		"not answered": {cfg: Config{Linger: time.Second}, before: func(t *testing.T, n *network, _ *Listener, _, a *Conn) {
			n.fab.Cut(n.a, n.b)
			_, err := a.Write([]byte("anybody there?"))
			require.NoError(t, err)
		}},
		"given up": {before: func(t *testing.T, _ *network, _ *Listener, d, a *Conn) { require.NoError(t, a.SetLinger(0)) }},
		"device fails": {before: func(_ *testing.T, n *network, _ *Listener, _, _ *Conn) {
			n.b.Fail(verbstest.Modify, 1, verbs.ErrDeviceRemoved)
		}},
		"device gone": {before: func(_ *testing.T, n *network, _ *Listener, _, _ *Conn) { n.b.RemoveDevice(n.b.Device(0)) }},
		"large":       {cfg: Config{RecvBuffer: poolBytes}, before: func(*testing.T, *network, *Listener, *Conn, *Conn) {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test.cfg.Logger = slog.New(slog.DiscardHandler)
				n := newNetwork(t, verbstest.Config{}, test.cfg)
				ln := n.listen(t, n.addr)
				defer ln.Close()
				d, a := n.connect(t, ln, ln.Addr().String())
				test.before(t, n, ln, d, a)
				require.NoError(t, a.Close())
				require.NoError(t, d.Close())
				require.Zero(t, n.fab.Objects().PDs)
				require.Zero(t, spares(ln))
			})
		})
	}
}

// Memory that is kept is given up when there is none left for a connection, or for a ring that grows.
func TestPoolGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		ln := n.listen(t, n.addr)
		defer ln.Close()
		d1, a1 := n.connect(t, ln, ln.Addr().String())
		d2, a2 := n.connect(t, ln, ln.Addr().String())
		hangUp(t, d1, a1)
		// Locked memory is short as long as the listener has spares.
		defer n.b.On(verbstest.AllocMR, func() error {
			if spares(ln) > 0 {
				return syscall.ENOMEM
			}
			return nil
		})()
		require.Equal(t, 1, spares(ln))
		a2.mu.Lock()
		a2.registerRecv(1 << 20)
		a2.mu.Unlock()
		synctest.Wait()
		require.NotNil(t, a2.ep.bigRecv)
		require.Zero(t, spares(ln))
		hangUp(t, d2, a2)

		require.Equal(t, 1, spares(ln))
		ln.cfg.RecvBuffer = 200 << 10 // what is kept does not fit
		d, a := n.connect(t, ln, ln.Addr().String())
		require.Zero(t, spares(ln))
		talk(t, d, a, "made it")
		hangUp(t, d, a)

		// None at all: the connection is refused, and nothing is left.
		defer n.b.On(verbstest.AllocMR, func() error { return syscall.ENOMEM })()
		ln.cfg.RecvBuffer = 300 << 10
		_, err := n.dialer().Dial("rdma", ln.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		synctest.Wait()
		require.Equal(t, verbstest.Objects{Listeners: 1}, n.fab.Objects())
	})
}

// The memory of a device that is removed does not hold it up.
func TestPoolDeviceRemoved(t *testing.T) {
	for addr, limit := range map[string]time.Duration{addrB + ":0": 0, ":0": 2 * poolTime} {
		t.Run(addr, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, verbstest.Config{}, Config{})
				ln := n.listen(t, addr)
				defer ln.Close()
				_, port, err := net.SplitHostPort(ln.Addr().String())
				require.NoError(t, err)
				d, a := n.connect(t, ln, addrB+":"+port)
				hangUp(t, d, a)
				require.Equal(t, 1, spares(ln))
				n.b.RemoveDevice(n.b.Device(0))
				time.Sleep(limit)
				synctest.Wait()
				require.Zero(t, n.fab.Objects().MRs)
			})
		})
	}
}

// Each device has its own.
func TestPoolTwoDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		n.b.AddDevice(verbstest.DeviceConfig{Addrs: []string{"10.0.0.3"}})
		ln := n.listen(t, ":0")
		defer ln.Close()
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		for range 3 {
			for _, ip := range []string{addrB, "10.0.0.3"} {
				d, a := n.connect(t, ln, net.JoinHostPort(ip, port))
				require.Equal(t, a.Device(), a.ep.pd.Device())
				talk(t, d, a, ip)
				hangUp(t, d, a)
			}
		}
		require.Equal(t, 2, spares(ln))
	})
}

// On iWARP a peer may invalidate a key, and so nothing is kept.
func TestPoolNotThere(t *testing.T) {
	test := func(t *testing.T, n *network) {
		ln := n.listen(t, n.addr)
		defer ln.Close()
		for range 3 {
			d, a := n.connect(t, ln, ln.Addr().String())
			hangUp(t, d, a)
		}
		require.Zero(t, spares(ln))
	}
	t.Run("iwarp", func(t *testing.T) { test(t, newNetwork(t, flavours["iwarp"], Config{})) })
	t.Run("software", func(t *testing.T) { test(t, device{}.network(t, Config{SendBuffer: 64 << 10, RecvBuffer: 128 << 10})) })
}
