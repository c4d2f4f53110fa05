package rdmacore

import (
	"fmt"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// checkQPOptions refuses what the device cannot do, by name, and fills in what was left out.
func checkQPOptions(device string, attr *verbs.DeviceAttr, o *verbs.QPOptions) error {
	if o.Type != verbs.RC {
		return &verbs.UnsupportedError{Device: device, What: fmt.Sprintf("a %v queue pair yet", o.Type)}
	}
	c := &o.Cap
	for _, n := range []int{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline} {
		if n < 0 {
			return fmt.Errorf("%w: negative queue pair capability", syscall.EINVAL)
		}
	}
	c.MaxSendSGE = max(c.MaxSendSGE, 1)
	c.MaxRecvSGE = max(c.MaxRecvSGE, 1)
	for _, l := range []struct {
		what     string
		got, max int
	}{
		{"send queue entries", c.MaxSendWR, attr.MaxQPWR},
		{"receive queue entries", c.MaxRecvWR, attr.MaxQPWR},
		{"scatter/gather entries of a send", c.MaxSendSGE, attr.MaxSGE},
		{"scatter/gather entries of a receive", c.MaxRecvSGE, attr.MaxSGE},
	} {
		if l.got > l.max {
			return &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	c.MaxInline = min(c.MaxInline, maxInline)
	return nil
}

// checkModify refuses what cannot be written. Not every device would.
func checkModify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	switch {
	case mask&^(verbs.AttrState|verbs.AttrMinRNRTimer) != 0:
		return fmt.Errorf("%w: an attribute that cannot be written", syscall.EINVAL)
	case mask&verbs.AttrMinRNRTimer != 0 && attr.MinRNRTimer > maxRNRTimer:
		return &verbs.LimitError{What: "RNR timer", Got: uint64(attr.MinRNRTimer), Max: maxRNRTimer}
	}
	return nil
}

// maxInline bounds the buffer that a QP has for inline payload. No device takes as much.
const maxInline = 4096

// checkSend refuses a request that the QP cannot take. The device would, too, but not by name.
func checkSend(device string, ops verbs.OpcodeSet, limits *verbs.QPCap, wr *verbs.SendWR) error {
	if !ops.Has(wr.Opcode) {
		return &verbs.UnsupportedError{Device: device, What: wr.Opcode.String()}
	}
	if n := len(wr.Inline); n > 0 {
		if wr.Opcode == verbs.OpRDMARead {
			return fmt.Errorf("%w: a READ has no inline payload", syscall.EINVAL)
		}
		if n > limits.MaxInline {
			return &verbs.LimitError{What: "bytes of inline payload", Got: uint64(n), Max: uint64(limits.MaxInline)}
		}
		return nil
	}
	return checkSGL(len(wr.SGL), limits.MaxSendSGE)
}

func checkSGL(n, limit int) error {
	if n > limit {
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(n), Max: uint64(limit)}
	}
	return nil
}
