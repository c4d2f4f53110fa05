package verbstest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) misuseCases() []testCase {
	return []testCase{
		{"CQOverrun", s.cqOverrun, nil},
		{"AccessEvent", s.accessEvent, nil},
		{"ClosedPD", s.closedPD, nil},
		{"CloseWhileBusy", s.closeWhileBusy, nil},
		{"CloseWhileBusySRQ", s.closeWhileBusySRQ, srqs},
	}
}

// cqOverrun has more completions come than the CQ holds: an event names it, its QPs are of no more use, others go on.
func (s *suite) cqOverrun(t *testing.T) {
	const most = 200
	a, b := s.pairAs(t, end{size{sendWR: most}, param()}, end{size{recvWR: most, recvDepth: 4}, param()})
	w := s.watcher(t, b.dev)
	n := min(2*b.recvCQ.Depth()+16, most)
	for i := range n {
		b.postRecv(uint64(i), b.slot(i))
	}
	for i := range n {
		wr := sendWR(uint64(i), a.sge(0, 4))
		if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
			break // the connection has ended
		}
	}
	if s.OverrunSilent {
		time.Sleep(20 * time.Millisecond)
	} else {
		s.eventually(t, "an event about the CQ", func() bool { return len(w.of(verbs.EventCQErr, aboutCQ(b.recvCQ))) > 0 })
	}
	// What fitted may be taken, in order; then there may be an error.
	wc := make([]verbs.Completion, n)
	got, err := b.recvCQ.Poll(wc)
	if err == nil {
		for i := range got {
			require.EqualValues(t, i, wc[i].ID)
		}
		_, _ = b.recvCQ.Poll(wc)
	}
	b.close()
	a.close()
	a, b = s.pair(t, size{})
	a.sync(b)
}

// accessEvent reaches for memory that it may not have. If an event tells the owner, it names his QP.
func (s *suite) accessEvent(t *testing.T) {
	a, b := s.pair(t, size{recvs: 1})
	w := s.watcher(t, b.dev)
	wr := a.writeWR(1, a.sge(0, 8), b, 0)
	wr.RKey ^= 0x5a5a00
	a.post(wr)
	s.requireBroken(t, a, b, verbs.StatusRemAccessErr)
	time.Sleep(10 * time.Millisecond)
	all := func(verbs.AsyncEvent) bool { return true }
	events := append(w.of(verbs.EventQPAccessErr, all), w.of(verbs.EventQPReqErr, all)...)
	for _, e := range events {
		require.Contains(t, []uint32{a.qp.Num(), b.qp.Num()}, e.QPNum, "%v", e)
	}
	t.Logf("%d events", len(events))
}

// closedPD makes nothing of a PD that is closed.
func (s *suite) closedPD(t *testing.T) {
	d := s.device(t)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 100), allAccess)
	require.NoError(t, err)
	require.ErrorIs(t, pd.Close(), verbs.ErrBusy)
	require.NoError(t, mr.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, pd.Close())
	_, err = pd.AllocMR(100, allAccess)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = pd.RegMR(make([]byte, 100), allAccess)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.Equal(t, d, pd.Device())
}

// closeWhileBusy closes everything while goroutines post, poll, wait and ask.
func (s *suite) closeWhileBusy(t *testing.T) {
	for i := range 15 {
		a, b := s.pair(t, size{recvs: 8})
		s.closeBusy(t, i, a, b, nil)
	}
}

func (s *suite) closeWhileBusySRQ(t *testing.T) {
	for i := range 15 {
		p := s.pool(t, 16)
		as, bs := s.pairs(t, p, 1)
		p.post(0, 8)
		s.closeBusy(t, i, as[0], bs[0], p)
	}
}

// closeBusy has goroutines use both ends until they are closed, which two do at the same time.
func (s *suite) closeBusy(t *testing.T, round int, a, b *side, p *pool) {
	var users, closers sync.WaitGroup
	failed := make(chan error, 64)
	use := func(what string, f func() error) {
		users.Go(func() {
			for end := time.Now().Add(s.Patience); ; runtime.Gosched() {
				if err := f(); errors.Is(err, verbs.ErrClosed) {
					return
				}
				if time.Now().After(end) {
					failed <- fmt.Errorf("%s goes on after Close", what)
					return
				}
			}
		})
	}
	for _, e := range []*side{a, b} {
		peer := a
		if e == a {
			peer = b
		}
		sends := []verbs.SendWR{
			sendWR(1, e.sge(0, 4)), e.writeWR(2, e.sge(0, 100), peer, 0), e.readWR(3, e.sge(200, 100), peer, 0),
		}
		recvs := []verbs.RecvWR{{ID: 4, SGL: e.slot(0)}}
		wc := make([]verbs.Completion, 16)
		use("PostSend", func() error { _, err := e.qp.PostSend(sends); return err })
		use("Query", func() error { _, err := e.qp.Query(); return err })
		use("Poll", func() error {
			_, err := e.sendCQ.Poll(wc)
			if err != nil {
				return err
			}
			_, err = e.recvCQ.Poll(wc)
			return err
		})
		use("Wait", func() error { return e.ch.Wait(0) })
		if p == nil || e == a {
			use("PostRecv", func() error { _, err := e.qp.PostRecv(recvs); return err })
		}
	}
	if p != nil {
		entries := []verbs.RecvWR{{ID: 5, SGL: []verbs.SGE{piece(p.mr, 0, 64)}}}
		use("PostRecv of the SRQ", func() error { _, err := p.srq.PostRecv(entries); return err })
		use("SetLimit", func() error { return p.srq.SetLimit(2) })
		use("Query of the SRQ", func() error { _, err := p.srq.Query(); return err })
	}
	time.Sleep(time.Duration(round%5) * time.Millisecond / 2)
	for range 2 {
		closers.Go(func() { failed <- errors.Join(s.closeAll(a), s.closeAll(b), s.closePool(p)) })
	}
	closers.Wait()
	users.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
}

// closeAll is close for two goroutines at the same time: what the other one is about to close is busy for a while.
func (s *suite) closeAll(e *side) error {
	var all error
	for _, f := range []func() error{e.qp.Close, e.recvCQ.Close, e.sendCQ.Close, e.ch.Close, e.mr.Close} {
		all = errors.Join(all, s.untilFree(f))
	}
	if !e.guest {
		all = errors.Join(all, s.untilFree(e.pd.Close))
	}
	if e.id != nil {
		all = errors.Join(all, s.untilFree(e.id.Close))
	}
	return all
}

func (s *suite) closePool(p *pool) error {
	if p == nil {
		return nil
	}
	return errors.Join(s.untilFree(p.srq.Close), s.untilFree(p.mr.Close), s.untilFree(p.pd.Close))
}

func (s *suite) untilFree(f func() error) error {
	for end := time.Now().Add(s.Patience); ; time.Sleep(time.Millisecond) {
		if err := f(); !errors.Is(err, verbs.ErrBusy) || time.Now().After(end) {
			return err
		}
	}
}
