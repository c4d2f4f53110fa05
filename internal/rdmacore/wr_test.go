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
	limits := verbs.QPCap{MaxSendSGE: 3, MaxInline: 8}
	sgl := make([]verbs.SGE, 4)
	word := []verbs.SGE{{Length: 8}}
	for _, c := range []struct {
		what string
		wr   verbs.SendWR
		want error
	}{
		{"a send", verbs.SendWR{SGL: sgl[:3]}, nil},
		{"no payload", verbs.SendWR{}, nil},
		{"inline", verbs.SendWR{Inline: make([]byte, 8)}, nil},
		{"inline instead of too many entries", verbs.SendWR{Inline: make([]byte, 8), SGL: sgl}, nil},
		{"too many entries", verbs.SendWR{SGL: sgl}, syscall.EINVAL},
		{"too much inline", verbs.SendWR{Inline: make([]byte, 9)}, syscall.EINVAL},
		{"an inline READ", verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: make([]byte, 1)}, syscall.EINVAL},
		{"a READ", verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: sgl[:2]}, nil},
		{"too many entries of a READ", verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: sgl[:3]}, syscall.EINVAL},
		{"an atomic", verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, SGL: word, RemoteAddr: 16}, nil},
		{"an inline atomic", verbs.SendWR{Opcode: verbs.OpAtomicCmpAndSwp, Inline: make([]byte, 8)}, syscall.EINVAL},
		{"a misaligned atomic", verbs.SendWR{Opcode: verbs.OpAtomicCmpAndSwp, SGL: word, RemoteAddr: 20}, syscall.EINVAL},
		{"an atomic without a place", verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd}, syscall.EINVAL},
		{"an atomic of 4 bytes", verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, SGL: []verbs.SGE{{Length: 4}}}, syscall.EINVAL},
		{"an atomic in two pieces", verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, SGL: []verbs.SGE{{Length: 4}, {Length: 4}}}, syscall.EINVAL},
	} {
		if err := checkSend(&limits, 2, &c.wr); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, err, c.want)
		}
	}
}

func TestTypeOps(t *testing.T) {
	all := verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
	for typ, want := range map[verbs.QPType]verbs.OpcodeSet{
		verbs.RC: all,
		verbs.UC: verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm),
		verbs.UD: verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm),
	} {
		if got := all & typeOps(typ); got != want {
			t.Errorf("%v: %b, want %b", typ, got, want)
		}
	}
	for want, err := range map[string]error{
		"rxe0 does not support RDMA_READ on a UD queue pair": noOpcode("rxe0", verbs.UD, all, verbs.OpRDMARead),
		"rxe0 does not support SEND_WITH_INV":                noOpcode("rxe0", verbs.RC, 0, verbs.OpSendWithInv),
		"rxe0 does not support OPCODE(255)":                  noOpcode("rxe0", verbs.RC, all, 255),
	} {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestCheckDatagram(t *testing.T) {
	for _, c := range []struct {
		wr   verbs.SendWR
		want error
	}{
		{verbs.SendWR{}, nil},
		{verbs.SendWR{SGL: []verbs.SGE{{Length: 1000}, {Length: 24}}}, nil},
		{verbs.SendWR{SGL: []verbs.SGE{{Length: 1000}, {Length: 25}}}, syscall.EINVAL},
		{verbs.SendWR{SGL: []verbs.SGE{{Length: 1<<32 - 1}, {Length: 2}}}, syscall.EINVAL},
		{verbs.SendWR{Inline: make([]byte, 1025)}, syscall.EINVAL},
		{verbs.SendWR{RemoteQPNum: 1<<24 - 1}, nil},
		{verbs.SendWR{RemoteQPNum: 1 << 24}, syscall.EINVAL},
		{verbs.SendWR{Inline: make([]byte, 1024), SGL: []verbs.SGE{{Length: 9999}}}, nil},
	} {
		if err := checkDatagram(&c.wr, 1024); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c.wr, err)
		}
	}
}

