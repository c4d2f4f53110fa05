package rconn

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

// monitored makes a listener and a dialer with a Monitor each.
func monitored(t testing.TB, n *network) (ln *Listener, dialing, serving *Monitor) {
	dialing, serving = new(Monitor), new(Monitor)
	n.cfg.Monitor = serving
	ln = n.listen(t, n.addr)
	n.cfg.Monitor = dialing
	return ln, dialing, serving
}

func TestMonitorAfterKnownTraffic(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		dev.bubble(t, func(t *testing.T) {
			n := dev.network(t, Config{SendBuffer: 8 << 10, RecvBuffer: 8 << 10, Credits: 32})
			begin := time.Now()
			ln, dialing, serving := monitored(t, n)
			d, a := n.connect(t, ln, ln.Addr().String())
			_, err := d.Write(make([]byte, 1000))
			require.NoError(t, err)
			_, err = io.ReadFull(a, make([]byte, 600))
			require.NoError(t, err)
			_, err = a.Write(make([]byte, 10))
			require.NoError(t, err)
			_, err = io.ReadFull(d, make([]byte, 10))
			require.NoError(t, err)

			s := dialing.Snapshot()
			require.Empty(t, s.Listeners)
			require.Len(t, s.Conns, 1)
			st := s.Conns[0]
			require.Equal(t, d.Info(), st.Info)
			require.Equal(t, d.Stats(), st.Stats)
			require.Equal(t, StateOpen, st.State)
			require.NoError(t, st.Err)
			require.Equal(t, d.LocalAddr().String(), st.Local.String())
			require.Equal(t, ln.Addr().String(), st.Remote.String())
			require.False(t, st.Listener.IsValid())
			require.False(t, st.Since.Before(begin) || st.Since.After(s.Time))
			require.False(t, st.Heard.Before(begin) || st.Heard.After(s.Time))
			require.EqualValues(t, 1000, st.BytesSent)
			require.EqualValues(t, 10, st.BytesReceived)
			require.Zero(t, st.Unread+st.Unsent)
			require.Equal(t, []Total{{
				Device: st.Device, Transport: st.Transport, Opened: 1, Open: 1, Stats: st.Stats,
			}}, s.Totals)

			eventually(t, func() bool { return ln.Stats().Handshakes == 0 }) // a moment after Accept has it
			s = serving.Snapshot()
			require.Len(t, s.Conns, 1)
			require.Equal(t, ln.Addr().String(), s.Conns[0].Listener.String())
			require.Equal(t, 400, s.Conns[0].Unread)
			require.Len(t, s.Listeners, 1)
			l := s.Listeners[0]
			require.Equal(t, ListenerStats{Accepted: 1}, l.ListenerStats)
			require.Equal(t, ln.Addr().String(), l.Addr.String())
			require.Equal(t, "rdma", l.Network)
			require.False(t, l.Lost)
			require.Len(t, l.Devices, 1)
			require.Equal(t, 1, l.Open)
			require.EqualValues(t, 1, l.Opened)
			require.Equal(t, s.Conns[0].Stats, l.Stats)
			require.True(t, s.Totals[0].Accepted)

			// Nobody accepts this one.
			d2, err := n.dialer().Dial("rdma", ln.Addr().String())
			require.NoError(t, err)
			eventually(t, func() bool { return ln.Stats().Waiting == 1 && ln.Stats().Handshakes == 0 })
			s = serving.Snapshot()
			require.Equal(t, 2, s.Listeners[0].Open)
			require.EqualValues(t, 1, s.Listeners[0].Accepted)

			var wg sync.WaitGroup // on iWARP each waits for the other
			for _, c := range []io.Closer{d, a} {
				wg.Go(func() { c.Close() })
			}
			wg.Wait()
			require.NoError(t, ln.Close())
			d2.Close()
			last := d.Stats()
			require.EqualValues(t, 1000, last.BytesSent)
			s = dialing.Snapshot()
			require.Empty(t, s.Conns)
			require.Len(t, s.Totals, 1)
			require.EqualValues(t, 2, s.Totals[0].Opened)
			require.Zero(t, s.Totals[0].Open)
			require.EqualValues(t, 1000, s.Totals[0].BytesSent)
			require.EqualValues(t, 10, s.Totals[0].BytesReceived)
			s = serving.Snapshot()
			require.Empty(t, s.Conns)
			require.Empty(t, s.Listeners)
			require.EqualValues(t, 1000, s.Totals[0].BytesReceived)
			require.EqualValues(t, 2, s.Totals[0].Opened)
		})
	})
}

