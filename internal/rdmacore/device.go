//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// device is a context of librdmacm, on which it keeps a reference.
type device struct {
	p    *provider
	ctx  *C.struct_ibv_context
	name string
	attr verbs.DeviceAttr

	removed atomic.Bool  // the kernel took the device away
	inline  atomic.Int64 // what is known to be too much inline payload, 0: nothing

	plugOnce sync.Once
	plug     *C.struct_rc_cq // see siw.go

	objects registry[any] // CQs and SRQs, by what their events say; memory of the caller's that is registered

	watching sync.Mutex // held by the goroutine that hands out asynchronous events

	mu       sync.Mutex
	users    int // open PDs, CQs, channels, ids, and the watch
	channels map[*channel]struct{}
	watch    watch
}

func openDevice(p *provider, ctx *C.struct_ibv_context) (*device, error) {
	var a C.struct_rc_device_attr
	if err := sysErr("ibv_query_device", int(C.rc_query_device(ctx, &a))); err != nil {
		return nil, err
	}
	p.beds.once.Do(p.beds.make)
	d := &device{p: p, ctx: ctx, name: C.GoString(C.rc_device_name(ctx)), channels: make(map[*channel]struct{})}
	d.attr = verbs.DeviceAttr{
		Transport:       verbs.Transport(a.transport),
		Firmware:        C.GoString(&a.firmware[0]),
		NodeGUID:        uint64(a.node_guid),
		SysImageGUID:    uint64(a.sys_image_guid),
		VendorID:        uint32(a.vendor_id),
		VendorPartID:    uint32(a.vendor_part_id),
		HWVersion:       uint32(a.hw_ver),
		Ports:           int(a.ports),
		MaxQP:           int(a.max_qp),
		MaxQPWR:         int(a.max_qp_wr),
		MaxSGE:          int(a.max_sge),
		MaxSGERead:      int(a.max_sge_rd),
		MaxCQ:           int(a.max_cq),
		MaxCQE:          int(a.max_cqe),
		MaxMR:           int(a.max_mr),
		MaxMRSize:       uint64(a.max_mr_size),
		MaxPD:           int(a.max_pd),
		MaxQPRdAtom:     int(a.max_qp_rd_atom),
		MaxQPInitRdAtom: int(a.max_qp_init_rd_atom),
		MaxSRQ:          int(a.max_srq),
		MaxSRQWR:        int(a.max_srq_wr),
		MaxSRQSGE:       int(a.max_srq_sge),
		MaxAH:           int(a.max_ah),
		Atomic:          verbs.AtomicCap(a.atomic_cap),
	}
	d.attr.Caps = capabilities(&d.attr)
	return d, nil
}

func (d *device) Name() string { return d.name }

func (d *device) Attr() verbs.DeviceAttr { return d.attr }

func (d *device) Port(num int) (verbs.PortAttr, error) {
	a, err := d.port(num)
	if err == nil {
		a.Netdev = d.netdev(num, a.GIDs)
	}
	return a, err
}

// port is Port without what takes longer to find out.
func (d *device) port(num int) (verbs.PortAttr, error) {
	if num < 1 || num > d.attr.Ports {
		return verbs.PortAttr{}, sysErr("ibv_query_port", int(syscall.EINVAL))
	}
	if err := d.acquire(); err != nil {
		return verbs.PortAttr{}, err
	}
	defer d.release()
	var a C.struct_rc_port_attr
	if err := sysErr("ibv_query_port", int(C.rc_query_port(d.ctx, C.int(num), &a))); err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		State:      verbs.PortState(a.state),
		Link:       verbs.LinkLayer(a.link_layer),
		MTU:        int(a.mtu),
		MaxMTU:     int(a.max_mtu),
		LID:        uint16(a.lid),
		SMLID:      uint16(a.sm_lid),
		GIDs:       int(a.gids),
		MaxMsgSize: uint32(a.max_msg_size),
	}, nil
}

