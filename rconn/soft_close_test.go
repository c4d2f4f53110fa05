package rconn

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
)

// slack is what a busy machine may add to a time.
const slack = 5 * time.Second

// The peer's window is full and it does not read, or the network takes nothing any more: Close is back within the linger, and the calls
// that wait are told.
//
// fault: CLOSE-1 (software)
func TestSoftwareCloseWithFullWindow(t *testing.T) {
	const linger = 300 * time.Millisecond
	for name, c := range map[string]struct {
		ring int
		held []int
	}{
		"stopped":             {64, nil},
		"silent":              {64, []int{toListener, toDialer}},
		"deaf":                {64, []int{toListener}},
		"TCP full":            {32 << 20, []int{toListener}},
		"TCP full and silent": {32 << 20, []int{toListener, toDialer}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newSoftware(t, rdma.SoftwareConfig{}, Config{SendBuffer: c.ring, RecvBuffer: c.ring, Linger: linger, KeepAlive: -1})
			d, a, p := n.proxied(t)
			p.hold(c.held...)
			var wg sync.WaitGroup
			for _, call := range []func([]byte) (int, error){d.Read, d.Write} {
				wg.Go(func() {
					if _, err := call(make([]byte, 2*c.ring)); !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
				})
			}
			d.waiting(t, &d.rd)
			d.waiting(t, &d.wr)
			start := time.Now()
			require.NoError(t, d.Close())
			require.GreaterOrEqual(t, time.Since(start), linger)
			require.Less(t, time.Since(start), linger+slack)
			wg.Wait()
			abort(a)
		})
	}
}

// The event of the end is lost: Close returns all the same.
//
// fault: CLOSE-5 (software)
func TestSoftwareDisconnectedLost(t *testing.T) {
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{Linger: 100 * time.Millisecond})
	for _, m := range n.meddle() {
		m.lose(cm.Disconnected)
	}
	d, a := n.pair(t)
	within(t, func() {
		require.NoError(t, d.Close())
		require.NoError(t, a.Close())
	})
}

// Each event of the connection manager, at a connection with a blocked reader: those that end a connection wake it, the others
// change nothing, and all is released after each.
//
// fault: DEATH-5 (software)
func TestSoftwareEveryEvent(t *testing.T) {
	for typ := cm.AddrResolved; typ <= cm.AddrinfoError; typ++ {
		t.Run(typ.String(), func(t *testing.T) {
			n := newSoftware(t, rdma.SoftwareConfig{}, Config{Linger: 100 * time.Millisecond})
			m := n.meddle()[0]
			d, a := n.pair(t)
			read := make(chan error, 1)
			go func() {
				_, err := d.Read(make([]byte, 1))
				read <- err
			}()
			d.waiting(t, &d.rd)
			ev := cm.Event{Type: typ}
			m.inject(ev)
			within(t, func() {
				if ev.Ends() {
					require.ErrorIs(t, <-read, syscall.ECONNRESET)
				} else {
					_, err := a.Write([]byte("x"))
					require.NoError(t, err)
					require.NoError(t, <-read)
				}
				closeBoth(d, a)
				m.inject(ev) // nobody is there
			})
		})
	}
}

// Eight connections end when the network is taken away under the device, which is the only way for it to go; the listener lives, and when
// the network is back it serves.
//
// fault: DEATH-6 (software)
func TestSoftwareNetworkGone(t *testing.T) {
	n := newSoftware(t, rdma.SoftwareConfig{}, Config{})
	ln := n.listen(t, n.addr)
	defer ln.Close()
	p := newProxy(t, ln.Addr())
	var ends []*Conn
	errs := make(chan error, 16)
	for range 8 {
		d, a := n.connect(t, ln, p.addr())
		ends = append(ends, d, a)
	}
	for _, c := range ends {
		go func() {
			_, err := c.Read(make([]byte, 1))
			errs <- err
		}()
	}
	for _, c := range ends {
		c.waiting(t, &c.rd)
	}
	p.close()
	within(t, func() {
		for range ends {
			require.ErrorIs(t, <-errs, syscall.ECONNRESET)
		}
		for _, c := range ends {
			require.NoError(t, c.Close())
		}
		_, err := n.dialer().Dial("tcp", p.addr())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		closeBoth(n.connect(t, ln, newProxy(t, ln.Addr()).addr()))
	})
}
