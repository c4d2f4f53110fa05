package main

import (
	"context"
	"maps"
	"slices"
	"time"
)

// Some work is on so many connections that making them takes much longer than measuring. There each contender makes its connections
// once, in two processes of its own, and keeps them while all contenders make all rounds.

// party is a contender with its connections.
type party struct {
	contender
	pair   pair
	addr   string
	task   task
	base   [2]usage  // without the connections
	opened float64   // connections in a second
	kernel float64   // bytes that the kernel took for them
	began  time.Time // when idle connections are watched
	begin  [2]usage  // then
	rounds []sample
	err    error
}

// keep makes all rounds of a job on kept connections, and one before them that does not count.
func (b *bench) keep(j job, o *outcome) error {
	parties := make([]*party, len(j.contenders))
	for k, c := range j.contenders {
		p := hold(b.ctx, c, j.kept)
		defer p.kill() // it has closed its connections, or has failed
		parties[k] = p
	}
	for range b.rounds + 1 {
		b.speed.look()
		in := slices.DeleteFunc(slices.Clone(parties), func(p *party) bool { return p.err != nil })
		if len(in) == 0 {
			break
		}
		if j.kept.Kind == idle {
			b.watch(j, in)
		} else {
			b.alternate(j, in)
		}
	}
	for k, p := range parties {
		maps.Copy(b.pair.infos, p.pair.infos)
		if p.err == nil {
			p.end(p.pair.close())
		}
		if p.err != nil {
			if err := b.note(j, p.contender, p.err); err != nil {
				return err
			}
			continue
		}
		o.Results[k].Rounds = p.rounds[1:]
	}
	return nil
}

// hold starts the processes of a party and makes its connections. What goes wrong is the party's error.
func hold(ctx context.Context, c contender, t task) *party {
	p := &party{contender: c, task: t}
	if p.pair, p.err = startPair(ctx); p.err == nil {
		p.end(p.open())
	}
	return p
}

// end notes an error, if it is one. What the party has would be in the way of the others.
func (p *party) end(err error) {
	if err != nil {
		p.err = err
		p.kill()
	}
}

// kill ends the processes, if that was not done before.
func (p *party) kill() {
	if p.pair.client != nil {
		p.pair.kill()
	}
	p.pair.client, p.pair.server = nil, nil
}

func (p *party) open() (err error) {
	// What is needed once.
	if _, err := p.pair.run(p.transport, task{Kind: transfer, Size: 1, Count: 1, Iters: 1, Conns: 1}); err != nil {
		return err
	}
	if p.base, err = p.pair.usages(); err != nil {
		return err
	}
	kernel := kernelMemory()
	start := time.Now()
	if p.addr, err = p.pair.open(p.transport, p.task); err != nil {
		return err
	}
	p.opened = float64(p.task.Conns) / time.Since(start).Seconds()
	p.kernel = kernelMemory() - kernel
	return nil
}

// alternate is a round in which one works after the other.
func (b *bench) alternate(j job, parties []*party) {
	for _, p := range parties {
		begin := time.Now()
		s, err := p.pair.measure(p.transport, p.addr, p.task)
		if err != nil {
			p.end(err)
			continue
		}
		b.tell(j, p.contender, s, begin)
		p.task.Iters = scaled(p.task.Iters, s.Took, b.length)
		p.rounds = append(p.rounds, s)
	}
}

// keepalivePeriod is how far apart the questions of an idle rconn are: the default of Config.KeepAlive and a step, of which it has eight. In less
// time many of a thousand connections ask, or none, as it happens.
const keepalivePeriod = 15 * time.Second * 9 / 8

// watch is a round in which all do nothing, at the same time: what little they use is counted for each process.
func (b *bench) watch(j job, parties []*party) {
	for _, p := range parties {
		p.begin, p.err = p.pair.usages()
		p.began = time.Now()
	}
	select {
	case <-time.After(b.idle):
	case <-b.ctx.Done():
	}
	for _, p := range parties {
		if p.err != nil {
			continue
		}
		took := time.Since(p.began)
		var end [2]usage
		if end, p.err = p.pair.usages(); p.err != nil {
			continue
		}
		s := p.idleSample(end, took)
		b.tell(j, p.contender, s, p.began)
		p.rounds = append(p.rounds, s)
	}
	for _, p := range parties {
		p.end(p.err) // now: all that it has is freed, which would be work in the time of the others
	}
}

// idleSample is what the processes used in the time, and what they hold.
func (p *party) idleSample(end [2]usage, took time.Duration) sample {
	var cpu time.Duration
	var fds, pinned, resident, threads int
	for i := range end {
		cpu += end[i].CPU - p.begin[i].CPUAfter
		fds += end[i].FDs - p.base[i].FDs
		pinned += end[i].Pinned - p.base[i].Pinned
		resident += end[i].Resident - p.base[i].Resident
		threads = max(threads, end[i].Threads)
	}
	ends := float64(2 * p.task.Conns)
	return sample{Took: took, Numbers: map[string]float64{
		nValue:    cpu.Seconds() * 1e3 / took.Seconds(),
		nThreads:  float64(threads),
		nFDs:      float64(fds) / ends,
		nPinned:   float64(pinned) / ends / (1 << 10),
		nResident: float64(resident) / ends / (1 << 10),
		nKernel:   p.kernel / ends / (1 << 10),
		nOpened:   p.opened,
	}}
}
