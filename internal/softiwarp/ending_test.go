package softiwarp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// fillStream has v send until TCP takes no more: a goroutine waits to send the rest.
func fillStream(t *testing.T, v *end, n int) {
	for range 32 {
		v.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: v.sge(0, n), RKey: 7})
	}
	q := v.qp.(*qp)
	eventually(t, "sending is stuck", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		before := q.sent
		q.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		q.mu.Lock()
		return q.sending && q.sent == before
	})
}

// TestEndWhileStuck ends a connection while TCP takes nothing: when the peer reads again it finds whole FPDUs, the Terminate message if
// there is a reason for one, and the stream's orderly end.
func TestEndWhileStuck(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	for _, terminated := range []bool{true, false} {
		peer, v := victim(t, ln, enhanced(0), param(), pairSize{memory: 1 << 20})
		peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
		fillStream(t, v, 1<<20)
		if terminated {
			peer.write(peer.fpdu(tagged(opWrite, 99, 0), []byte("x")))
		} else {
			require.NoError(t, v.id.Disconnect())
		}
		v.disconnected(t)
		var last header
		for {
			var b [1]byte
			if _, err := peer.conn.Read(b[:]); err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
			unread := &prefixed{Conn: peer.conn, b: b[:]}
			last, _ = (&rawPeer{t: t, conn: unread}).read()
		}
		require.Equal(t, terminated, last.op == opTerminate, "%+v", last)
	}
}

// prefixed reads b before the rest.
type prefixed struct {
	net.Conn
	b []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.b) > 0 {
		n := copy(b, p.b)
		p.b = p.b[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// TestClosedBeforeSent closes a region that a posted request still names: the peer is told that the fault is not its.
func TestClosedBeforeSent(t *testing.T) {
	ln := listen(t, New(Config{Logger: quiet}), cm.ListenOptions{})
	peer, v := victim(t, ln, enhanced(0), param(), pairSize{})
	q := v.qp.(*qp)
	q.mu.Lock()
	q.gate.Stop()
	q.gated = true
	q.mu.Unlock()
	m, err := v.pd.AllocMR(4096, allAccess)
	require.NoError(t, err)
	v.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.Signaled, SGL: []verbs.SGE{{Addr: m.Addr(), Length: 4096, LKey: m.LKey()}}})
	require.NoError(t, m.Close())
	peer.write(peer.fpdu(tagged(opWrite, 1, 0), nil))
	peer.terminated(&faultLocal)
	require.Equal(t, verbs.StatusWRFlushErr, v.reap(t).Status)
}

// TestFlushWaitsForReceiver: a READ that flushes gives its memory back, so it must not while a part of the answer is on its way there.
func TestFlushWaitsForReceiver(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	q := x.qp.(*qp)
	eventually(t, "nobody else receives", func() bool { // after a wait the duty is vacant for a moment
		y.send(t, 1)
		x.recv(t)
		return q.duty.take()
	})
	defer func() {
		q.endReceiving(false) // once more, if the test has failed before
		q.duty.leave()
	}()
	q.mu.Lock()
	q.gate, q.gated = nil, true // nothing is sent
	q.receiving = true          // a system call places what comes
	q.mu.Unlock()
	x.post(t, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.Signaled, SGL: x.sge(0, 8), RKey: 7})
	require.NoError(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	n, err := x.cq.Poll(x.wcs[:])
	require.NoError(t, err)
	require.Zero(t, n)
	q.endReceiving(false)
	require.Equal(t, verbs.StatusWRFlushErr, x.reap(t).Status)
}