func TestCopySGL(t *testing.T) {
	one, two := verbs.SGE{Addr: 1, Length: 3, LKey: 5}, verbs.SGE{Addr: 2, Length: 4, LKey: 6}
	empty := verbs.SGE{Addr: 9, LKey: 9}
	var to [4]verbs.SGE
	if n := copySGL(to[:], []verbs.SGE{empty, one, empty, two}); n != 2 || to != [4]verbs.SGE{one, two} {
		t.Errorf("%d: %+v", n, to)
	}
	if n := copySGL(to[:], []verbs.SGE{empty}); n != 0 {
		t.Error(n)
	}
	if n := copySGL(nil, nil); n != 0 {
		t.Error(n)
	}
}

func TestCheckQPOptions(t *testing.T) {
	attr := &verbs.DeviceAttr{MaxQPWR: 100, MaxSGE: 4}
	o := verbs.QPOptions{Cap: verbs.QPCap{MaxSendWR: 100, MaxInline: 1 << 20}}
	if err := checkQPOptions(attr, &o); err != nil || o.Cap.MaxSendSGE != 1 || o.Cap.MaxRecvSGE != 1 || o.Cap.MaxInline != maxInline {
		t.Errorf("%+v, %v", o.Cap, err)
	}
	for want, c := range map[string]verbs.QPCap{
		"101 send queue entries exceed the limit of 100":           {MaxSendWR: 101},
		"101 receive queue entries exceed":                         {MaxRecvWR: 101},
		"5 scatter/gather entries of a send exceed the limit of 4": {MaxSendSGE: 5},
		"5 scatter/gather entries of a receive":                    {MaxRecvSGE: 5},
		"negative":                                                 {MaxInline: -1},
	} {
		err := checkQPOptions(attr, &verbs.QPOptions{Cap: c})
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// With an SRQ nobody looks at the receive part.
	o = verbs.QPOptions{SRQ: struct{ verbs.SRQ }{}, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1000, MaxRecvSGE: -1}}
	if err := checkQPOptions(attr, &o); err != nil || o.Cap.MaxRecvWR != 0 || o.Cap.MaxRecvSGE != 0 {
		t.Errorf("%+v, %v", o.Cap, err)
	}
}

func TestCheckSRQOptions(t *testing.T) {
	attr := &verbs.DeviceAttr{MaxSRQ: 10, MaxSRQWR: 100, MaxSRQSGE: 4}
	o := verbs.SRQOptions{MaxWR: 100}
	if err := checkSRQOptions("rxe0", attr, &o); err != nil || o.MaxSGE != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	for want, o := range map[string]verbs.SRQOptions{
		"101 entries of a shared receive queue exceed the limit of 100": {MaxWR: 101},
		"5 scatter/gather entries":                                      {MaxWR: 1, MaxSGE: 5},
		"of 0 entries":                                                  {MaxSGE: 1},
		"of -1 pieces":                                                  {MaxWR: 1, MaxSGE: -1},
	} {
		if err := checkSRQOptions("rxe0", attr, &o); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := checkSRQOptions("rxe0", &verbs.DeviceAttr{}, &o); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

func TestCapabilities(t *testing.T) {
	ib := capabilities(&verbs.DeviceAttr{Transport: verbs.TransportIB, Atomic: verbs.AtomicHCA})
	if !ib.Send.Has(verbs.OpAtomicCmpAndSwp) || !ib.Send.Has(verbs.OpSendWithImm) || !ib.QPTypes.Has(verbs.UD) || !ib.RNR {
		t.Errorf("%+v", ib)
	}
	if c := capabilities(&verbs.DeviceAttr{Transport: verbs.TransportIB}); c.Send.Has(verbs.OpAtomicFetchAndAdd) {
		t.Errorf("atomics without any: %+v", c)
	}
	iw := capabilities(&verbs.DeviceAttr{Transport: verbs.TransportIWARP})
	if iw.Send.Has(verbs.OpRDMAWriteWithImm) || iw.QPTypes != 0 || iw.RNR || iw.WriteAcked {
		t.Errorf("%+v", iw)
	}
	siw := capabilities(&verbs.DeviceAttr{Transport: verbs.TransportIWARP, VendorID: siwVendor})
	if siw.FreesEarlier || !iw.FreesEarlier || !ib.FreesEarlier {
		t.Errorf("memory freed by a later completion: soft-iWARP %v, another %v, InfiniBand %v", siw.FreesEarlier, iw.FreesEarlier, ib.FreesEarlier)
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
