//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

// The kernel's soft-iWARP driver and its library pass the places of queues in the context's mapping to one another, and take place
// 0x90000 for "none". First fit makes that place the next one once 144 pages of queues are mapped, which a dozen connections
// do, and from then on nothing can be created. One CQ that lies across the place keeps it from ever being given out.
const siwPlugSize = 32768 // entries of 32 bytes: 1 MiB, of which nothing is touched

func (d *device) isSiw() bool { return d.attr.VendorID == siwVendor }

// plugSiw makes that CQ before any other on the device. Without it things work for a while, so a failure is none.
func (d *device) plugSiw() {
	if !d.isSiw() {
		return
	}
	d.plugOnce.Do(func() {
		var granted C.int
		C.rc_create_cq(d.ctx, siwPlugSize, nil, 0, 0, &d.plug, &granted)
	})
}

func (d *device) unplugSiw() {
	if d.plug != nil {
		C.rc_destroy_cq(d.plug)
		d.plug = nil
	}
}
