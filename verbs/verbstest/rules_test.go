package verbstest

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// recorder is a testing.TB that keeps errors to itself.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func TestCheckLeaksFindsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fab := NewFabric(Config{})
		defer fab.Close()
		d := fab.Host("a", "10.0.0.1").Device(0)
		pd, err := d.AllocPD()
		require.NoError(t, err)
		stop := d.Watch(func(verbs.AsyncEvent) {})
		r := new(recorder)
		CheckLeaks(r, fab)
		require.Len(t, r.errors, 1)
		require.Contains(t, r.errors[0], "PDs:1")
		require.Contains(t, r.errors[0], "Watches:1")

		// Something that is being closed has time for it.
		time.AfterFunc(time.Second, func() { pd.Close(); stop() })
		r = new(recorder)
		CheckLeaks(r, fab)
		require.Empty(t, r.errors)
	})
}

// broken runs f, which breaks a rule, and expects that to be told.
func broken(t *testing.T, dc DeviceConfig, rule string, f func(n *network)) {
	t.Helper()
	virtually(t, dc, size{recvs: 1}, func(t *testing.T, n *network) {
		f(n)
		r := new(recorder)
		n.a.close()
		n.b.close()
		require.NoError(t, n.ln.Close())
		CheckLeaks(r, n.fab)
		require.Len(t, r.errors, 1)
		require.Contains(t, r.errors[0], rule)
		n.fab.violations = nil // seen
	})
}

func TestViolations(t *testing.T) {
	broken(t, ib, "PD closed with 1 MRs and 1 QPs open", func(n *network) { n.a.pd.Close() })
	broken(t, ib, "CQ closed while a QP uses it", func(n *network) { n.a.recvCQ.Close() })
	broken(t, ib, "completion channel closed while 2 CQs use it", func(n *network) { n.a.ch.Close() })
	broken(t, ib, "ID closed while its QP is open", func(n *network) { n.a.id.Close() })
	broken(t, ib, "MR closed while work requests", func(n *network) { n.a.mr.Close() })
	broken(t, iwarp, "MR closed while work requests", func(n *network) { n.a.mr.Close() })
	broken(t, ib, "MR closed while work requests", func(n *network) {
		n.b.post(sendWR(0, nil)) // uses up the receive
		n.a.received(0, 0)
		n.a.post(n.a.writeWR(1, n.a.sge(0, 8), n.b, 0))
		n.a.mr.Close()
		n.a.failed(1, verbs.StatusLocProtErr)
	})
	broken(t, ib, "a peer reached for an MR that was closed before its QP", func(n *network) {
		wr := n.b.writeWR(1, n.b.sge(0, 8), n.a, 0)
		n.b.post(sendWR(0, n.b.sge(0, 4)))
		n.a.received(0, 4) // which had named it
		n.b.sent(0, verbs.WCSend)
		n.a.mr.Close()
		n.b.post(wr)
		n.b.failed(1, verbs.StatusRemAccessErr)
	})
	broken(t, ib, "two goroutines in Wait", func(n *network) {
		go n.a.ch.Wait(0)
		synctest.Wait()
		require.Error(n.a.t, n.a.ch.Wait(0))
		n.a.ch.Interrupt()
		synctest.Wait()
	})
}

func TestViolationsByHand(t *testing.T) {
	broken := func(rule string, f func(a, b *station) error) {
		t.Helper()
		atHand(t, ib, func(t *testing.T, fab *Fabric, a, b *station) {
			joined(a, b, verbs.UD)
			require.ErrorIs(t, f(a, b), verbs.ErrBusy)
			r := new(recorder)
			a.close()
			b.close()
			CheckLeaks(r, fab)
			require.Len(t, r.errors, 1)
			require.Contains(t, r.errors[0], rule)
			fab.violations = nil // seen
		})
	}
	broken("SRQ closed while a QP uses it", func(a, _ *station) error {
		s := a.shared(1)
		a.make(verbs.RC, s)
		return s.Close()
	})
	broken("PD closed with 0 MRs and 0 QPs open, 1 SRQs and 0 AHs", func(a, _ *station) error {
		pd, err := a.dev.AllocPD()
		require.NoError(t, err)
		a.later(pd.Close)
		s, err := pd.CreateSRQ(verbs.SRQOptions{MaxWR: 1})
		require.NoError(t, err)
		a.later(s.Close)
		return pd.Close()
	})
	broken("PD closed with 0 MRs and 0 QPs open, 0 SRQs and 1 AHs", func(a, b *station) error {
		pd, err := a.dev.AllocPD()
		require.NoError(t, err)
		a.later(pd.Close)
		h, err := pd.CreateAH(by().Path(verbs.Endpoint{LID: 1}))
		require.NoError(t, err)
		a.later(h.Close)
		return pd.Close()
	})
	broken("AH closed while work requests of QP", func(a, b *station) error {
		h := a.handle(b)
		a.post(a.qp, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.Signaled, AH: h, RemoteQPNum: b.qp.Num(), RemoteQKey: 0x1234})
		require.NoError(t, h.Close())
		a.gets(0, verbs.StatusLocQPOpErr)
		return verbs.ErrBusy
	})
	broken("MR closed while work requests of an SRQ name it", func(a, _ *station) error {
		s := a.shared(1)
		mr, err := a.pd.AllocMR(64, verbs.AccessLocalWrite)
		require.NoError(t, err)
		_, err = s.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}}})
		require.NoError(t, err)
		require.NoError(t, mr.Close())
		return verbs.ErrBusy
	})
}

// fault: MEM-7
func TestMemoryIsGoneAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fab := NewFabric(Config{})
		defer fab.Close()
		pd, err := fab.Host("a", "10.0.0.1").Device(0).AllocPD()
		require.NoError(t, err)
		mr, err := pd.AllocMR(10, 0)
		require.NoError(t, err)
		b := mr.Bytes()
		require.NoError(t, mr.Close())
		require.EqualValues(t, 0xdb, b[3])
		require.Empty(t, mr.Bytes())
	})
}

func TestEarlyReuseIsSeen(t *testing.T) {
	for _, dc := range []DeviceConfig{ib, iwarp} {
		virtually(t, dc, size{recvs: 1}, func(t *testing.T, n *network) {
			copy(n.a.mr.Bytes(), "good")
			n.a.post(sendWR(1, n.a.sge(0, 4)))
			copy(n.a.mr.Bytes(), "evil") // before the completion
			n.b.received(0, 4)
			at := n.b.slotAt(0)
			require.Equal(t, "evil", string(n.b.mr.Bytes()[at:at+4]))
		})
	}
}
