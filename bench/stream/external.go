package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// program is a C program and what it has used.
type program struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

func startProgram(ctx context.Context, args []string) (*program, error) {
	p := &program{cmd: exec.CommandContext(ctx, args[0], args[1:]...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p, nil
}

// wait returns when the program has ended, which it must do soon.
func (p *program) wait(limit time.Duration) error {
	select {
	case err := <-p.done:
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(p.cmd.Args, " "), err, p.out.String())
		}
		return nil
	case <-time.After(limit):
		p.kill()
		return fmt.Errorf("%s: %w", strings.Join(p.cmd.Args, " "), errHangs)
	}
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

var errHangs = errors.New("does not end")

func (p *program) cpu() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// untilServed starts a program that connects until it finds the one that listens.
func untilServed(ctx context.Context, args []string, limit time.Duration) (*program, error) {
	var last error
	for range 100 {
		time.Sleep(20 * time.Millisecond)
		p, err := startProgram(ctx, args)
		if err != nil {
			return nil, err
		}
		if last = p.wait(limit); last == nil {
			return p, nil
		}
		if errors.Is(last, errHangs) || ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// both runs two C programs against each other, and returns what the one that connects printed and what both used. Those of
// librdmacm 44 hang now and then at their end, so it is tried three times.
func both(ctx context.Context, server, client []string) (out string, cpu time.Duration, err error) {
	for range 3 {
		var s, c *program
		if s, err = startProgram(ctx, server); err != nil {
			return "", 0, err
		}
		c, err = untilServed(ctx, client, 20*time.Second)
		if err != nil {
			s.kill()
		} else if err = s.wait(5 * time.Second); err == nil {
			return c.out.String(), c.cpu() + s.cpu(), nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return "", 0, err
}

// microsPerTransfer is what rstream prints last.
func microsPerTransfer(out string) (float64, error) {
	fields := strings.Fields(out)
	if len(fields) > 0 {
		if us, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil && us > 0 {
			return us, nil
		}
	}
	return 0, fmt.Errorf("rstream printed no time:\n%s", out)
}

// peerTimes is what programs of testbed/peers print: the seconds that all took, and quantiles of single times from those that tell them.
func peerTimes(out string) (took time.Duration, times []float64, err error) {
	var numbers []float64
	for field := range strings.FieldsSeq(out) {
		x, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, nil, fmt.Errorf("%w, want only times in:\n%s", err, out)
		}
		numbers = append(numbers, x)
	}
	if len(numbers) == 0 {
		return 0, nil, errors.New("the program printed no time")
	}
	return micros(numbers[0] * 1e6), numbers[1:], nil
}

// perfRow finds the row of numbers that programs of perftest print, below a row that starts with "#bytes".
func perfRow(out string) ([]float64, error) {
	_, rest, ok := strings.Cut(out, "#bytes")
	if ok {
		for line := range strings.Lines(rest) {
			var row []float64
			for _, field := range strings.Fields(line) {
				x, err := strconv.ParseFloat(strings.TrimPrefix(field, "-"), 64) // a deviation can be -nan
				if err != nil {
					break
				}
				row = append(row, x)
			}
			if len(row) >= 5 {
				return row, nil
			}
		}
	}
	return nil, fmt.Errorf("no row of numbers in:\n%s", out)
}

// totalMillis adds up the steps that cmtime tells.
func totalMillis(out string) (float64, error) {
	var sum float64
	rows := cmtimeRow.FindAllStringSubmatch(out, -1)
	for _, row := range rows {
		ms, err := strconv.ParseFloat(row[1], 64)
		if err != nil {
			return 0, err
		}
		sum += ms
	}
	if len(rows) == 0 || sum == 0 {
		return 0, fmt.Errorf("cmtime printed no times:\n%s", out)
	}
	return sum, nil
}

var cmtimeRow = regexp.MustCompile(`(?m)^[a-z ]+:\s+([0-9.]+)\s+[0-9.]+\s+[0-9.]+\s+[0-9.]+\s*$`)
