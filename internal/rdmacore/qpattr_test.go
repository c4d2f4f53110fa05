package rdmacore

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/rconn/rdma/verbs"
)

func TestIBVMask(t *testing.T) {
	// From ibv_modify_qp(3), as numbers of verbs.h.
	for want, mask := range map[int]verbs.QPAttrMask{
		0:        0,
		1:        verbs.AttrState,
		1 << 15:  verbs.AttrMinRNRTimer,
		0x39:     verbs.AttrState | verbs.AttrPort | verbs.AttrPKeyIndex | verbs.AttrAccess,
		0x71:     verbs.AttrState | verbs.AttrPort | verbs.AttrPKeyIndex | verbs.AttrQKey,
		0x129181: verbs.AttrState | verbs.AttrAH | verbs.AttrPathMTU | verbs.AttrDestQPNum | verbs.AttrRQPSN | verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer,
		0x12e01:  verbs.AttrState | verbs.AttrSQPSN | verbs.AttrAckTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic,
		5:        verbs.AttrState | verbs.AttrNotifyDrained,
	} {
		if got := ibvMask(mask); got != want {
			t.Errorf("%#x: %#x, want %#x", mask, got, want)
		}
	}
	if len(ibvMasks) != 17 || allAttrs != verbs.AttrNotifyDrained<<1-1 {
		t.Errorf("%d attributes, %#x", len(ibvMasks), allAttrs)
	}
}

