package compat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs"
)

// report logs what was taken and why, in one line: to everybody when there is something new, else to who asks for details, who get them at the
// end of the line. The last of the ways are those known to be in vain.
func (d *Dialer) report(news bool, network, address string, c net.Conn, ways []way, vain, won int, outcomes []outcome) {
	log := d.RDMA.Config.Logger
	if log == nil {
		log = slog.Default()
	}
	ctx, level, message := context.Background(), slog.LevelDebug, "dial failed"
	if news {
		level = slog.LevelInfo
	}
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("addr", address)}
	if won >= 0 {
		message = "dialed"
		attrs = append(attrs, slog.String("took", ways[won].name))
	}
	if rc, ok := c.(*rconn.Conn); ok {
		attrs = append(attrs, slog.String("device", rc.Info().Device))
	}
	var why []string
	var details []slog.Attr
	for i, w := range ways {
		short, long := outcomes[i].brief(), outcomes[i].String()
		lately := i >= len(ways)-vain && outcomes[i].started.IsZero()
		if lately {
			short, long = "in vain lately", "not tried: in vain lately"
		}
		if i < won || won < 0 || lately {
			why = append(why, w.name+": "+short)
		}
		details = append(details, slog.String(w.name, long))
	}
	if len(why) > 0 {
		attrs = append(attrs, slog.String("why", strings.Join(why, ", ")))
	}
	if log.Enabled(ctx, slog.LevelDebug) {
		attrs = append(append(attrs, slog.String("network", network)), details...)
	}
	log.LogAttrs(ctx, level, message, attrs...)
}

// String is how a way went, with its error.
func (o outcome) String() string {
	switch {
	case o.started.IsZero():
		return "not tried"
	case !o.ended:
		return fmt.Sprintf("no answer in %v", o.took.Round(time.Millisecond))
	case o.err == nil:
		return fmt.Sprintf("taken after %v", o.took.Round(time.Microsecond))
	}
	return cause(o.err).Error()
}

// brief is how a way went, in a word or two.
func (o outcome) brief() string {
	if o.err == nil {
		return o.String()
	}
	for _, k := range []struct {
		err  error
		text string
	}{
		{verbs.ErrNoDevice, "no device"}, {syscall.ECONNREFUSED, "refused"}, {syscall.ECONNRESET, "reset"}, {syscall.EPROTO, "another protocol"},
		{syscall.EHOSTUNREACH, "unreachable"}, {syscall.ENETUNREACH, "unreachable"}, {syscall.ETIMEDOUT, "no answer"},
		{context.DeadlineExceeded, "no answer"},
	} {
		if errors.Is(o.err, k.err) {
			return k.text
		}
	}
	return "failed"
}
