package end

import (
	"context"
	"errors"
	"time"

	"github.com/rconn/rdma/verbs"
)

// Objects are what QPs need: memory, and a queue where completions appear. All QPs of a process on one device may share them.
type Objects struct {
	PD      verbs.PD
	MR      verbs.MR
	Channel verbs.CompletionChannel
	CQ      verbs.CQ

	Spin time.Duration // Wait watches for completions this long before it sleeps
}

// NewObjects makes them. size is that of the memory in bytes, depth the number of completions that may be outstanding.
func NewObjects(dev verbs.Device, size int, access verbs.Access, depth int) (*Objects, error) {
	o := &Objects{}
	if err := o.make(dev, size, access, depth); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

func (o *Objects) make(dev verbs.Device, size int, access verbs.Access, depth int) (err error) {
	if o.PD, err = dev.AllocPD(); err != nil {
		return err
	}
	if o.MR, err = o.PD.AllocMR(size, access); err != nil {
		return err
	}
	if o.Channel, err = dev.CreateCompletionChannel(); err != nil {
		return err
	}
	o.CQ, err = dev.CreateCQ(verbs.CQOptions{Depth: depth, Channel: o.Channel})
	return err
}

// SGE names n bytes at off of the memory.
func (o *Objects) SGE(off, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: o.MR.Addr() + uint64(off), Length: uint32(n), LKey: o.MR.LKey()}}
}

// Wait takes completions and waits until there are some. When ctx has ended it hands out what is left, then fails with ctx's cause;
// whoever calls it has ctx interrupt the channel, see WakeAtEnd.
func (o *Objects) Wait(ctx context.Context, wcs []verbs.Completion) (int, error) {
	for {
		over := ctx.Err() != nil // looked at before the poll: nothing that came before the end is missed
		if n, err := o.CQ.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		if over {
			return 0, context.Cause(ctx)
		}
		if err := o.Channel.Wait(o.Spin); err != nil {
			return 0, err
		}
	}
}

// WakeAtEnd has the end of ctx wake Wait, until forget is called.
func (o *Objects) WakeAtEnd(ctx context.Context) (forget func() bool) {
	return context.AfterFunc(ctx, o.Channel.Interrupt)
}

// Close closes the objects, users first. The QPs are to be closed before.
func (o *Objects) Close() error {
	var errs []error
	if o.CQ != nil {
		errs = append(errs, o.CQ.Close())
	}
	if o.Channel != nil {
		errs = append(errs, o.Channel.Close())
	}
	if o.MR != nil {
		errs = append(errs, o.MR.Close())
	}
	if o.PD != nil {
		errs = append(errs, o.PD.Close())
	}
	return errors.Join(errs...)
}
