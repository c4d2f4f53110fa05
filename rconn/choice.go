package rconn

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// Values of Config.Device that are no names of devices.
const (
	onlySoftware = "software" // also the name of the software device's provider
	noSoftware   = "no-software"
)

// deviceEnv takes the place of an empty Config.Device, for programs that cannot be changed.
const deviceEnv = "RCONN_DEVICE"

// chosenDevice is the device that the user asks for, empty for any.
func chosenDevice(configured string) string { return orDefault(configured, os.Getenv(deviceEnv)) }

// choose returns the providers that may serve the chosen device, in the order in which they are asked.
func (c Config) choose(providers []cm.Provider) ([]cm.Provider, error) {
	if providers == nil {
		providers = rdma.Providers()
	}
	var chosen []cm.Provider
	var names []string
	for _, p := range providers {
		switch c.Device {
		case "":
			chosen = append(chosen, p)
		case onlySoftware, noSoftware:
			if (p.Name() == onlySoftware) == (c.Device == onlySoftware) {
				chosen = append(chosen, p)
			}
		default:
			devices, _ := p.Devices() // without any there is none of that name
			for _, d := range devices {
				names = append(names, d.Name())
				if d.Name() == c.Device {
					chosen = append(chosen, p)
				}
			}
		}
	}
	switch {
	case len(chosen) > 0:
		return chosen, nil
	case c.Device == "":
		return nil, verbs.ErrNoDevice
	}
	return nil, fmt.Errorf("%w %q, which Config.Device or %s asks for; there are %q", verbs.ErrNoDevice, c.Device, deviceEnv, names)
}

// check refuses a device that is not the chosen one.
func (c Config) check(d verbs.Device) error {
	switch c.Device {
	case "", onlySoftware, noSoftware, d.Name():
		return nil
	}
	return fmt.Errorf("%w %q for this address, which %q serves; Config.Device or %s asks for the former", verbs.ErrNoDevice, c.Device, d.Name(),
		deviceEnv)
}

var announced sync.Map // names of devices

// announce logs a device when the process first has a connection on it.
func (c Config) announce(d verbs.Device) {
	if _, known := announced.LoadOrStore(d.Name(), true); !known {
		c.Logger.Info("rdma connections run on", "device", d.Name(), "transport", d.Attr().Transport)
	}
}

// firstReal is the first error that is more than the lack of a device, else the first.
func firstReal(errs []error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, verbs.ErrNoDevice) {
			return err
		}
	}
	return errs[0]
}
