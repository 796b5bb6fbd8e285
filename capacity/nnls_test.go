package capacity_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/floats"

	"headroom_exporter/capacity"
)

func TestNNLS(t *testing.T) {
	tests := []struct {
		name string
		a, b []float64
		want []float64
	}{
		{"one equation", []float64{2}, []float64{6}, []float64{3}},
		{"negative", []float64{2}, []float64{-6}, []float64{0}},
		// The example of SciPy's scipy.optimize.nnls.
		{"square", []float64{1, 0, 1, 0, 0, 1}, []float64{2, 1, 1}, []float64{1.5, 1}},
		{"all but the origin is worse", []float64{1, 0, 1, 0, 0, 1}, []float64{-1, -1, -1}, []float64{0, 0}},
		// Without the bound it is (-1, 2): the first is held at 0, and the second is then 1.5.
		{"one is held", []float64{1, 1, 0, 1}, []float64{1, 2}, []float64{0, 1.5}},
		{"zero column", []float64{1, 0, 1, 0}, []float64{2, 4}, []float64{3, 0}},
		{"the same column twice", []float64{1, 1, 1, 1}, []float64{2, 4}, []float64{3, 0}},
		{"a column of others", []float64{1, 0, 1, 0, 1, 1, 0, 0, 0}, []float64{1, 2, 0}, []float64{0, 1, 1}},
		{"nothing to explain", []float64{1, 0, 0, 1}, []float64{0, 0}, []float64{0, 0}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rows := slices.Collect(slices.Chunk(test.a, len(test.want)))
			x := capacity.NNLS(rows, test.b)
			for j := range x {
				if math.Abs(x[j]-test.want[j]) > 1e-9*max(1, test.want[j]) {
					t.Errorf("x %v, want %v", x, test.want)
					break
				}
			}
		})
	}
}

// The conditions of Karush, Kuhn and Tucker hold at the solution and nowhere
// else: the gradient is 0 where x > 0, and nowhere would more of an x help.
func TestNNLSIsOptimal(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		rows, cols := 1+rng.IntN(12), 1+rng.IntN(8)
		a, b := make([][]float64, rows), make([]float64, rows)
		for i := range rows {
			b[i] = rng.NormFloat64()
			for range cols {
				// Few values, so that columns depend on each other.
				a[i] = append(a[i], float64(rng.IntN(4)-1))
			}
		}
		x := capacity.NNLS(a, b)
		gradient := make([]float64, cols)
		for i, row := range a {
			floats.AddScaled(gradient, b[i]-floats.Dot(row, x), row)
		}
		for j := range x {
			if x[j] < 0 || gradient[j] > 1e-9 || x[j] > 0 && math.Abs(gradient[j]) > 1e-9 {
				t.Fatalf("%d x %d: x %v with gradient %g at %d", rows, cols, x, gradient[j], j)
			}
		}
	}
}
