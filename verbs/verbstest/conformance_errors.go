package verbstest

import (
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// remoteAccess reaches for memory of the peer that it may not have. Nothing must come of it but an error.
func (s *suite) remoteAccess(t *testing.T) {
	with := func(change func(wr *verbs.SendWR, b *side)) func(a, b *side) verbs.SendWR {
		return func(a, b *side) verbs.SendWR {
			wr := a.writeWR(1, a.sge(0, 64), b, 0)
			change(&wr, b)
			return wr
		}
	}
	for _, c := range []struct {
		name string
		wr   func(a, b *side) verbs.SendWR
	}{
		{"wrong key", with(func(wr *verbs.SendWR, b *side) { wr.RKey ^= 0x5a5a00 })},
		{"below", with(func(wr *verbs.SendWR, b *side) { wr.RemoteAddr -= 32 })},
		{"past the end", with(func(wr *verbs.SendWR, b *side) { wr.RemoteAddr += uint64(len(b.mr.Bytes())) - 63 })},
		{"far away", with(func(wr *verbs.SendWR, b *side) { wr.RemoteAddr = ^uint64(0) - 31 })},
		{"no write", with(func(wr *verbs.SendWR, b *side) {
			*wr = at(*wr, b.region(4096, verbs.AccessLocalWrite|verbs.AccessRemoteRead), 0)
		})},
		{"no read", with(func(wr *verbs.SendWR, b *side) {
			wr.Opcode = verbs.OpRDMARead
			*wr = at(*wr, b.region(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite), 0)
		})},
		{"read by a wrong key", with(func(wr *verbs.SendWR, b *side) {
			wr.Opcode = verbs.OpRDMARead
			wr.RKey ^= 0x5a5a00
		})},
		{"read past the end", with(func(wr *verbs.SendWR, b *side) {
			wr.Opcode = verbs.OpRDMARead
			wr.RemoteAddr += uint64(len(b.mr.Bytes())) - 63
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "no read" && s.ReadUnchecked {
				return
			}
			a, b := s.pair(t, size{recvs: 1})
			before := string(b.mr.Bytes())
			own := string(a.mr.Bytes()[1024:])
			fill(a.mr.Bytes()[:64], 9)
			wr := c.wr(a, b)
			a.post(wr)
			if s.ReadUnchecked && wr.Opcode == verbs.OpRDMARead {
				// The kernel's soft-iWARP may not even end the connection.
				time.Sleep(100 * time.Millisecond)
				require.NoError(t, a.poll())
				for _, wc := range a.sends {
					require.Error(t, wc.Err())
				}
			} else if wr.Opcode == verbs.OpRDMARead {
				s.requireRefused(t, a, b, verbs.StatusRemAccessErr)
			} else {
				s.requireBroken(t, a, b, verbs.StatusRemAccessErr)
			}
			require.Equal(t, before, string(b.mr.Bytes()))
			require.Equal(t, own, string(a.mr.Bytes()[1024:]))
		})
	}

	t.Run("another PD", func(t *testing.T) {
		a, b := s.pair(t, size{recvs: 1})
		pd, err := b.dev.AllocPD()
		require.NoError(t, err)
		mr, err := pd.AllocMR(4096, allAccess)
		require.NoError(t, err)
		fill(a.mr.Bytes()[:64], 9)
		wr := a.writeWR(1, a.sge(0, 64), b, 0)
		wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
		a.post(wr)
		s.requireBroken(t, a, b, verbs.StatusRemAccessErr)
		require.Equal(t, make([]byte, 4096), mr.Bytes())
		require.NoError(t, mr.Close())
		require.NoError(t, pd.Close())
	})
}

// requireBroken expects a's request 1 to have been refused by the peer's device, with one of the statuses. InfiniBand tells by its status;
// on iWARP a SEND or WRITE may have been handed over with success, and then the connection ends. Each side has receive 0 posted.
func (s *suite) requireBroken(t *testing.T, a, b *side, statuses ...verbs.Status) {
	t.Helper()
	s.requireToldOfRefusal(t, a, b, statuses...)
	// Both queue pairs are in the error state: the receives come back.
	for _, e := range []*side{a, b} {
		wc := e.nextRecv()
		require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(t, 0, wc.ID)
		e.inError()
	}
}

func (s *suite) requireToldOfRefusal(t *testing.T, a, b *side, statuses ...verbs.Status) {
	t.Helper()
	if a.iwarp() {
		a.disconnected()
		b.disconnected()
	} else {
		wc := a.nextSend()
		require.Contains(t, statuses, wc.Status)
		require.EqualValues(t, 1, wc.ID)
		require.ErrorIs(t, wc.Err(), &verbs.CompletionError{Status: wc.Status})
	}
}

// requireRefused is requireBroken for a READ or atomic, which never succeeds.
func (s *suite) requireRefused(t *testing.T, a, b *side, statuses ...verbs.Status) {
	t.Helper()
	if a.iwarp() {
		wc := a.nextSend()
		require.Contains(t, append(statuses, verbs.StatusWRFlushErr), wc.Status)
		require.EqualValues(t, 1, wc.ID)
	}
	s.requireBroken(t, a, b, statuses...)
}

// inError posts to a QP in the error state. What completes is flushed; Linux's software devices do not complete everything
// that is posted there.
func (e *side) inError() {
	e.t.Helper()
	require.NoError(e.t, e.poll())
	e.sends, e.recvs = nil, nil
	wr := sendWR(50, e.sge(0, 4))
	wr.Flags = 0
	_, _ = e.qp.PostSend([]verbs.SendWR{wr})
	_, _ = e.qp.PostRecv([]verbs.RecvWR{{ID: 51, SGL: e.slot(0)}})
	time.Sleep(5 * time.Millisecond)
	require.NoError(e.t, e.poll())
	require.LessOrEqual(e.t, len(e.sends), 1)
	require.LessOrEqual(e.t, len(e.recvs), 1)
	for _, wc := range e.sends {
		require.Equal(e.t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(e.t, 50, wc.ID)
	}
	for _, wc := range e.recvs {
		require.Equal(e.t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(e.t, 51, wc.ID)
	}
}

// localAccess names memory of its own that it may not use. Devices differ in how they say it, at the post or by a completion.
func (s *suite) localAccess(t *testing.T) {
	fails := func(t *testing.T, e *side, wr verbs.SendWR) {
		t.Helper()
		n, err := e.qp.PostSend([]verbs.SendWR{wr})
		if err != nil {
			require.Zero(t, n)
			return
		}
		wc := e.nextSend()
		require.Contains(t, []verbs.Status{
			verbs.StatusLocProtErr, verbs.StatusLocQPOpErr, verbs.StatusLocAccessErr, verbs.StatusLocLenErr, verbs.StatusGeneralErr,
		}, wc.Status)
		require.Equal(t, wr.ID, wc.ID)
	}
	t.Run("wrong key", func(t *testing.T) {
		a, b := s.pair(t, size{})
		sgl := a.sge(0, 64)
		sgl[0].LKey ^= 0x5a5a00
		fails(t, a, a.writeWR(1, sgl, b, 0))
	})
	t.Run("past the end", func(t *testing.T) {
		a, b := s.pair(t, size{})
		fails(t, a, a.writeWR(1, a.sge(len(a.mr.Bytes())-63, 64), b, 0))
	})
	t.Run("another PD", func(t *testing.T) {
		a, b := s.pair(t, size{})
		pd, err := a.dev.AllocPD()
		require.NoError(t, err)
		mr, err := pd.AllocMR(4096, allAccess)
		require.NoError(t, err)
		fails(t, a, a.writeWR(1, []verbs.SGE{{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()}}, b, 0))
		require.NoError(t, a.qp.Close())
		require.NoError(t, mr.Close())
		require.NoError(t, pd.Close())
	})
}

// shortReceive sends more than the receive takes.
func (s *suite) shortReceive(t *testing.T) {
	a, b := s.pair(t, size{})
	b.postRecv(5, b.sge(1000, 10))
	fill(a.mr.Bytes()[:100], 1)
	a.post(sendWR(1, a.sge(0, 100)))
	wc := b.nextRecv()
	require.NotEqual(t, verbs.StatusSuccess, wc.Status)
	require.EqualValues(t, 5, wc.ID)
	require.Equal(t, make([]byte, 90), b.mr.Bytes()[1010:1100])
	if a.iwarp() {
		a.disconnected()
		return
	}
	wc = a.nextSend()
	require.Contains(t, []verbs.Status{verbs.StatusRemInvReqErr, verbs.StatusRemOpErr}, wc.Status) // Soft-RoCE says the latter
	require.EqualValues(t, 1, wc.ID)
}

// flush moves a QP to the error state: everything outstanding comes back, in order and once.
func (s *suite) flush(t *testing.T) {
	a, b := s.pair(t, size{recvs: 8})
	sends := 0
	if a.dev.Attr().Caps.RNR {
		// The peer uses up its receives, so that these wait. Every other one is unsignaled.
		for i := range 8 {
			a.post(sendWR(uint64(100+i), a.sge(0, 4)))
		}
		for i := range 8 {
			b.received(uint64(i), 4)
			a.sent(uint64(100+i), verbs.WCSend)
		}
		for sends = range 6 {
			wr := sendWR(uint64(sends), a.sge(0, 4))
			if sends%2 == 0 {
				wr.Flags = 0
			}
			a.post(wr)
		}
		sends++
	}
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	for i := range 8 {
		wc := a.nextRecv()
		require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(t, i, wc.ID)
	}
	for i := range sends {
		wc := a.nextSend()
		require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
		require.EqualValues(t, i, wc.ID)
	}
	require.NoError(t, a.poll())
	require.Empty(t, a.sends)
	require.Empty(t, a.recvs)
	a.inError()
	if !a.iwarp() {
		q, err := a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPError, q.State)
	}
}