// Each way to an end, as seen without a call of Read or Write, and what is left after Close.
func TestMonitorStates(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(n *network, d, a *Conn)
		want State
		err  error
	}{
		"nothing":         {func(n *network, d, a *Conn) {}, StateOpen, nil},
		"writing ended":   {func(n *network, d, a *Conn) { d.CloseWrite() }, StateHalfClosedLocal, nil},
		"reading ended":   {func(n *network, d, a *Conn) { d.CloseRead() }, StateOpen, nil},
		"peer closed":     {func(n *network, d, a *Conn) { a.Close() }, StateEnded, nil},
		"peer aborted":    {func(n *network, d, a *Conn) { a.SetLinger(0); a.Close() }, StateBroken, syscall.ECONNRESET},
		"peer killed":     {func(n *network, d, a *Conn) { n.b.Kill() }, StateBroken, syscall.ECONNRESET},
		"dead link":       {func(n *network, d, a *Conn) { n.fab.Cut(n.a, n.b); time.Sleep(time.Minute) }, StateBroken, syscall.ETIMEDOUT},
		"device removed":  {func(n *network, d, a *Conn) { n.a.RemoveDevice(n.a.Device(0)) }, StateBroken, verbs.ErrDeviceRemoved},
		"closing":         {func(n *network, d, a *Conn) { n.fab.Cut(n.a, n.b); d.Write([]byte("x")); go d.Close() }, StateClosing, nil},
		"closed":          {func(n *network, d, a *Conn) { d.Close() }, gone, nil},
		"aborted":         {func(n *network, d, a *Conn) { d.SetLinger(0); d.Close() }, gone, nil},
		"closed, no peer": {func(n *network, d, a *Conn) { n.b.Kill(); d.Close() }, gone, nil},
		"peer ended writing": {func(n *network, d, a *Conn) { a.CloseWrite(); d.Read(make([]byte, 1)) },
			StateHalfClosedRemote, nil},
		"both ended": {func(n *network, d, a *Conn) { a.CloseWrite(); d.CloseWrite(); d.Read(make([]byte, 1)) }, StateEnded, nil},
	} {
		t.Run(name, func(t *testing.T) {
			forFlavours(t, func(t *testing.T, fc verbstest.Config) {
				synctest.Test(t, func(t *testing.T) {
					n := newNetwork(t, fc, Config{AckTimeout: 31}) // keepalive finds a dead link
					ln, dialing, serving := monitored(t, n)
					d, a := n.connect(t, ln, ln.Addr().String())
					synctest.Wait()
					c.end(n, d, a)
					time.Sleep(time.Second)
					s := dialing.Snapshot()
					if c.want == gone {
						require.Empty(t, s.Conns)
					} else {
						require.Len(t, s.Conns, 1)
						require.Equal(t, c.want, s.Conns[0].State, "%v", s.Conns[0].State)
						if c.err == nil {
							require.NoError(t, s.Conns[0].Err)
						} else {
							require.ErrorIs(t, s.Conns[0].Err, c.err)
						}
					}
					require.Equal(t, len(s.Conns), s.Totals[0].Open)
					for _, conn := range []*Conn{d, a} {
						_ = conn.SetLinger(0)
						_ = conn.Close()
					}
					_ = ln.Close()
					time.Sleep(time.Hour)
					for _, m := range []*Monitor{dialing, serving} {
						left := m.Snapshot()
						require.Empty(t, left.Conns)
						require.Empty(t, left.Listeners)
						require.Zero(t, left.Totals[0].Open)
					}
				})
			})
		})
	}
}

// gone stands for a connection that the Monitor knows no more.
const gone State = 255

func TestMonitorHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fab := verbstest.NewFabric(verbstest.Config{})
		defer fab.Close()
		server := fab.Host("server", "10.0.0.100")
		m := &Monitor{Hosts: 2}
		lc := ListenConfig{Providers: []cm.Provider{server}, Config: Config{Monitor: m}}
		ln, err := lc.Listen(context.Background(), "rdma", "10.0.0.100:0")
		require.NoError(t, err)
		for _, ip := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.2"} {
			host := fab.Host("client "+ip, ip)
			d := Dialer{Providers: []cm.Provider{host}, Config: Config{Linger: -1}}
			c, err := d.Dial("rdma", ln.Addr().String())
			require.NoError(t, err)
			a, err := ln.Accept()
			require.NoError(t, err)
			require.Equal(t, netip.MustParseAddr(ip), m.Snapshot().Conns[0].Remote.Addr())
			c.Close()
			a.Close()
			host.Kill() // frees the address
		}
		require.NoError(t, ln.Close())
		opened := map[string]uint64{}
		for _, total := range m.Snapshot().Totals {
			opened[total.Host] = total.Opened
		}
		require.Equal(t, map[string]uint64{"10.0.0.1": 1, "10.0.0.2": 2, OtherHosts: 2}, opened)
	})
}

func TestMonitorCountsFailedHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, verbstest.Config{}, Config{})
		ln, _, serving := monitored(t, n)
		n.b.Fail(verbstest.CreateQP, 1, errors.New("no more"))
		_, err := n.dialer().Dial("rdma", ln.Addr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		synctest.Wait()
		require.Equal(t, ListenerStats{Failed: 1}, serving.Snapshot().Listeners[0].ListenerStats)
		n.b.RemoveDevice(n.b.Device(0))
		synctest.Wait()
		require.True(t, serving.Snapshot().Listeners[0].Lost)
		require.NoError(t, ln.Close())
	})
}

// Connections come and go while others look: sums only grow, and nothing is left.
func TestMonitorOfManyConns(t *testing.T) { forSome(t, testMonitorOfManyConns) }

func testMonitorOfManyConns(t *testing.T, dev device) {
	n := dev.network(t, Config{SendBuffer: 1 << 10, RecvBuffer: 1 << 10, Credits: 8, SendQueue: 16, KeepAlive: -1})
	m := new(Monitor)
	n.cfg.Monitor = m
	ln := n.listen(t, n.addr)
	var accepting, dialing, looking sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepting.Go(func() {
				defer c.Close()
				io.Copy(io.Discard, c)
			})
		}
	})
	done := make(chan struct{})
	for range 2 {
		looking.Go(func() {
			var before, now uint64
			for {
				s := m.Snapshot()
				open := 0
				now = 0
				for _, total := range s.Totals {
					now += total.BytesSent
					open += total.Open
				}
				if now < before || open != len(s.Conns) {
					t.Errorf("%d bytes after %d, %d open of %d", now, before, open, len(s.Conns))
				}
				before = now
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	const conns, size = 1000, 100
	for range 20 {
		dialing.Go(func() {
			for range conns / 20 {
				c, err := n.dialer().Dial("rdma", ln.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := c.Write(make([]byte, size)); err != nil {
					t.Error(err)
				}
				c.Close()
			}
		})
	}
	dialing.Wait()
	close(done)
	looking.Wait()
	ln.Close()
	accepting.Wait()

	s := m.Snapshot()
	require.Empty(t, s.Conns)
	require.Empty(t, s.Listeners)
	require.Len(t, s.Totals, 2)
	require.True(t, s.Totals[0].Accepted)
	dialed := s.Totals[1]
	require.EqualValues(t, conns, dialed.Opened)
	require.Zero(t, dialed.Open)
	require.EqualValues(t, conns*size, dialed.BytesSent)
	require.Empty(t, m.conns)
	require.Empty(t, m.listeners)
	require.Len(t, m.totals, 2)
}

func TestMonitoredReadAndWriteAllocateNothing(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{KeepAlive: -1})
	ln, dialing, _ := monitored(t, n)
	d, a := n.connect(t, ln, ln.Addr().String())
	buf := make([]byte, 1000)
	exchange := func() {
		if _, err := d.Write(buf); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(a, buf); err != nil {
			t.Error(err)
		}
	}
	for range 300 {
		exchange()
	}
	require.Zero(t, testing.AllocsPerRun(100, exchange))
	require.Len(t, dialing.Snapshot().Conns, 1)
	abort(d)
	abort(a)
	require.NoError(t, ln.Close())
}

// A field that is new in Stats must be summed too.
func TestStatsAddSumsAllFields(t *testing.T) {
	var fill func(v reflect.Value, x uint64)
	fill = func(v reflect.Value, x uint64) {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Struct {
				fill(f, x)
			} else {
				f.SetUint(x)
			}
		}
	}
	var a, b, want Stats
	fill(reflect.ValueOf(&a).Elem(), 2)
	fill(reflect.ValueOf(&b).Elem(), 3)
	fill(reflect.ValueOf(&want).Elem(), 5)
	a.add(&b)
	require.Equal(t, want, a)
}

func TestNilMonitorKnowsNothing(t *testing.T) {
	require.Equal(t, Snapshot{}, (*Monitor)(nil).Snapshot())
}
