//go:build linux && cgo

package rdmacore

import (
	"context"
	"errors"
	"testing"
)

// TestAcceptPassesOn: an Accept that was woken but whose context has ended leaves the request to another one that waits.
func TestAcceptPassesOn(t *testing.T) {
	l := &listener{wake: make(chan struct{}, 1), done: make(chan struct{}), backlog: 1}
	if !l.enqueue(&id{}) {
		t.Fatal("no place in an empty queue")
	}
	<-l.wake // as the first Accept does
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	select {
	case <-l.wake:
	default:
		t.Error("the other Accept sleeps on")
	}
}
