package verbstest

import (
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) disconnect(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	for _, late := range []bool{false, true} {
		a, b := s.connect(t, ln, size{recvs: 3})
		if !late {
			b.listen()
		}
		require.NoError(t, a.id.Disconnect())
		require.NoError(t, a.id.Disconnect())
		for i := range 3 {
			wc := a.nextRecv()
			require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
			require.EqualValues(t, i, wc.ID)
		}
		if late {
			time.Sleep(30 * time.Millisecond) // most likely the event is there
		}
		b.disconnected()
		require.NoError(t, b.id.Disconnect())
		for i := range 3 {
			wc := b.nextRecv()
			require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
			require.EqualValues(t, i, wc.ID)
		}
		a.close()
		b.close()
	}
}

func (s *suite) closeIsDisconnect(t *testing.T) {
	a, b := s.pair(t, size{})
	b.postRecv(1, b.slot(0))
	a.post(sendWR(1, a.sge(0, 4)))
	b.received(1, 4)
	a.close()
	b.disconnected()
	b.close()
}

func (s *suite) bothDisconnect(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	for range 50 {
		a, b := s.connect(t, ln, size{recvs: 2})
		var wg sync.WaitGroup
		for _, e := range []*side{a, b} {
			wg.Go(func() {
				if err := e.id.Disconnect(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		a.disconnected()
		b.disconnected()
		a.close()
		b.close()
	}
}

// cycles makes many connections, one after the other, and leaves nothing of them.
func (s *suite) cycles(t *testing.T) {
	ln := s.listen(t, cm.ListenOptions{})
	for i := range 100 {
		a, b := s.connect(t, ln, size{recvs: 2, memory: 4096})
		a.post(sendWR(1, a.sge(0, 4)))
		b.received(0, 4)
		if i%2 == 0 {
			a.close()
			b.close()
		} else {
			b.close()
			a.close()
		}
	}
	require.NoError(t, ln.Close())
	s.leaks(t)
}
