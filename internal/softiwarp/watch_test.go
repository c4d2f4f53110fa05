package softiwarp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
)

// watching starts a Wait that watches the socket for as long as the test may take, and never sleeps. What it waited for before has made it
// the only one that waits.
func watching(t *testing.T, x, y *end) chan error {
	t.Helper()
	done := make(chan error, 1)
	for range 50 {
		for range aloneWaits + 1 {
			x.send(t, 1)
			y.recv(t)
		}
		parks := y.ch.Parks()
		go func() { done <- y.ch.Wait(2 * patience) }()
		q := y.qp.(*qp)
		eventually(t, "a waiter receives, or sleeps beside the servant", func() bool {
			return q.duty.holds(waiter) || y.ch.Parks() > parks
		})
		time.Sleep(time.Millisecond) // it would sleep by now
		if y.ch.Parks() == parks {
			require.Empty(t, done)
			return done
		}
		y.ch.Interrupt()
		returns(t, done)
	}
	t.Fatal("it never watches")
	return nil
}

// TestWatch has what ends a Wait come while it watches. None of them takes the time that it may watch for.
//
// fault: CLOSE-10 (software)
func TestWatch(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, x, y *end){
		"message":    func(_ *testing.T, x, _ *end) { x.send(t, 1) },
		"completion": func(_ *testing.T, _, y *end) { y.send(t, 1) },
		"interrupt":  func(_ *testing.T, _, y *end) { y.ch.Interrupt() },
		"disconnect": func(t *testing.T, x, y *end) {
			require.NoError(t, x.id.Disconnect())
			y.disconnected(t)
		},
		"own disconnect": func(t *testing.T, _, y *end) { require.NoError(t, y.id.Disconnect()) },
	} {
		t.Run(name, func(t *testing.T) {
			x, y := newPair(t, Config{}, pairSize{})
			done, parks := watching(t, x, y), y.ch.Parks()
			test(t, x, y)
			returns(t, done)
			require.Equal(t, parks, y.ch.Parks())
		})
	}
}

// TestWatchClose closes the queue pair under a waiter that watches, and does not wait for him.
//
// fault: CLOSE-10 (software)
func TestWatchClose(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	done := watching(t, x, y)
	require.NoError(t, y.qp.Close())
	y.ch.Interrupt()
	returns(t, done)
}

// TestWatchAlone has a waiter sleep at once where others wait too: one that watches keeps a processor from them.
func TestWatchAlone(t *testing.T) {
	p := New(Config{Logger: quiet})
	ln := listen(t, p, cm.ListenOptions{})
	x, y := connectEnds(t, p, ln, pairSize{}, pairSize{})
	u, v := connectEnds(t, p, ln, pairSize{}, pairSize{})
	for range 3 * aloneWaits { // the duty is a waiter's soon
		x.send(t, 1)
		y.recv(t)
		u.send(t, 1)
		v.recv(t)
	}
	parks, done := y.ch.Parks(), make(chan error, 1)
	go func() { done <- y.ch.Wait(2 * patience) }()
	eventually(t, "it sleeps", func() bool { return y.ch.Parks() > parks })
	y.ch.Interrupt()
	returns(t, done)

	done = watching(t, x, y)
	x.send(t, 1)
	returns(t, done)
}
