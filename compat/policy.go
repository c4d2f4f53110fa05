package compat

import "fmt"

// Policy says what may be used.
type Policy int

const (
	// Prefer takes RDMA, else the software device, else plain TCP.
	Prefer Policy = iota

	// Require takes RDMA or the software device and no plain TCP, as package rconn does. For RDMA in hardware alone set
	// Config.Device to "no-software" too.
	Require

	// TCPOnly takes plain TCP, as package net does.
	TCPOnly
)

var policyNames = [...]string{"prefer", "require", "tcp-only"}

// String is the policy's name: "prefer", "require" or "tcp-only".
func (p Policy) String() string {
	if p < 0 || int(p) >= len(policyNames) {
		return fmt.Sprintf("Policy(%d)", int(p))
	}
	return policyNames[p]
}

// MarshalText is String, for flag.TextVar and configuration files.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads a policy's name.
func (p *Policy) UnmarshalText(text []byte) error {
	for i, name := range policyNames {
		if string(text) == name {
			*p = Policy(i)
			return nil
		}
	}
	return fmt.Errorf("compat: no policy %q; there are %q", text, policyNames)
}