func (d *device) GID(port, index int) (verbs.GID, error) {
	if port < 1 || port > d.attr.Ports || index < 0 {
		return verbs.GID{}, sysErr("ibv_query_gid", int(syscall.EINVAL))
	}
	attr, err := d.port(port)
	if err != nil {
		return verbs.GID{}, err
	}
	if index >= attr.GIDs {
		return verbs.GID{}, sysErr("ibv_query_gid", int(syscall.EINVAL))
	}
	if err := d.acquire(); err != nil {
		return verbs.GID{}, err
	}
	defer d.release()
	var g verbs.GID
	errno := syscall.Errno(C.rc_query_gid(d.ctx, C.int(port), C.int(index), (*C.uint8_t)(&g[0])))
	if errno == syscall.ENODATA || errno == syscall.EIO || errno == syscall.ENOENT { // rdma-core's ways to say "empty"
		errno = 0
	}
	return g, sysErr("ibv_query_gid", int(errno))
}

func (d *device) GIDType(port, index int) (verbs.GIDType, error) {
	if _, err := d.GID(port, index); err != nil {
		return 0, err
	}
	attr, err := d.port(port)
	if err != nil {
		return 0, err
	}
	return gidType(d.sysfs(port, "gid_attrs", "types", strconv.Itoa(index)), attr.Link), nil
}

// sysfs reads a file of a port.
func (d *device) sysfs(port int, name ...string) string {
	path := append([]string{sysDevices, d.name, "ports", strconv.Itoa(port)}, name...)
	b, _ := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(b))
}

// netdev is the network interface of a port: that of its first GID which has one. On iWARP the GID begins with the interface's
// hardware address, and there may be nothing in sysfs.
func (d *device) netdev(port, gids int) string {
	for i := range gids {
		if name := d.sysfs(port, "gid_attrs", "ndevs", strconv.Itoa(i)); name != "" {
			return name
		}
	}
	if d.attr.Transport != verbs.TransportIWARP {
		return ""
	}
	raw, _ := hex.DecodeString(strings.ReplaceAll(d.sysfs(port, "gids", "0"), ":", ""))
	all, _ := net.Interfaces()
	for _, ifi := range all {
		if len(ifi.HardwareAddr) == 6 && bytes.HasPrefix(raw, ifi.HardwareAddr) {
			return ifi.Name
		}
	}
	return ""
}

func (d *device) AllocPD() (verbs.PD, error) {
	if err := d.acquire(); err != nil {
		return nil, err
	}
	pd := &pd{dev: d}
	err := d.p.calls.do(func() error { return sysErr("ibv_alloc_pd", int(C.rc_alloc_pd(d.ctx, &pd.c))) })
	if err != nil {
		d.release()
		return nil, err
	}
	return pd, nil
}

// acquire counts a user, so that the device's context stays. ErrDeviceRemoved once the kernel took the device away.
func (d *device) acquire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed.Load() {
		return verbs.ErrDeviceRemoved
	}
	d.users++
	return nil
}

// release ends a use. The last one of a removed device lets it go.
func (d *device) release() {
	d.mu.Lock()
	d.users--
	last := d.users == 0 && d.removed.Load()
	d.mu.Unlock()
	if last {
		d.p.forget(d)
	}
}

// check is nil or ErrDeviceRemoved, for calls on objects of the device.
func (d *device) check() error {
	if d.removed.Load() {
		return verbs.ErrDeviceRemoved
	}
	return nil
}

// markRemoved notes that the kernel takes the device away, and ends what waits for its events. Its objects remain to be closed.
func (d *device) markRemoved() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.removed.Swap(true) {
		return
	}
	for c := range d.channels {
		c.Interrupt()
	}
	if d.users == 0 {
		go d.p.forget(d)
	}
}

// orRemoved is err, or ErrDeviceRemoved where that explains it.
func (d *device) orRemoved(err error) error {
	if err != nil && d != nil && d.removed.Load() {
		return verbs.ErrDeviceRemoved
	}
	return err
}

// zoneOf is the network interface on which the device has the link-local address ip.
func (d *device) zoneOf(ip netip.Addr) string {
	if name := interfaceOf(ip); name != "" {
		return name
	}
	port, err := d.Port(1)
	if err != nil {
		return ""
	}
	return port.Netdev
}
