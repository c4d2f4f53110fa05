package main

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/rconn/rdma/verbs"
)

// kind is what the other process does with a connection.
type kind uint8

const (
	idle   kind = iota // nothing: the operation is one-sided
	echo               // sends every message back by the same operation
	answer             // sends a message of the full size for every one
	sink               // takes messages, and grants more from time to time
)

// work is an operation, and how it is measured.
type work struct {
	name  string
	op    verbs.Opcode
	timed string // what the latency is
	late  kind   // what the peer does for the latency
	fast  kind   // for the rate
	rated bool   // it has a rate
	like  string // the work that its latency is compared with
}

const (
	send     = "SEND"
	answered = "SEND, answered"
	write    = "WRITE"
	readBack = "WRITE, then READ"

	oneWay     = "one way"
	roundTrip  = "there and back"
	completion = "to the completion"
)

// works are in the order of the tables. A one-way time is half of that there and back.
var works = []work{
	{send, verbs.OpSend, oneWay, echo, sink, true, send},
	{answered, verbs.OpSend, roundTrip, answer, sink, false, answered},
	{write, verbs.OpRDMAWrite, completion, idle, idle, true, answered},
	{readBack, verbs.OpRDMAWrite, completion, idle, idle, false, answered},
	{"WRITE WITH IMM", verbs.OpRDMAWriteWithImm, oneWay, echo, sink, true, send},
	{"READ", verbs.OpRDMARead, completion, idle, idle, true, answered},
	{"FETCH AND ADD", verbs.OpAtomicFetchAndAdd, completion, idle, idle, true, answered},
	{"CMP AND SWAP", verbs.OpAtomicCmpAndSwp, completion, idle, idle, true, answered},
}

// benchCase is a work of one size.
type benchCase struct {
	work
	size    int
	results []result
}

// result is what one round gave.
type result struct {
	median, p99 time.Duration // latency
	ops         float64       // a second
	cpu         float64       // seconds of the peer's process for each operation of the rate
}

// casesFor says what can be measured on a device, sizes together, and what it lacks.
func casesFor(dev verbs.Device, o options) (cases []benchCase, lacking []string) {
	caps := dev.Attr().Caps
	for _, size := range o.sizes {
		for _, w := range works {
			atomic := w.op == verbs.OpAtomicFetchAndAdd || w.op == verbs.OpAtomicCmpAndSwp
			always := w.name == send || w.name == answered // the others are compared with them
			switch {
			case !always && !o.only.MatchString(w.name), atomic && size != 8:
			case w.name == readBack && (caps.WriteAcked || !caps.Send.Has(verbs.OpRDMARead)):
			case !caps.Send.Has(w.op):
				if !slices.Contains(lacking, w.name) {
					lacking = append(lacking, w.name)
				}
			default:
				cases = append(cases, benchCase{work: w, size: size})
			}
		}
	}
	return cases, lacking
}

// measure makes the measurements of one round, each on a new connection.
func (c *benchCase) measure(ctx context.Context, o options, p peerSide) (r result, err error) {
	_, err = connected(ctx, o, p, request{c.late, c.size, c.op}, func(s *side) error {
		r.median, r.p99, err = c.latency(s, o.length)
		return err
	})
	if err != nil || !c.rated {
		return r, err
	}
	var ops int
	cpu, err := connected(ctx, o, p, request{c.fast, c.size, c.op}, func(s *side) error {
		start := time.Now()
		ops, err = c.many(s, o.length)
		r.ops = float64(ops) / time.Since(start).Seconds()
		return err
	})
	r.cpu = cpu.Seconds() / float64(max(ops, 1))
	return r, err
}

// connected calls f with a connection, and tells the processor time of the peer's process meanwhile.
func connected(ctx context.Context, o options, p peerSide, q request, f func(*side) error) (time.Duration, error) {
	s, err := dial(ctx, p.address(), q, o.spin)
	if err != nil {
		return 0, err
	}
	err = f(s)
	s.close()
	if err != nil {
		return 0, err
	}
	return p.used()
}

// latency times one operation after the other.
func (c *benchCase) latency(s *side, length time.Duration) (median, p99 time.Duration, err error) {
	const warm = 5
	times := make([]time.Duration, 0, 1<<16)
	for start := time.Now(); time.Since(start) < length || len(times) < 2*warm; {
		before := time.Now()
		if err := c.once(s); err != nil {
			return 0, 0, err
		}
		times = append(times, time.Since(before))
		if err := s.refill(); err != nil {
			return 0, 0, err
		}
	}
	times = times[warm:]
	slices.Sort(times)
	median, p99 = times[len(times)/2], times[len(times)*99/100]
	if c.timed == oneWay {
		return median / 2, p99 / 2, nil
	}
	return median, p99, nil
}

// once does the operation and waits for what ends it.
func (c *benchCase) once(s *side) error {
	wr := s.wr(c.op)
	if c.late == answer {
		wr.SGL[0].Length = 8
	}
	if c.late != idle {
		received := s.received + 1
		if err := s.postUnwatched(wr); err != nil {
			return err
		}
		return s.until(func() bool { return s.received == received })
	}
	wrs := []verbs.SendWR{wr}
	if c.name == readBack {
		wrs = append(wrs, s.short(verbs.OpRDMARead))
	}
	return s.postAndWait(wrs)
}

// many keeps the queue full of the operation and returns the number done. All of them have had their effect on the peer's memory when it
// returns.
func (c *benchCase) many(s *side, length time.Duration) (ops int, err error) {
	batch := s.depth / 4
	wrs := make([]verbs.SendWR, batch)
	completed := s.completed // batches
	for start := time.Now(); time.Since(start) < length; {
		for i := range wrs {
			wrs[i] = s.wr(c.op)
		}
		wrs[batch-1].Flags = verbs.Signaled
		err := s.until(func() bool {
			outstanding := ops - batch*(s.completed-completed)
			granted := s.depth + batch*s.received // each message of the sink grants a batch
			return outstanding+batch <= s.depth && (c.fast != sink || ops+batch <= granted)
		})
		if err != nil {
			return ops, err
		}
		if _, err := s.qp.PostSend(wrs); err != nil {
			return ops, err
		}
		ops += batch
		if err := s.refill(); err != nil {
			return ops, err
		}
	}
	err = s.until(func() bool {
		return s.completed-completed == ops/batch && (c.fast != sink || s.received == ops/batch)
	})
	if err == nil && c.op == verbs.OpRDMAWrite { // a completion may only mean that the memory is free
		err = s.postAndWait([]verbs.SendWR{s.short(verbs.OpRDMARead)})
	}
	return ops, err
}

func deviceFor(ctx context.Context, addr netip.AddrPort) (verbs.Device, error) {
	id, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	return id.Device(), id.Close()
}
