package rdmacore

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

func TestCheckSend(t *testing.T) {
	ops := verbs.Opcodes(verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead)
	limits := verbs.QPCap{MaxSendSGE: 2, MaxInline: 8}
	sgl := make([]verbs.SGE, 3)
	for _, c := range []struct {
		what string
		wr   verbs.SendWR
		want error
	}{
		{"a send", verbs.SendWR{SGL: sgl[:2]}, nil},
		{"no payload", verbs.SendWR{}, nil},
		{"inline", verbs.SendWR{Inline: make([]byte, 8)}, nil},
		{"inline instead of too many entries", verbs.SendWR{Inline: make([]byte, 8), SGL: sgl}, nil},
		{"too many entries", verbs.SendWR{SGL: sgl}, syscall.EINVAL},
		{"too much inline", verbs.SendWR{Inline: make([]byte, 9)}, syscall.EINVAL},
		{"an inline READ", verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: make([]byte, 1)}, syscall.EINVAL},
		{"no such operation here", verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm}, errors.ErrUnsupported},
		{"an atomic", verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd}, errors.ErrUnsupported},
		{"no such operation anywhere", verbs.SendWR{Opcode: 99}, errors.ErrUnsupported},
		{"beyond the set", verbs.SendWR{Opcode: 255}, errors.ErrUnsupported},
	} {
		if err := checkSend("rxe0", ops, &limits, &c.wr); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

func TestCheckQPOptions(t *testing.T) {
	attr := &verbs.DeviceAttr{MaxQPWR: 100, MaxSGE: 4}
	o := verbs.QPOptions{Cap: verbs.QPCap{MaxSendWR: 100, MaxInline: 1 << 20}}
	if err := checkQPOptions("rxe0", attr, &o); err != nil || o.Cap.MaxSendSGE != 1 || o.Cap.MaxRecvSGE != 1 || o.Cap.MaxInline != maxInline {
		t.Errorf("%+v, %v", o.Cap, err)
	}
	for want, c := range map[string]verbs.QPCap{
		"101 send queue entries exceed the limit of 100":           {MaxSendWR: 101},
		"101 receive queue entries exceed":                         {MaxRecvWR: 101},
		"5 scatter/gather entries of a send exceed the limit of 4": {MaxSendSGE: 5},
		"5 scatter/gather entries of a receive":                    {MaxRecvSGE: 5},
		"negative":                                                 {MaxInline: -1},
	} {
		err := checkQPOptions("rxe0", attr, &verbs.QPOptions{Cap: c})
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := checkQPOptions("rxe0", attr, &verbs.QPOptions{Type: verbs.UD}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

func TestCheckConnParam(t *testing.T) {
	attr := &verbs.DeviceAttr{MaxQPRdAtom: 16, MaxQPInitRdAtom: 16}
	good := cm.ConnParam{PrivateData: make([]byte, 56), ResponderResources: 16, InitiatorDepth: 16, RetryCount: 7, RNRRetryCount: 7, AckTimeout: 31, MinRNRTimer: 31}
	if err := checkConnParam(attr, &good, cm.MaxRequestData); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*cm.ConnParam){
		"private data":        func(p *cm.ConnParam) { p.PrivateData = make([]byte, 57) },
		"responder resources": func(p *cm.ConnParam) { p.ResponderResources = 255 },
		"initiator depth":     func(p *cm.ConnParam) { p.InitiatorDepth = 17 },
		"retries":             func(p *cm.ConnParam) { p.RetryCount = 8 },
		"RNR retries":         func(p *cm.ConnParam) { p.RNRRetryCount = 8 },
		"ack timeout":         func(p *cm.ConnParam) { p.AckTimeout = 32 },
		"RNR timer":           func(p *cm.ConnParam) { p.MinRNRTimer = 32 },
	} {
		p := good
		change(&p)
		if err := checkConnParam(attr, &p, cm.MaxRequestData); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCheckModify(t *testing.T) {
	const both = verbs.AttrState | verbs.AttrMinRNRTimer
	if err := checkModify(&verbs.QPAttr{MinRNRTimer: 31}, both); err != nil {
		t.Error(err)
	}
	if err := checkModify(&verbs.QPAttr{MinRNRTimer: 32}, verbs.AttrState); err != nil {
		t.Error(err) // not written
	}
	if err := checkModify(&verbs.QPAttr{MinRNRTimer: 32}, both); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := checkModify(&verbs.QPAttr{}, both+1<<2); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}
