// Package rdma lists and opens the RDMA devices of this host. It holds the providers: where devices come from.
//
// For connections that read like package net see package rconn; for the RDMA objects themselves see verbs, and cm for
// connecting them.
package rdma

import (
	"errors"
	"fmt"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/internal/rdmacore"
	"github.com/rconn/rdma/verbs"
)

// Providers returns the providers of this process, in the order in which they are asked: that of the system's RDMA devices, then that
// of the software device, one for the whole process. The slice is the caller's.
func Providers() []cm.Provider { return []cm.Provider{rdmacore.Provider(), software()} }

// Devices lists the devices of all providers. What a provider lacks is told by its own Devices.
func Devices() ([]verbs.Device, error) {
	var devices []verbs.Device
	var errs []error
	for _, p := range Providers() {
		found, err := p.Devices()
		devices = append(devices, found...)
		errs = append(errs, err)
	}
	if len(devices) > 0 {
		return devices, nil
	}
	return nil, errors.Join(errs...)
}

// Open returns the device of that name.
func Open(name string) (verbs.Device, error) {
	devices, err := Devices()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(devices))
	for i, d := range devices {
		if names[i] = d.Name(); names[i] == name {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%w named %q; there are %q", verbs.ErrNoDevice, name, names)
}
