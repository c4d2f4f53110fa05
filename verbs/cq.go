package verbs

import "time"

// CQOptions describe a completion queue.
type CQOptions struct {
	// Depth is the number of completions that fit, at least 1. It must cover every work request that can be outstanding
	// on the queues that use the CQ, every entry of an SRQ among them: an overrun breaks the CQ and its QPs.
	Depth int

	// Channel is where Wait learns of completions. Nil: the CQ is only polled.
	Channel CompletionChannel

	// SolicitedOnly has only completions of receives whose sender said Solicited, and failed completions, wake Wait. Others
	// are there to be polled. One that comes while Wait makes itself ready to sleep, or within its spin, may still wake it. On Linux's
	// soft-iWARP, which has no such events, every completion wakes it; on Linux's Soft-RoCE a send that fails does not.
	SolicitedOnly bool
}

// CQ is a completion queue.
type CQ interface {
	// Poll takes up to len(wc) completions without blocking and returns their number, 0 when there are none. Only 0 means that: there
	// may be more although wc was not filled.
	Poll(wc []Completion) (int, error)

	// Depth is the capacity that was granted, at least what was asked for.
	Depth() int

	// Close destroys the queue. ErrBusy while a QP uses it.
	Close() error
}

// CompletionChannel is where a goroutine waits for completions. It is the only thing on the data path that blocks.
//
// There is no call to arm a CQ: Wait itself follows the only order that loses no event, poll, arm, poll again, park.
type CompletionChannel interface {
	// Wait returns nil when a CQ of the channel may have completions, or after Interrupt; the caller polls its CQs and looks at
	// its own state, and calls Wait again if there was nothing. For up to spin it watches the CQs without sleeping, unless that has not helped
	// lately; then it sleeps. A wait that is over within 10 ms may hold a thread, of a few that the process has for that; a longer
	// one holds none. At most one goroutine may wait at a time.
	// It returns ErrClosed when the channel is closed and ErrDeviceRemoved when no event can come any more.
	Wait(spin time.Duration) error

	// Parks is how often a Wait has slept up to now. That it did not grow tells a caller that the spin was enough.
	Parks() uint64

	// Interrupt makes the running Wait return, or the next one if none runs. Interrupts do not add up.
	Interrupt()

	// Close ends a running Wait and destroys the channel. ErrBusy while a CQ uses it.
	Close() error
}
