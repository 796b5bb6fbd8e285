package capacity_test

import (
	"math/rand/v2"
	"testing"

	"headroom_exporter/capacity"
)

// Half and twice the budget of a p99, at 5 % each.
func p99Test() *capacity.SPRT { return capacity.NewSPRT(0.005, 0.02, 0.05, 0.05) }

func TestSPRT(t *testing.T) {
	tests := []struct {
		name      string
		violation bool
		after     int
		want      capacity.Decision
	}{
		{"clean", false, 194, capacity.Accept},
		{"bad", true, 3, capacity.Reject},
	}
	for _, test := range tests {
		s := p99Test()
		for i := 1; i < test.after; i++ {
			if d := s.Observe(test.violation); d != capacity.Undecided {
				t.Fatalf("%s: %v after %d", test.name, d, i)
			}
		}
		if d := s.Observe(test.violation); d != test.want {
			t.Errorf("%s: %v after %d, want %v", test.name, d, test.after, test.want)
		}
		for range 1000 {
			if d := s.Observe(!test.violation); d != test.want {
				t.Fatalf("%s: the decision changed to %v", test.name, d)
			}
		}
	}
}

func TestSPRTErrors(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct {
		fraction float64
		wrong    capacity.Decision
	}{{0.005, capacity.Reject}, {0.02, capacity.Accept}} {
		const runs = 2000
		wrong := 0
		for range runs {
			s, d := p99Test(), capacity.Undecided
			for d == capacity.Undecided {
				d = s.Observe(rng.Float64() < test.fraction)
			}
			if d == test.wrong {
				wrong++
			}
		}
		if share := float64(wrong) / runs; share > 0.06 {
			t.Errorf("a fraction of %g is judged wrongly in %g of the runs, want 0.05", test.fraction, share)
		}
	}
}
