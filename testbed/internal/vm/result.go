package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Exit statuses that are not the command's own.
const (
	StatusTimeout     = 124 // as timeout(1) has it
	StatusGuestDown   = 125 // the guest never came up, or went down under the command
	StatusInterrupted = 130
)

// A Result says how a guest ended.
type Result struct {
	Status int   // the command's, or one of the above
	Err    error // why, if the command did not come to its end
	Killed bool  // switched off by the other guest's "peer kill": as good as success
}

// errKilled is how a guest ends on whose power the other one cut.
var errKilled = errors.New("switched off by its peer")

// conclude makes a Result of what ended a guest before its command did.
func conclude(cause error, console string) Result {
	switch {
	case errors.Is(cause, errKilled):
		return Result{Killed: true}
	case errors.Is(cause, context.DeadlineExceeded):
		return Result{Status: StatusTimeout, Err: fmt.Errorf("time is up%s", consoleNote(console))}
	case errors.Is(cause, context.Canceled):
		return Result{Status: StatusInterrupted, Err: errors.New("interrupted")}
	default:
		return Result{Status: StatusGuestDown, Err: fmt.Errorf("%w%s", cause, consoleNote(console))}
	}
}

var reOops = regexp.MustCompile(`(?m)Kernel panic.*|Oops: .*|BUG: .*|kernel BUG at .*`)

// oops returns the first line in which the kernel says that it is done for.
func oops(console string) string { return strings.TrimSpace(reOops.FindString(console)) }

// consoleNote is the end of the console, to be put after an error's text.
func consoleNote(console string) string {
	console = strings.TrimSpace(strings.ReplaceAll(console, "\r", ""))
	if console == "" {
		return ""
	}
	lines := strings.Split(console, "\n")
	const most = 40
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return "; the guest's console ends:\n  " + strings.Join(lines, "\n  ")
}

func readConsole(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}
