package verbstest

import "github.com/rconn/rdma/verbs"
import "testing"

func (s *suite) byHandCases() []testCase                                             { return nil }
func (s *suite) stateCases() []testCase                                              { return nil }
func (s *suite) ucCases() []testCase                                                 { return nil }
func (s *suite) udCases() []testCase                                                 { return nil }
func (s *suite) misuseCases() []testCase                                             { return nil }
func (s *suite) connectByHand(t *testing.T, typ verbs.QPType, a, b end) (x, y *side) { panic(1) }
