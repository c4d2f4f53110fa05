package verbstest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// waitDataThere has the completion arrive before Wait is called.
func (s *suite) waitDataThere(t *testing.T) {
	a, b := s.pair(t, size{recvs: 2})
	for range 2 {
		a.post(sendWR(1, a.sge(0, 4)))
		a.sent(1, verbs.WCSend)
		if a.iwarp() {
			time.Sleep(50 * time.Millisecond) // its completion does not mean that it has arrived
		}
		require.NoError(t, waitFor(s.Patience, b.ch, 0))
		b.nextRecv()
	}
}

// waitFor is Wait that ends with an error when it takes too long.
func waitFor(patience time.Duration, ch verbs.CompletionChannel, spin time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- ch.Wait(spin) }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		ch.Interrupt()
		<-done
		return errors.New("Wait did not return")
	}
}

// waitWakes has it arrive while Wait sleeps.
func (s *suite) waitWakes(t *testing.T) {
	a, b := s.pair(t, size{recvs: 4})
	for i := range 4 {
		done := make(chan error, 1)
		go func() {
			wc, err := b.await(&b.recvs, 0)
			if err == nil {
				err = wc.Err()
			}
			done <- err
		}()
		if i > 0 {
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
		}
		a.post(sendWR(1, a.sge(0, 4)))
		require.NoError(t, <-done)
		a.sent(1, verbs.WCSend)
	}
}

func (s *suite) interrupt(t *testing.T) {
	a, _ := s.pair(t, size{})
	for _, spin := range []time.Duration{0, time.Millisecond, time.Minute} {
		// Before Wait, and more than once.
		a.ch.Interrupt()
		a.ch.Interrupt()
		require.NoError(t, waitFor(s.Patience, a.ch, spin))
		// During Wait, asleep or spinning.
		done := make(chan error, 1)
		go func() { done <- a.ch.Wait(spin) }()
		time.Sleep(5 * time.Millisecond)
		a.ch.Interrupt()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(s.Patience):
			require.Fail(t, "Interrupt did not end Wait")
		}
	}
	require.NoError(t, a.poll())
	require.Empty(t, append(a.sends, a.recvs...))
}

func (s *suite) closeDuringWait(t *testing.T) {
	d := s.device(t)
	for _, spin := range []time.Duration{0, time.Minute} {
		ch, err := d.CreateCompletionChannel()
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- ch.Wait(spin) }()
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, ch.Close())
		select {
		case err = <-done:
			require.ErrorIs(t, err, verbs.ErrClosed)
		case <-time.After(s.Patience):
			require.Fail(t, "Close did not end Wait")
		}
	}
}

// pingPong loses no wake-up, parked or spinning.
func (s *suite) pingPong(t *testing.T) {
	const rounds = 2000
	a, b := s.pair(t, size{recvs: 2})
	play := func(e *side, begins bool) error {
		for i := range rounds {
			if !begins || i > 0 {
				if err := e.turn(i); err != nil {
					return fmt.Errorf("round %d: %w", i, err)
				}
			}
			n, err := e.qp.PostSend([]verbs.SendWR{sendWR(1, e.sge(0, 4))})
			if n != 1 {
				return err
			}
		}
		if begins {
			return e.turn(rounds)
		}
		return nil
	}
	results := make(chan error, 2)
	go func() { results <- play(a, true) }()
	go func() { results <- play(b, false) }()
	for range 2 {
		require.NoError(t, <-results)
	}
}

// turn waits for the peer's message and posts its receive again.
func (e *side) turn(round int) error {
	spin := time.Duration(round%2) * 50 * time.Microsecond
	wc, err := e.await(&e.recvs, spin)
	if err == nil {
		err = wc.Err()
	}
	if err == nil {
		_, err = e.qp.PostRecv([]verbs.RecvWR{{ID: wc.ID, SGL: e.slot(int(wc.ID))}})
	}
	for i := range e.sends {
		err = errors.Join(err, e.sends[i].Err())
	}
	e.sends = e.sends[:0]
	return err
}

// concurrentPosts has several goroutines post on one QP while another reaps.
func (s *suite) concurrentPosts(t *testing.T) {
	const posters, each = 4, 200
	a, b := s.pair(t, size{recvWR: posters * each})
	var wg sync.WaitGroup
	errs := make(chan error, 2*posters)
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				n, err := b.qp.PostRecv([]verbs.RecvWR{{ID: uint64(p*each + i), SGL: b.slot(0)}})
				if n != 1 {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	// No more than the queue holds may be under way, and no device is asked to count them.
	room := make(chan struct{}, 16)
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				room <- struct{}{}
				n, err := a.qp.PostSend([]verbs.SendWR{sendWR(uint64(p*each+i), a.sge(p, 1))})
				if n != 1 {
					errs <- err
					return
				}
			}
		})
	}
	next := make([]int, posters)
	for range posters * each {
		wc := a.nextSend()
		require.NoError(t, wc.Err())
		<-room
		p := int(wc.ID) / each
		require.Equal(t, next[p], int(wc.ID)%each, "order of one goroutine's requests")
		next[p]++
	}
	seen := make(map[uint64]bool)
	for range posters * each {
		wc := b.nextRecv()
		require.NoError(t, wc.Err())
		require.False(t, seen[wc.ID])
		seen[wc.ID] = true
	}
	wg.Wait()
	require.Empty(t, errs)
}
