//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"maps"
	"os"
	"slices"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// watch hands out a device's asynchronous events while anybody wants them. Guarded by device.mu.
type watch struct {
	next int
	fs   map[int]func(verbs.AsyncEvent)
	file *os.File // a duplicate of the context's descriptor; nil while nobody watches
}

// Watch starts the device's event goroutine with the first watcher; it ends with the last.
func (d *device) Watch(f func(verbs.AsyncEvent)) (stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.watch
	if w.fs == nil {
		w.fs = make(map[int]func(verbs.AsyncEvent))
	}
	n := w.next
	w.next++
	w.fs[n] = f
	if w.file == nil && !d.removed.Load() {
		if w.file = d.asyncFile(); w.file != nil { // nil: out of descriptors; the next watcher tries again
			d.users++
			go d.watchEvents(w.file)
		}
	}
	return func() { d.unwatch(n) }
}

func (d *device) unwatch(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.watch
	if _, ok := w.fs[n]; !ok {
		return
	}
	delete(w.fs, n)
	if len(w.fs) == 0 && w.file != nil {
		w.file.Close() // ends the goroutine
		w.file = nil
	}
}

// asyncFile puts a duplicate of the event descriptor into the runtime's poller; librdmacm keeps the original.
func (d *device) asyncFile() *os.File {
	fd := int(C.rc_async_fd(d.ctx))
	if fd < 0 {
		return nil
	}
	fd, err := dupCloexec(fd)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), d.name+" events")
}

func (d *device) watchEvents(file *os.File) {
	defer d.release()
	conn, err := file.SyscallConn()
	if err != nil {
		return
	}
	// The goroutine of the watchers before may still be at its last event: one at a time.
	d.watching.Lock()
	defer d.watching.Unlock()
	var ev C.struct_rc_async_event
	for {
		errno := syscall.Errno(0)
		err := conn.Read(func(uintptr) bool {
			errno = syscall.Errno(C.rc_get_async_event(d.ctx, &ev))
			return errno != syscall.EAGAIN
		})
		switch {
		case err != nil: // the last watcher left
			return
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			d.markRemoved()
			return
		}
		d.dispatch(d.event(&ev))
	}
}

// event finds the object of an event, which may be closed already.
func (d *device) event(c *C.struct_rc_async_event) verbs.AsyncEvent {
	ev := verbs.AsyncEvent{Type: verbs.AsyncEventType(c._type), Port: int(c.port), QPNum: uint32(c.qp_num)}
	switch o := d.objects.find(uint64(c.object)).(type) {
	case *cq:
		ev.CQ = o
	case *srq:
		ev.SRQ = o
		if ev.Type == verbs.EventSRQLimitReached {
			o.limit.Store(0)
		}
	}
	return ev
}

func (d *device) dispatch(ev verbs.AsyncEvent) {
	if ev.Type == verbs.EventDeviceFatal {
		d.markRemoved()
	}
	d.mu.Lock()
	fs := make([]func(verbs.AsyncEvent), 0, len(d.watch.fs))
	for _, n := range slices.Sorted(maps.Keys(d.watch.fs)) {
		fs = append(fs, d.watch.fs[n])
	}
	d.mu.Unlock()
	for _, f := range fs {
		f(ev)
	}
}

// dupCloexec duplicates a descriptor for this process alone. Both share O_NONBLOCK, which is set.
func dupCloexec(fd int) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return -1, os.NewSyscallError("fcntl", errno)
	}
	return int(n), nil
}
