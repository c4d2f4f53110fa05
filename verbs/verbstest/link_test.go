package verbstest

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// ackTimeout is that of param.
const ackTimeout = 4096 * time.Nanosecond << 16

func TestCutEndsInRetryExceeded(t *testing.T) {
	virtually(t, ib, size{recvs: 4}, func(t *testing.T, n *network) {
		n.fab.Cut(n.ha, n.hb)
		start := time.Now()
		n.a.post(n.a.writeWR(1, n.a.sge(0, 8), n.b, 0), sendWR(2, n.a.sge(0, 8)))
		n.a.failed(1, verbs.StatusRetryExcErr)
		require.Equal(t, latency+7*ackTimeout, time.Since(start))
		n.a.failed(2, verbs.StatusWRFlushErr)
		n.b.quiet() // an idle side learns nothing
		n.fab.Heal(n.ha, n.hb)
		n.b.quiet()
	})
}

func TestCutIsRetried(t *testing.T) {
	virtually(t, ib, size{recvs: 4}, func(t *testing.T, n *network) {
		n.fab.Cut(n.ha, n.hb)
		fill(n.a.mr.Bytes()[:8], 1)
		n.a.post(sendWR(1, n.a.sge(0, 8)), sendWR(2, n.a.sge(0, 8)))
		time.Sleep(3*ackTimeout + ackTimeout/2)
		n.fab.Heal(n.ha, n.hb)
		start := time.Now()
		n.b.received(0, 8)
		require.InDelta(t, ackTimeout/2, time.Since(start), float64(2*latency), "goes on with the next try")
		n.b.received(1, 8)
		n.a.sent(1, verbs.WCSend)
		n.a.sent(2, verbs.WCSend)
	})
}

func TestLostAckIsNoSecondMessage(t *testing.T) {
	virtually(t, ib, size{recvs: 4}, func(t *testing.T, n *network) {
		n.a.post(sendWR(1, n.a.sge(0, 8)))
		n.b.received(0, 8)
		n.fab.Cut(n.ha, n.hb) // the acknowledgement is on its way
		time.Sleep(ackTimeout)
		require.NoError(t, n.a.poll())
		require.Empty(t, n.a.sends)
		n.fab.Heal(n.ha, n.hb)
		n.a.sent(1, verbs.WCSend)
		n.b.quiet()
	})
}

// param with other retries.
func connectWith(t *testing.T, n *network, change func(*cm.ConnParam)) (a, b *side) {
	t.Helper()
	p := param()
	change(&p)
	a, done := n.dial(t, n.ctx(t), n.ln.Addr(), p)
	req, err := n.ln.Accept(n.ctx(t))
	require.NoError(t, err)
	b = n.side(t, req, size{})
	require.NoError(t, req.Accept(n.ctx(t), p))
	require.NoError(t, (<-done).err)
	return a, b
}

func TestSevenRetriesAreForEver(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		a, b := connectWith(t, n, func(p *cm.ConnParam) { p.RetryCount = 7 })
		n.da.SetLink(false)
		a.post(a.writeWR(1, a.sge(0, 8), b, 0))
		a.quiet()
		n.da.SetLink(true)
		a.sent(1, verbs.WCRDMAWrite)
	})
}

func TestLinkDownIsSeenOnItsOwnSide(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		events := make(chan verbs.AsyncEvent, 4)
		defer n.da.Watch(func(e verbs.AsyncEvent) { events <- e })()
		defer n.db.Watch(func(e verbs.AsyncEvent) { t.Errorf("event %+v at the other end", e) })()
		n.da.SetLink(false)
		require.Equal(t, verbs.AsyncEvent{Type: verbs.EventPortErr, Port: 1}, <-events)
		p, err := n.da.Port(1)
		require.NoError(t, err)
		require.Equal(t, verbs.PortDown, p.State)
		n.da.SetLink(true)
		require.Equal(t, verbs.EventPortActive, (<-events).Type)
		n.a.quiet()
	})
}

func TestReceiverNotReady(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		// Two more tries, with a pause of 655.36 ms each, since nobody has set the timer.
		a, _ := connectWith(t, n, func(p *cm.ConnParam) { p.RNRRetryCount, p.MinRNRTimer = 2, 0 })
		start := time.Now()
		a.post(sendWR(1, a.sge(0, 8)))
		a.failed(1, verbs.StatusRNRRetryExcErr)
		require.Equal(t, latency+2*655360*time.Microsecond, time.Since(start))

		// For ever; the receive is found at the next try.
		a, b := connectWith(t, n, func(p *cm.ConnParam) { p.MinRNRTimer = 20 })
		a.post(sendWR(1, a.sge(0, 8)))
		a.quiet()
		start = time.Now()
		b.postRecv(7, b.slot(0))
		b.received(7, 8)
		require.LessOrEqual(t, time.Since(start), 10240*time.Microsecond)
		a.sent(1, verbs.WCSend)

		// A peer that dies meanwhile is found.
		a.post(sendWR(2, a.sge(0, 8)))
		time.Sleep(time.Second)
		n.hb.Kill()
		a.failed(2, verbs.StatusRetryExcErr)
	})
}

