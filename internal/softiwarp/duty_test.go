package softiwarp

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (d *duty) holds(h holder) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holder == h
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), what)
	}
}

// TestDuty follows the duty to receive: the servant has it first, gives way to a waiter who slept beside him, and takes it back when
// none comes any more.
func TestDuty(t *testing.T) {
	x, y := newPair(t, Config{}, pairSize{})
	d := &y.qp.(*qp).duty
	require.True(t, d.holds(servant))
	got := make(chan struct{})
	go func() {
		for range 3 {
			y.recv(t)
			got <- struct{}{}
		}
	}()
	eventually(t, "a waiter sleeps beside the servant", y.ch.(*channel).follows.Load)
	x.send(t, 1)
	<-got
	eventually(t, "the next wait has the duty", func() bool { return d.holds(waiter) })
	x.send(t, 1)
	<-got
	eventually(t, "the next wait has the duty", func() bool { return d.holds(waiter) })
	x.send(t, 1)
	<-got // nobody waits any more
	eventually(t, "the servant takes over", func() bool { return d.holds(servant) })

	// Idle, it stays so, and no timer runs.
	time.Sleep(5 * vacancy)
	d.mu.Lock()
	require.False(t, d.ticks)
	d.mu.Unlock()

	// An interrupted waiter leaves it too.
	done := make(chan error, 1)
	go func() { done <- y.ch.Wait(0) }()
	y.ch.Interrupt()
	require.NoError(t, <-done)
	x.send(t, 1)
	y.recv(t)
}

// TestDutyEnds has the connection end while a waiter has the duty, while the servant has it, and while nobody has.
func TestDutyEnds(t *testing.T) {
	for name, state := range map[string]func(e *end, peer *end){
		"servant": func(*end, *end) {},
		"vacant": func(e *end, peer *end) {
			peer.send(t, 1)
			e.recv(t)
		},
		"waiter": func(e *end, peer *end) {
			for range 3 {
				peer.send(t, 1)
				e.recv(t)
			}
			go func() { _ = e.ch.Wait(0) }()
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := newPair(t, Config{}, pairSize{})
			state(y, x)
			require.NoError(t, y.id.Disconnect())
			y.disconnected(t)
			x.disconnected(t)
			y.ch.Interrupt()
			dev := y.id.Device().(*device)
			eventually(t, "both TCP connections are closed", func() bool { return dev.open.streams.Load() == 0 })
		})
	}
}
