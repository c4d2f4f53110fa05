package verbstest

import (
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) solicitedCases() []testCase {
	return []testCase{
		{"Solicited", s.solicited, nil},
		{"SolicitedImm", s.solicitedImm, operations(verbs.OpSendWithImm)},
		{"SolicitedWriteImm", s.solicitedWriteImm, operations(verbs.OpRDMAWriteWithImm)},
		{"SolicitedFailure", s.solicitedFailure, nil},
		{"SolicitedFailedSend", s.solicitedFailedSend, nil},
		{"SolicitedThere", s.solicitedThere, nil},
	}
}

// parked has a goroutine sleep in Wait, most likely.
func (e *side) parked() <-chan error {
	done := make(chan error, 1)
	go func() { done <- e.ch.Wait(0) }()
	time.Sleep(20 * time.Millisecond)
	return done
}

// wakes expects Wait to return.
func (e *side) wakes(done <-chan error) {
	e.t.Helper()
	select {
	case err := <-done:
		require.NoError(e.t, err)
	case <-time.After(e.patience):
		e.ch.Interrupt()
		<-done
		require.Fail(e.t, "Wait slept on")
	}
}

// sleepsOn reports whether Wait does not return because of a completion. The peer's request is done. The completion is not polled before:
// a Wait that was woken, and looks for what woke it, must find it.
func (s *suite) sleepsOn(t *testing.T, e *side, done <-chan error) (asleep bool) {
	t.Helper()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(30 * time.Millisecond):
		asleep = true
	}
	s.eventually(t, "the completion is there to be polled", func() bool {
		require.NoError(t, e.poll())
		return len(e.recvs) > 0
	})
	require.NoError(t, e.recvs[0].Err())
	e.recvs = e.recvs[1:]
	require.Empty(t, e.recvs)
	return asleep
}

// wakesIfSolicited sends the same with and without Solicited.
func (s *suite) wakesIfSolicited(t *testing.T, wr func(a, b *side) verbs.SendWR) {
	a, b := s.pair(t, size{recvs: 8, solicited: true})
	for range 2 {
		done, woken := b.parked(), 0
		for asleep := 0; asleep < 2 && !s.SolicitedAll; {
			a.post(wr(a, b))
			require.NoError(t, a.nextSendErr())
			if s.sleepsOn(t, b, done) {
				asleep++
				continue
			}
			// On a busy machine Wait may not have slept yet, and returns then. It does so once, or twice.
			woken++
			require.Less(t, woken, 3, "a completion woke Wait that nobody had solicited")
			b.postRecv(99, b.slot(0))
			done = b.parked()
		}
		solicited := wr(a, b)
		solicited.Flags |= verbs.Solicited
		a.post(solicited)
		b.wakes(done)
		require.NoError(t, a.nextSendErr())
		s.eventually(t, "the completion is there", func() bool {
			require.NoError(t, b.poll())
			return len(b.recvs) > 0
		})
		require.Len(t, b.recvs, 1)
		require.NoError(t, b.recvs[0].Err())
		b.recvs = nil
	}
}

func (e *side) nextSendErr() error {
	wc := e.nextSend()
	return wc.Err()
}

func (s *suite) solicited(t *testing.T) {
	s.wakesIfSolicited(t, func(a, _ *side) verbs.SendWR { return sendWR(1, a.sge(0, 8)) })
}

func (s *suite) solicitedImm(t *testing.T) {
	s.wakesIfSolicited(t, func(a, _ *side) verbs.SendWR {
		wr := sendWR(1, a.sge(0, 8))
		wr.Opcode = verbs.OpSendWithImm
		return wr
	})
}

func (s *suite) solicitedWriteImm(t *testing.T) {
	s.wakesIfSolicited(t, func(a, b *side) verbs.SendWR { return a.writeImmWR(1, a.sge(0, 8), b, 0, 5) })
}

// solicitedFailure wakes Wait by receives that come back.
func (s *suite) solicitedFailure(t *testing.T) {
	_, b := s.pair(t, size{recvs: 2, solicited: true})
	done := b.parked()
	require.NoError(t, b.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState))
	b.wakes(done)
	for i := range 2 {
		s.eventually(t, "the receive is flushed", func() bool {
			require.NoError(t, b.poll())
			return len(b.recvs) > i
		})
		require.Equal(t, verbs.StatusWRFlushErr, b.recvs[i].Status)
	}
}

// solicitedFailedSend wakes Wait by a request that fails. It has no receives, which come back too then.
func (s *suite) solicitedFailedSend(t *testing.T) {
	a, b := s.pair(t, size{solicitedSends: true})
	done := a.parked()
	wr := a.readWR(1, a.sge(0, 8), b, 0)
	wr.RKey ^= 0x5a5a00
	a.post(wr)
	if s.SolicitedSendSilent {
		s.eventually(t, "the request has failed", func() bool {
			require.NoError(t, a.poll())
			return len(a.sends) > 0
		})
		a.ch.Interrupt()
	}
	a.wakes(done)
	require.Error(t, a.nextSendErr())
}

// solicitedThere calls Wait when what was solicited is there already, behind what was not.
func (s *suite) solicitedThere(t *testing.T) {
	a, b := s.pair(t, size{recvs: 4, solicited: true})
	wr := sendWR(1, a.sge(0, 8))
	wr.Flags |= verbs.Solicited
	a.post(sendWR(1, a.sge(0, 8)), wr)
	require.NoError(t, a.nextSendErr())
	require.NoError(t, a.nextSendErr())
	require.NoError(t, waitFor(s.Patience, b.ch, 0))
	for len(b.recvs) < 2 {
		s.eventually(t, "both are there", func() bool {
			require.NoError(t, b.poll())
			return len(b.recvs) > 1
		})
	}
}
