// Package softiwarp is the software device: iWARP in user space over ordinary TCP connections, a provider behind packages cm and verbs
// that exists on every host. It speaks MPA (RFC 5044, with RFC 6581), DDP (RFC 5041), RDMAP (RFC 5040) and RFC 7306's immediate data
// and atomics, with its like, with RDMA NICs that do iWARP, and with Linux's soft-iWARP.
//
// # Who receives
//
// Each connection has one goroutine of its own, the servant. It sleeps in the runtime's poller until something comes, and places what
// comes where it belongs: short payloads by way of a buffer, the rest of long ones straight from the socket into registered
// memory (readv). But a goroutine that waits on the completion channel of a single QP takes that duty over (type duty), so that what
// comes in wakes the one that wants it. When it leaves, the duty is vacant for a moment, since the next wait is likely to come soon; if
// none does, the servant takes it: after a millisecond or two, or up to 32 when waits had come one after the other. So READs are answered,
// and the peer's end is noticed, whatever the program does; and one that waits again and again pays for no hop. A waiter on a channel
// of several QPs leaves all of them to their servants.
//
// Before a waiter who receives goes to sleep he watches the socket for the time of Wait's spin, unless those of other QPs receive too, or
// it did not help lately: each look is a system call.
//
// # Who sends
//
// Whoever posts: requests become FPDUs in one writev, headers and short payloads copied, long ones in place. What TCP does not take
// at once is left to a goroutine that lives until it is sent; meanwhile others only queue. Small requests in a row, without a word from the
// peer, are gathered: a goroutine sends what there is when it gets to run, or the poster when there are 16, or when he waits. So neither posting nor receiving ever waits for
// the peer, and two sides that both send cannot block each other. A request completes when TCP has it all: its memory can be used
// again, and nothing is said about the peer.
//
// # Where receives come from
//
// From the QP's own queue, or from an SRQ: the first segment of a message that needs a receive takes the oldest entry over to the QP. It is the
// QP's then until it completes, flushed if the connection ends before. A peer that never sends the rest of its message keeps one. If there
// is none, the connection ends, as with an empty receive queue: iWARP has no retry. In both kinds of queue an entry is free again when its
// completion is polled, so a CQ that has room for all entries is never overrun.
//
// A waiter whose CQs are for solicited events alone still receives, if it leads; other completions do not make Wait return.
//
// # What it costs
//
// A connection costs a goroutine, some 40 KiB of buffers (300 KiB with CRCs) besides its queues, and no processor time while it is idle.
//
// # What a peer may do
//
// Keys are random, and every key, address and length is checked against the protection domain, the access and the bounds before a byte
// is placed; a violation ends the connection with RFC 5040's Terminate message. With CRCs nothing of an FPDU is placed before it was
// checked. Memory is held by a count while a system call or a copy touches it, so that a region that is closed too early gives errors, not
// a crash. A listener bounds the peers that have not sent their request, and the rejected ones that do not
// leave, in number and time.
//
// # Memory
//
// AllocMR maps memory outside Go's heap, which is taken by the page, as it is touched. Memory of the caller's (RegMR) may be of the heap: it is
// kept alive and pinned, and the race detector sees what the device does to it. Memory is never locked, pages may have any size, and
// bytes are placed in whatever order they come: AccessOnDemand, AccessHugeTLB and AccessRelaxedOrdering are taken and change
// nothing. With AccessZeroBased work requests and the wire have offsets.
//
// Atomics of peers are executed with the processor's own instructions, as those of package sync/atomic: the program and its peers
// may change the same word (verbs.AtomicGlob). It must lie at a multiple of 8 in memory, also where addresses begin at 0.
//
// # Deviations
//
// The dialing side opens every connection with a WRITE of no bytes, which a peer's program does not see: the accepting side must not
// send before it has heard something (RFC 5044, section 7.1), and so need not wait until its program's turn. Against a dialing side that
// does not, the gate opens after 30 ms, unless it has promised to begin (peer-to-peer, RFC 6581). SEND WITH IMM, which RFC 7306 does not
// have, uses two opcodes that are not assigned, with the immediate where SEND with invalidate has the key; a peer that does not know
// them terminates.
package softiwarp