func TestCheckAttrs(t *testing.T) {
	d := &verbs.DeviceAttr{Ports: 2, MaxQPRdAtom: 16, MaxQPInitRdAtom: 8}
	good := verbs.QPAttr{
		State: verbs.QPRTS, Access: qpAccess, Port: 2, PathMTU: 4096, DestQPNum: max24, RQPSN: max24, SQPSN: max24, AckTimeout: 31, RetryCount: 7,
		RNRRetry: 7, MinRNRTimer: 31, MaxRdAtomic: 8, MaxDestRdAtomic: 16,
	}
	if err := checkAttrs(d, &good, allAttrs); err != nil {
		t.Error(err)
	}
	for what, c := range map[string]struct {
		bit    verbs.QPAttrMask
		change func(*verbs.QPAttr)
	}{
		"no such state":                 {verbs.AttrState, func(a *verbs.QPAttr) { a.State = 7 }},
		"access flags":                  {verbs.AttrAccess, func(a *verbs.QPAttr) { a.Access = verbs.AccessZeroBased }},
		"no port 3":                     {verbs.AttrPort, func(a *verbs.QPAttr) { a.Port = 3 }},
		"no port 0":                     {verbs.AttrPort, func(a *verbs.QPAttr) { a.Port = 0 }},
		"path MTU of 1500":              {verbs.AttrPathMTU, func(a *verbs.QPAttr) { a.PathMTU = 1500 }},
		"path MTU of 128":               {verbs.AttrPathMTU, func(a *verbs.QPAttr) { a.PathMTU = 128 }},
		"path MTU of 0":                 {verbs.AttrPathMTU, func(a *verbs.QPAttr) { a.PathMTU = 0 }},
		"queue pair number":             {verbs.AttrDestQPNum, func(a *verbs.QPAttr) { a.DestQPNum = 1 << 24 }},
		"number of the receive queue":   {verbs.AttrRQPSN, func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 }},
		"number of the send queue":      {verbs.AttrSQPSN, func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 }},
		"32 ack timeout exceed":         {verbs.AttrAckTimeout, func(a *verbs.QPAttr) { a.AckTimeout = 32 }},
		"8 retries":                     {verbs.AttrRetryCount, func(a *verbs.QPAttr) { a.RetryCount = 8 }},
		"8 RNR retries":                 {verbs.AttrRNRRetry, func(a *verbs.QPAttr) { a.RNRRetry = 8 }},
		"RNR timer":                     {verbs.AttrMinRNRTimer, func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }},
		"9 initiator depth exceed":      {verbs.AttrMaxRdAtomic, func(a *verbs.QPAttr) { a.MaxRdAtomic = 9 }},
		"17 responder resources exceed": {verbs.AttrMaxDestRdAtomic, func(a *verbs.QPAttr) { a.MaxDestRdAtomic = 17 }},
	} {
		a := good
		c.change(&a)
		if err := checkAttrs(d, &a, c.bit); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		if err := checkAttrs(d, &a, allAttrs&^c.bit); err != nil {
			t.Errorf("%s, which is not written: %v", what, err)
		}
	}
	if err := checkAttrs(d, &good, allAttrs+1); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestCheckCMAttrs(t *testing.T) {
	dead := verbs.QPAttr{State: verbs.QPError}
	if err := checkCMAttrs(&dead, verbs.AttrState|verbs.AttrMinRNRTimer); err != nil {
		t.Error(err)
	}
	if err := checkCMAttrs(&verbs.QPAttr{State: verbs.QPRTS}, verbs.AttrMinRNRTimer); err != nil {
		t.Error(err) // the state is not written
	}
	if err := checkCMAttrs(&verbs.QPAttr{State: verbs.QPRTS}, verbs.AttrState); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := checkCMAttrs(&dead, verbs.AttrState|verbs.AttrAccess); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestCheckAH(t *testing.T) {
	eth := &verbs.PortAttr{Link: verbs.LinkEthernet, GIDs: 16}
	good := verbs.AHAttr{Port: 1, Global: true, GID: verbs.GID{15: 1}, GIDIndex: 15, SL: 15, FlowLabel: 1<<20 - 1}
	if err := checkAH(eth, &good); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*verbs.AHAttr){
		"global route": func(a *verbs.AHAttr) { a.Global = false },
		"no entry 16":  func(a *verbs.AHAttr) { a.GIDIndex = 16 },
		"no entry -1":  func(a *verbs.AHAttr) { a.GIDIndex = -1 },
		"destination":  func(a *verbs.AHAttr) { a.GID = verbs.GID{} },
		"level":        func(a *verbs.AHAttr) { a.SL = 16 },
		"label":        func(a *verbs.AHAttr) { a.FlowLabel = 1 << 20 },
	} {
		a := good
		change(&a)
		if err := checkAH(eth, &a); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := checkAH(&verbs.PortAttr{Link: verbs.LinkInfiniBand}, &verbs.AHAttr{Port: 1, LID: 7, GIDIndex: 99}); err != nil {
		t.Error(err)
	}
}

func TestGIDType(t *testing.T) {
	for _, c := range []struct {
		name string
		link verbs.LinkLayer
		want verbs.GIDType
	}{
		{"RoCE v2", verbs.LinkEthernet, verbs.GIDTypeRoCEv2},
		{"IB/RoCE v1", verbs.LinkEthernet, verbs.GIDTypeRoCEv1},
		{"IB/RoCE v1", verbs.LinkInfiniBand, verbs.GIDTypeIB},
		{"", verbs.LinkEthernet, verbs.GIDTypeIB}, // iWARP, or an empty entry
		{"RoCE v3", verbs.LinkEthernet, verbs.GIDTypeIB},
	} {
		if got := gidType(c.name, c.link); got != c.want {
			t.Errorf("%q on %v: %v", c.name, c.link, got)
		}
	}
}

func TestCheckAccess(t *testing.T) {
	for _, c := range []struct {
		access verbs.Access
		want   error
		text   string
	}{
		{0, nil, ""},
		{verbs.AccessRemoteRead, nil, ""},
		{
			verbs.AccessLocalWrite | verbs.AccessRemoteAtomic | verbs.AccessZeroBased | verbs.AccessOnDemand | verbs.AccessHugeTLB |
				verbs.AccessRelaxedOrdering, nil, "",
		},
		{verbs.AccessRemoteWrite, syscall.EINVAL, "AccessLocalWrite"},
		{verbs.AccessRemoteAtomic, syscall.EINVAL, "AccessLocalWrite"},
		{1 << 4, errors.ErrUnsupported, "rxe0 does not support access flags 0x10"},
		{1 << 31, errors.ErrUnsupported, "0x80000000"},
	} {
		err := checkAccess("rxe0", c.access)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%#x: %v", c.access, err)
		}
	}
	if s := accessNames(verbs.AccessHugeTLB | verbs.AccessOnDemand); s != "AccessOnDemand, AccessHugeTLB" {
		t.Error(s)
	}
}