func TestWriteIntoDeadIWARPLinkSucceeds(t *testing.T) {
	virtually(t, iwarp, size{memory: 1 << 20}, func(t *testing.T, n *network) {
		n.fab.Cut(n.ha, n.hb)
		start := time.Now()
		n.a.post(n.a.writeWR(1, n.a.sge(0, 200_000), n.b, 0), n.a.writeWR(2, n.a.sge(0, 200_000), n.b, 0))
		n.a.sent(1, verbs.WCRDMAWrite)
		require.Equal(t, latency, time.Since(start))
		n.a.quiet() // the second does not fit into TCP's buffer
		n.fab.Heal(n.ha, n.hb)
		n.a.sent(2, verbs.WCRDMAWrite)

		n.fab.Cut(n.ha, n.hb)
		start = time.Now()
		n.a.post(n.a.writeWR(3, n.a.sge(0, 8), n.b, 0))
		n.a.sent(3, verbs.WCRDMAWrite)
		n.a.disconnected()
		require.Equal(t, 15*time.Minute+latency, time.Since(start), "since the first packet that was lost, of request 2")
	})
}

func TestPowerCut(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"IB": ib, "iWARP": iwarp} {
		t.Run(name, func(t *testing.T) {
			virtually(t, dc, size{recvs: 2}, func(t *testing.T, n *network) {
				n.hb.PowerCut()
				n.a.quiet()
				n.a.post(n.a.writeWR(1, n.a.sge(0, 8), n.b, 0))
				if n.a.iwarp() {
					n.a.sent(1, verbs.WCRDMAWrite)
					n.a.disconnected()
				} else {
					n.a.failed(1, verbs.StatusRetryExcErr)
				}
				_, err := n.Dial.Resolve(t.Context(), netip.AddrPort{}, n.ln.Addr())
				require.ErrorIs(t, err, syscall.EHOSTUNREACH)
			})
		})
	}
}

func TestKill(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"IB": ib, "iWARP": iwarp} {
		t.Run(name, func(t *testing.T) {
			virtually(t, dc, size{recvs: 2}, func(t *testing.T, n *network) {
				ended := make(chan error, 2)
				go func() { ended <- n.b.ch.Wait(0) }()
				go func() {
					_, err := n.ln.Accept(t.Context())
					ended <- err
				}()
				synctest.Wait()
				n.hb.Kill()
				for range 2 {
					require.Error(t, <-ended)
				}
				require.Equal(t, Objects{}, n.hb.Objects())
				_, err := n.b.qp.PostSend([]verbs.SendWR{sendWR(1, nil)})
				require.ErrorIs(t, err, verbs.ErrDeviceRemoved)
				n.a.disconnected()

				// The machine still answers, and runs a new process.
				_, done := n.dial(t, t.Context(), n.ln.Addr(), param())
				require.ErrorIs(t, (<-done).err, syscall.ECONNREFUSED)
				n.Listen = n.fab.Host("again", "10.0.0.2")
				n.pair(t, size{})
			})
		})
	}
}

// fault: DEATH-6
func TestRemoveDevice(t *testing.T) {
	for name, dc := range map[string]DeviceConfig{"IB": ib, "iWARP": iwarp} {
		t.Run(name, func(t *testing.T) {
			virtually(t, dc, size{recvs: 2}, func(t *testing.T, n *network) {
				fatal := make(chan verbs.AsyncEvent, 1)
				defer n.db.Watch(func(e verbs.AsyncEvent) { fatal <- e })()
				n.hb.RemoveDevice(n.db)
				require.Equal(t, verbs.EventDeviceFatal, (<-fatal).Type)
				require.Equal(t, cm.DeviceRemoval, (<-n.b.events).Type)
				for range 2 {
					require.Equal(t, verbs.StatusWRFlushErr, n.b.nextRecv().Status)
				}
				require.ErrorIs(t, n.b.ch.Wait(0), verbs.ErrDeviceRemoved)
				_, err := n.b.dev.AllocPD()
				require.ErrorIs(t, err, verbs.ErrDeviceRemoved)
				_, err = n.ln.Accept(t.Context())
				require.ErrorIs(t, err, verbs.ErrDeviceRemoved)
				_, err = n.hb.Devices()
				require.ErrorIs(t, err, verbs.ErrNoDevice)
				n.b.close()
				if n.a.iwarp() {
					n.a.disconnected()
				}

				dc.Addrs = []string{"10.0.0.2"}
				n.hb.AddDevice(dc)
				n.pair(t, size{})
			})
		})
	}
}

// fault: CONN-1
func TestNobodyAnswersConnect(t *testing.T) {
	virtually(t, ib, size{}, func(t *testing.T, n *network) {
		// The listener's program never accepts.
		_, done := n.dial(t, t.Context(), n.ln.Addr(), param())
		// The path goes away after the address was resolved.
		n.fab.Cut(n.ha, n.hb)
		require.ErrorIs(t, (<-done).err, syscall.ETIMEDOUT)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := n.ha.Resolve(ctx, netip.AddrPort{}, n.ln.Addr())
		require.ErrorIs(t, err, syscall.EHOSTUNREACH)
	})
}
