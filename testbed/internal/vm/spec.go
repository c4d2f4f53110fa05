package vm

import (
	"fmt"
	"io"
)

// A Spec says what to run in a guest. The zero value of a field is its default.
type Spec struct {
	Command string    // for bash, in the repository's root
	Shell   bool      // an interactive shell on our own terminal instead of Command
	Dev     string    // none, rxe (default), siw or, in a single guest, "rxe,siw"
	Out     string    // host directory that is $OUT in the guest; default one that is discarded
	Stdout  io.Writer // gets both outputs of Command as they come; default nowhere
	KArgs   string    // more arguments for the kernel
	Memory  int       // MiB; default 3072 for a guest alone, 1500 for each of a pair

	// OnStart, if not nil, is called once the guest is up and Command about to run.
	OnStart func()
}

func (s *Spec) setDefaults() {
	if s.Dev == "" {
		s.Dev = "rxe"
	}
	if s.Stdout == nil {
		s.Stdout = io.Discard
	}
}

// check refuses what the guest would only refuse after it has booted.
func (s *Spec) check(paired bool) error {
	switch s.Dev {
	case "none", "rxe", "siw":
		return nil
	case "rxe,siw":
		if !paired {
			return nil
		}
		return fmt.Errorf("device %q: a guest of a pair has one interface, so one device", s.Dev)
	}
	return fmt.Errorf("device %q: want none, rxe, siw or rxe,siw", s.Dev)
}
