package verbstest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// watcher collects the asynchronous events of a device.
type watcher struct {
	mu     sync.Mutex
	events []verbs.AsyncEvent
}

func (s *suite) watcher(t *testing.T, d verbs.Device) *watcher {
	w := new(watcher)
	t.Cleanup(d.Watch(func(e verbs.AsyncEvent) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.events = append(w.events, e)
	}))
	return w
}

// of are the events so far of a type that f chooses: others may use the device.
func (w *watcher) of(typ verbs.AsyncEventType, f func(verbs.AsyncEvent) bool) []verbs.AsyncEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.events), func(e verbs.AsyncEvent) bool { return e.Type != typ || !f(e) })
}

// come expects n events in all, and not one more for a moment.
func (s *suite) come(t *testing.T, w *watcher, n int, typ verbs.AsyncEventType, f func(verbs.AsyncEvent) bool) {
	t.Helper()
	s.eventually(t, typ.String(), func() bool { return len(w.of(typ, f)) >= n })
	time.Sleep(10 * time.Millisecond)
	require.Len(t, w.of(typ, f), n, typ)
}

func aboutSRQ(q verbs.SRQ) func(verbs.AsyncEvent) bool {
	return func(e verbs.AsyncEvent) bool { return e.SRQ == q }
}

func aboutCQ(q verbs.CQ) func(verbs.AsyncEvent) bool {
	return func(e verbs.AsyncEvent) bool { return e.CQ == q }
}

func aboutQP(q verbs.QP) func(verbs.AsyncEvent) bool {
	return func(e verbs.AsyncEvent) bool { return e.QPNum == q.Num() }
}
