package rdmacore

import (
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// maxRNRTimer is the last of IBTA's table 45.
const maxRNRTimer = 31

// checkConnParam refuses what cannot be sent or programmed, by name.
func checkConnParam(attr *verbs.DeviceAttr, p *cm.ConnParam, private int) error {
	if err := checkPrivate(p.PrivateData, private); err != nil {
		return err
	}
	for _, l := range []struct {
		what string
		got  uint8
		max  int
	}{
		{"responder resources", p.ResponderResources, attr.MaxQPRdAtom},
		{"initiator depth", p.InitiatorDepth, attr.MaxQPInitRdAtom},
		{"retries", p.RetryCount, 7},
		{"RNR retries", p.RNRRetryCount, 7},
		{"ack timeout", p.AckTimeout, 31},
		{"RNR timer", p.MinRNRTimer, maxRNRTimer},
	} {
		if int(l.got) > l.max {
			return &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	return nil
}

func checkPrivate(data []byte, limit int) error {
	if len(data) > limit {
		return &verbs.LimitError{What: "bytes of private data", Got: uint64(len(data)), Max: uint64(limit)}
	}
	return nil
}
