//go:build linux && cgo

package rdmacore

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"sync"
	"unsafe"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// Provider is the provider of the system's RDMA devices. There is one for the whole process.
func Provider() cm.Provider { return system() }

var system = sync.OnceValue(func() *provider {
	return &provider{
		calls:    newSlots(maxCalls),
		closes:   newSlots(maxCloses),
		connects: newSlots(maxBlockedConnects),
		devices:  make(map[*C.struct_ibv_context]*device),
	}
})

type provider struct {
	calls    slots // for calls that may block in the kernel for a while
	closes   slots // for destroying QPs and cm ids
	connects slots // for rdma_connect on iWARP
	beds     beds  // for waits that keep their thread for a moment

	mu      sync.Mutex
	devices map[*C.struct_ibv_context]*device // by librdmacm's context

	cm cmCore
}

func (p *provider) Name() string { return providerName }

func (p *provider) Devices() ([]verbs.Device, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	devices, err := p.refresh()
	if err != nil {
		return nil, err
	}
	list := make([]verbs.Device, len(devices))
	for i, d := range devices {
		list[i] = d
	}
	return list, nil
}

// refresh has librdmacm look for devices that came or went, and returns those present.
func (p *provider) refresh() ([]*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refreshLocked()
}

func (p *provider) refreshLocked() ([]*device, error) {
	var list **C.struct_ibv_context
	var n C.int
	if err := sysErr("rdma_get_devices", int(C.rc_get_devices(&list, &n))); err != nil {
		return nil, libraryErr(err)
	}
	defer C.free(unsafe.Pointer(list))

	var devices []*device
	var errs []error
	present := make(map[*C.struct_ibv_context]bool)
	for _, ctx := range unsafe.Slice(list, int(n)) {
		present[ctx] = true
		d := p.devices[ctx]
		if d != nil {
			C.rc_put_device(ctx) // the device holds one reference, which is enough
		} else {
			var err error
			if d, err = openDevice(p, ctx); err != nil {
				C.rc_put_device(ctx)
				errs = append(errs, err)
				continue
			}
			p.devices[ctx] = d
		}
		if !d.removed.Load() {
			devices = append(devices, d)
		}
	}
	for ctx, d := range p.devices {
		if !present[ctx] {
			d.markRemoved()
		}
	}
	if len(devices) == 0 {
		return nil, errors.Join(append(errs, noDevice("the kernel has none"))...)
	}
	return devices, nil
}

// deviceOf finds the device of a cm id.
func (p *provider) deviceOf(ctx *C.struct_ibv_context) (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.devices[ctx]; d != nil {
		return d, nil
	}
	if _, err := p.refreshLocked(); err != nil {
		return nil, err
	}
	if d := p.devices[ctx]; d != nil {
		return d, nil
	}
	return nil, noDevice("the device of the connection is gone")
}

// forget gives up a removed device that has no objects any more. librdmacm keeps its context open, and with it the kernel's device,
// until it has looked at the list of devices again.
func (p *provider) forget(d *device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.devices[d.ctx] != d {
		return
	}
	delete(p.devices, d.ctx)
	d.unplugSiw()
	var list **C.struct_ibv_context
	var n C.int
	if C.rc_get_devices(&list, &n) == 0 {
		for _, ctx := range unsafe.Slice(list, int(n)) {
			C.rc_put_device(ctx)
		}
		C.free(unsafe.Pointer(list))
	}
	C.rc_put_device(d.ctx)
}
