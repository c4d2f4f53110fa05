//go:build unix && !linux

package softiwarp

// advise has nothing to do: what a child does to its copy does not reach this process.
func advise([]byte) error { return nil }
