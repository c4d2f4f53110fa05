package vm

import (
	"context"
	"os"
)

// Run runs spec in a fresh guest until its command ends or ctx is done.
func (b *Bed) Run(ctx context.Context, spec Spec) Result {
	m := newMachine("", spec)
	defer m.close()
	if err := m.spec.check(false); err != nil {
		return failed(err)
	}
	if err := b.start(m, nil); err != nil {
		return failed(err)
	}
	go m.serveControl(m.conns[1], noPeer)
	defer context.AfterFunc(ctx, func() { m.endWith(context.Cause(ctx)) })()

	<-m.ended
	m.kill()
	return m.result()
}

// RunPair runs two guests joined by a cable. The one whose command ends first
// stays on until the other's has ended too.
func (b *Bed) RunPair(ctx context.Context, specA, specB Spec) (resultA, resultB Result) {
	p := &pair{a: newMachine("A", specA), b: newMachine("B", specB), joins: make(map[string]*[2]int)}
	both := []*machine{p.a, p.b}
	cableA, cableB, err := socketPair("cable")
	if err != nil {
		return failed(err), failed(err)
	}
	for i, cable := range []*os.File{cableA, cableB} {
		m := both[i]
		defer m.close()
		if err = m.spec.check(true); err == nil {
			err = b.start(m, cable)
		}
		if err != nil {
			return failed(err), failed(err)
		}
		defer context.AfterFunc(ctx, func() { m.endWith(context.Cause(ctx)) })()
	}
	// A request may concern either machine, so both must have started.
	for _, m := range both {
		go m.serveControl(m.conns[1], p.serve(m))
	}

	for _, m := range both {
		<-m.ended
	}
	for _, m := range both {
		m.kill()
	}
	return p.a.result(), p.b.result()
}

func failed(err error) Result { return Result{Status: StatusGuestDown, Err: err} }
