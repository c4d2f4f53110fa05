//go:build guest

package tests

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
)

// TestFreshRxeCoreRemovalByHand takes the device away from a program that has no cm.ID. Soft-RoCE tells it nothing, and waits: it learns of the
// removal when it looks at the list of devices.
//
// fault: DEATH-6
func TestFreshRxeCoreRemovalByHand(t *testing.T) {
	rxe1(t)
	d := deviceNamed(t, "rxe0")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ch, err := d.CreateCompletionChannel()
	must(err)
	cq, err := d.CreateCQ(verbs.CQOptions{Depth: 16, Channel: ch})
	must(err)
	pd, err := d.AllocPD()
	must(err)
	mem := make([]byte, 1<<16)
	mr, err := pd.RegMR(mem, allAccess())
	must(err)
	srq, err := pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
	must(err)
	options := func(typ verbs.QPType) verbs.QPOptions {
		return verbs.QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 4}}
	}
	qp, err := pd.CreateQP(options(verbs.UD))
	must(err)
	by := verbs.ByHand{GIDIndex: gidOf(t, d, addr)}
	must(by.Init(qp))
	local, err := by.Local(d, qp)
	must(err)
	must(by.Connect(qp, local))
	way := by.Path(local)
	ah, err := pd.CreateAH(way)
	must(err)
	stop := d.Watch(func(verbs.AsyncEvent) {})
	defer stop()
	waits := make(chan error, 1)
	go func() { waits <- ch.Wait(0) }()
	time.Sleep(100 * time.Millisecond)

	del := start(t, "rdma", "link", "del", "rxe0")
	waitFor(t, "the wait ends", func() bool {
		system.Devices()
		select {
		case err := <-waits:
			if !errors.Is(err, verbs.ErrDeviceRemoved) {
				t.Errorf("wait: %v", err)
			}
			return true
		default:
			return false
		}
	})
	_, err1 := pd.RegMR(mem, 0)
	_, err2 := pd.CreateSRQ(verbs.SRQOptions{MaxWR: 4})
	_, err3 := pd.CreateAH(way)
	_, err4 := pd.CreateQP(options(verbs.RC))
	_, err5 := srq.PostRecv([]verbs.RecvWR{{}})
	_, err6 := srq.Query()
	err7 := srq.SetLimit(1)
	_, err8 := qp.PostSend([]verbs.SendWR{{AH: ah, RemoteQPNum: qp.Num()}})
	err9 := qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState)
	_, err10 := d.GIDType(1, 0)
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8, err9, err10} {
		if !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("call %d on a removed device: %v", i+1, err)
		}
	}
	stop()
	for _, o := range []interface{ Close() error }{ah, qp, srq, mr, pd, cq, ch} {
		if err := o.Close(); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	}
	del.wait(t)
	add(t)
	works(t)
}

func deviceNamed(t *testing.T, name string) verbs.Device {
	t.Helper()
	devices, err := system.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.Name() == name {
			return d
		}
	}
	t.Fatalf("no %s among %v", name, devices)
	return nil
}

// gidOf is the entry of the GID table of port 1 that stands for an address.
func gidOf(t *testing.T, d verbs.Device, ip string) int {
	t.Helper()
	want := verbs.GID(netip.MustParseAddr(ip).As16())
	for i := 0; ; i++ {
		gid, err := d.GID(1, i)
		if err != nil {
			t.Fatalf("no GID is %s: %v", ip, err)
		}
		if gid == want {
			return i
		}
	}
}
